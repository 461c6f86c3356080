"""Read published answers by a description of their form (`conf/claims/forms.yaml`): where records are, and where their fields are.

A new form is a few lines of YAML. What a form does not describe is read as its form `flat` says. A record that is damaged is counted and
listed with its place, and the others are read: other people's files are judged by what they hold.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from data_loaders.raw import MAX_TEXT
from data_loaders.schema import DataError
from eval.files.records import Outcome
from eval.files.store import RunError
from scripts.answers.parsing import Parsed
from scripts.answers.records import Answer, amount_of
from scripts.answers.verdicts import Scale, verdict_of

FORMS = Path(__file__).resolve().parents[2] / "conf" / "claims" / "forms.yaml"
LISTED = 20
"""At most so many irregularities of a kind are listed; all are counted."""
SCORES = ("f1", "bleu1", "rouge_l_f")
"""Scores of the file's authors that are kept beside their verdict."""
FIELDS = (
    "question", "question_id", "conversation", "gold", "answer", "category", "verdict", *SCORES,
    "tokens", "seconds", "milliseconds", "outcome", "error", "cut",
)  # fmt: skip
ANSWERED = ("", "answered", "success", "success_empty")
"""Words of the field `outcome` for an answered question; after any other word a record without text is an error."""


@dataclass(frozen=True, slots=True)
class Form:
    """A form of published answers."""

    name: str
    about: str
    records: tuple[str, ...]
    fields: Mapping[str, tuple[str, ...]]
    pattern: str
    """What of a conversation's text names it."""
    first: int
    """Number of the first conversation, where a number names it."""
    scale: Scale
    needs: str = ""
    skip: Mapping[str, Sequence[str]] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    reader: str = ""
    """`paired` puts two files together before they are read."""


@dataclass(slots=True)
class Contents:
    """What a set of files holds."""

    answers: list[Answer] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """Irregularities by kind."""
    listed: list[str] = field(default_factory=list)
    """The first of each kind, with their places."""

    def note(self, kind: str, place: str, said: str = "") -> None:
        """Count an irregularity, and list it unless there are many of its kind."""
        self.counts[kind] += 1
        if self.counts[kind] <= LISTED:
            self.listed.append(f"{place}: {kind}{f' ({said})' if said else ''}")


@lru_cache(maxsize=8)
def forms(path: Path = FORMS) -> Mapping[str, Form]:
    """Every form of a file of forms, by name.

    Raises:
        RunError: the file describes a form wrongly.
    """
    try:
        described = yaml.safe_load(path.read_text(encoding="utf-8"))
        usual = yaml.safe_load(FORMS.read_text(encoding="utf-8"))["flat"]
        return {name: _form(name, given, usual) for name, given in described.items()}
    except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{path.name}: no description of forms: {error}") from error


def _form(name: str, given: Mapping[str, Any], usual: Mapping[str, Any]) -> Form:
    known = {"about", "records", "fields", "conversation", "verdict", "needs", "skip", "options", "reader"}
    if unknown := {*given} - known | {*given.get("fields", {})} - {*FIELDS}:
        raise ValueError(f"{name} has the unknown entries {', '.join(sorted(unknown))}")
    fields = {**usual["fields"], **given.get("fields", {})}
    conversation = {**usual["conversation"], **given.get("conversation", {})}
    re.compile(conversation["pattern"])
    return Form(
        name,
        given["about"],
        tuple(given.get("records", usual["records"])),
        {each: tuple(fields.get(each) or ()) for each in FIELDS},
        conversation["pattern"],
        conversation["first"],
        Scale(**given.get("verdict", {})),
        given.get("needs", ""),
        given.get("skip", {}),
        given.get("options", {}),
        given.get("reader", ""),
    )


def read_declared(files: Sequence[Parsed], form: Form, options: Mapping[str, str] | None = None) -> Contents:
    """The answers of a set of files.

    Raises:
        DataError: no file has records where the form has them, or an option is missing.
    """
    chosen = {**form.options, **(options or {})}
    contents = Contents()
    for file in _paired(files) if form.reader == "paired" else files:
        spots = [spot.format_map(_Options(chosen)) for spot in form.records]
        for spot in _first_with_answers(file, spots, form):
            _read(contents, form, chosen, spot)
    if not contents.answers:
        names = ", ".join(file.name for file in files[:3])
        raise DataError(f"{names}: no answers where the form {form.name} has them ({', '.join(form.records)})")
    return contents


class _Options(dict[str, str]):
    def __missing__(self, key: str) -> str:
        raise DataError(f"the option {key}= is missing")


@dataclass(frozen=True, slots=True)
class _Spot:
    """A record with what surrounds it."""

    record: Mapping[str, Any]
    keys: tuple[str, ...]
    around: tuple[Any, ...]
    file: str

    @property
    def place(self) -> str:
        return f"{self.file}[{']['.join(self.keys)}]"

    def get(self, where: str) -> tuple[bool, Any]:
        """Whether the place exists, and its value."""
        if where in self.record:
            return True, self.record[where]
        if where.isidentifier():
            return False, None
        path, _, words = where.partition("|")
        if path == "@file":
            return True, self.file
        if path.startswith("@"):
            number = int(path[1:]) - 1
            return (True, self.keys[number]) if number < len(self.keys) else (False, None)
        if path.startswith("^"):
            holders = [each for each in reversed(self.around) if isinstance(each, dict) and path[1:] in each]
            return (True, holders[0][path[1:]]) if holders else (False, None)
        if "+" in path:
            parts = [amount_of(self.get(part)[1]) for part in path.split("+")]
            known = [part for part in parts if part is not None]
            return len(known) == len(parts), sum(known) if len(known) == len(parts) else None
        value: Any = self.record
        for part in path.split("."):
            if not isinstance(value, dict):
                return False, None
            keys = [part] if part in value else [key for key in value if part[:1] == "*" and key.endswith(part[1:])]
            if len(keys) != 1:
                return False, None
            value = value[keys[0]]
        if words:
            fits = isinstance(value, str) and value.startswith(words)
            return fits, value[len(words) :] if fits else None
        return True, value

    def first(self, places: Sequence[str], chosen: Mapping[str, str]) -> Any:
        """The value at the first place that has one; None where none has."""
        values = (self.get(place.format_map(_Options(chosen)) if "{" in place else place)[1] for place in places)
        return next((value for value in values if value is not None), None)


def _first_with_answers(file: Parsed, places: Sequence[str], form: Form) -> list[_Spot]:
    """The records at the first place where one of them asks something."""
    asked = (*form.fields["question"], *form.fields["question_id"])
    for place in places:
        spots = [_Spot(*found, file.name) for found in _walk(file.content, place.split("/"), (), ())]
        if any(isinstance(spot.record, dict) and any(name in spot.record for name in asked) for spot in spots):
            return spots
    return []


def _walk(
    value: Any, parts: Sequence[str], keys: tuple[str, ...], around: tuple[Any, ...]
) -> Iterator[tuple[Any, tuple[str, ...], tuple[Any, ...]]]:
    if not parts:
        yield value, keys, around
    elif parts[0] == "*" and isinstance(value, dict | list):
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in entries:
            yield from _walk(inner, parts[1:], (*keys, str(key)), (*around, value))
    elif isinstance(value, dict) and parts[0] in value:
        yield from _walk(value[parts[0]], parts[1:], keys, (*around, value))


def _read(contents: Contents, form: Form, chosen: Mapping[str, str], spot: _Spot) -> None:
    """Add one record's answer, or count what is wrong with the record."""
    if wrong := _no_answer(form, spot):
        contents.note(wrong, spot.place)
        return
    stored = {name: spot.first(places, chosen) for name, places in form.fields.items()}
    question, question_id, text = (_plain(stored[name]) for name in ("question", "question_id", "answer"))
    if not question and not question_id:
        contents.note("record without a question", spot.place)
        return
    if max(len(text), len(question)) > MAX_TEXT or not _encodable(text + question + question_id):
        contents.note("record whose text is no text", spot.place)
        return
    missing = stored["answer"] is None or isinstance(stored["answer"], dict)
    outcome, error = _outcome(stored, text, missing)
    if outcome == "answered" and not text.strip():
        contents.note("blank answer", spot.place)
    elif missing:
        contents.note("missing answer", spot.place)
    conversation, position = _conversation(form, stored["conversation"])
    tokens, seconds, thousandths = (amount_of(stored[name]) for name in ("tokens", "seconds", "milliseconds"))
    if seconds is None and thousandths is not None:
        seconds = thousandths / 1000
    contents.answers.append(
        Answer(
            spot.place,
            conversation,
            question,
            text,
            position,
            question_id,
            _plain(stored["category"]),
            None if stored["gold"] is None else _plain(stored["gold"]),
            _verdict(contents, form, spot, stored["verdict"])
            | {name: (score,) for name in SCORES if (score := amount_of(stored[name])) is not None},
            outcome,
            error,
            stored["cut"] is True,
            int(tokens) if tokens else None,  # 0 stands where the recalled text was not at hand
            seconds if outcome == "answered" else None,
        )
    )


def _outcome(stored: Mapping[str, Any], text: str, missing: bool) -> tuple[Outcome, str]:
    """Whether a question was answered, and the error where it was not."""
    word, said = _plain(stored["outcome"]), _plain(stored["error"])
    if word == "aborted":
        return "aborted", said
    if word not in ANSWERED and not text.strip():
        return "error", said or word
    return ("error", said or "the file has no answer") if missing else ("answered", said)


def _no_answer(form: Form, spot: _Spot) -> str:
    """Why a record holds no answer; empty where it holds one."""
    if not isinstance(spot.record, dict):
        return "record that is no object"
    if form.needs and form.needs not in spot.record:
        return f"record without {form.needs}"
    if any(_plain(spot.record.get(key)) in values for key, values in form.skip.items()):
        return "record of another data set"
    return ""


def _verdict(contents: Contents, form: Form, spot: _Spot, stored: Any) -> dict[str, tuple[float | None, ...]]:
    """The verdict as the grade `judge`, on a scale from 0 to 1; no grade where the record has none."""
    word = spot.get(form.scale.fails)[1] if form.scale.fails else None
    verdict = verdict_of(stored, form.scale, word)
    if verdict.state == "absent":
        kind = (
            "without a verdict"
            if form.scale.absent is None
            else f"without a verdict, which the form has for {form.scale.absent:g}"
        )
        contents.counts[kind] += 1
    elif verdict.state != "judged":
        contents.note("judge error" if verdict.state == "error" else "left out of judging", spot.place, verdict.said)
    if verdict.state == "absent" and verdict.value is None:
        return {}
    votes = verdict.votes or (verdict.value,)
    return {"judge": tuple(None if vote is None else vote / form.scale.scale for vote in votes)}


def _conversation(form: Form, stored: Any) -> tuple[str, int | None]:
    """The name of the conversation, and its position where a number names it; both empty where the file has none."""
    named = re.search(form.pattern, _plain(stored))
    if named is None or stored is None:
        return "", None
    number = int(named[0]) - form.first if re.fullmatch(r"\d{1,6}", named[0]) else None
    return named[0], number


def _plain(value: Any) -> str:
    """A field as text: published files hold numbers, true and false, and lists of texts among their texts."""
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    if isinstance(value, int) and value.bit_length() > 64:
        return ""
    return value if isinstance(value, str) else str(value) if isinstance(value, int | float) else ""


def _encodable(text: str) -> bool:
    """Whether UTF-8 can encode a text; a lone surrogate of JSON cannot be hashed, printed or saved."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _paired(files: Sequence[Parsed]) -> list[Parsed]:
    """Answers with their evaluations: `answers_X` and `evaluation_X` hold, by ability, lists of the same length and order."""
    by_name = {file.name: file.content for file in files}
    together = []
    for file in files:
        other = by_name.get(file.name.replace("answers_", "evaluation_", 1))
        if not file.name.startswith("answers_") or not isinstance(file.content, dict):
            continue
        number = re.search(r"_(\d+)_", file.name)
        evaluated = other if isinstance(other, dict) else {}
        records = [
            {
                **answer,
                **_at(evaluated.get(ability), place),
                "ability": ability,
                "conversation": number[1] if number else "",
            }
            for ability, answers in file.content.items()
            if isinstance(answers, list)
            for place, answer in enumerate(answers)
            if isinstance(answer, dict)
        ]
        together.append(Parsed(file.name, records, file.sha256))
    return together


def _at(entries: Any, place: int) -> Mapping[str, Any]:
    fits = isinstance(entries, list) and place < len(entries) and isinstance(entries[place], dict)
    return entries[place] if fits else {}
