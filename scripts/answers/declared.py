"""Read published answers by a description of their form (`conf/claims/forms.yaml`): the places of records and of their fields.

The files are JSON, JSON Lines or CSV, each plain or compressed by gzip.

A new form is a few lines of YAML. Parts that a form does not describe are read as in the form `flat`. A damaged record is counted and
listed with its place, and the other records are read: a file is judged by its readable content.

A stored verdict is true or false, a number, a word, a list of votes, or a list of failures. It becomes a number from 0 to the form's full
mark. An unknown word, a number off the scale and an empty text are judge errors: they are counted, listed, and give no verdict.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import math
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, Field

from data_loaders.raw import MAX_TEXT, parse_json, parse_lines
from data_loaders.schema import DataError
from eval.files.records import Outcome
from eval.files.store import RunError
from scripts.answers.matching import Answer, amount_of
from scripts.settings.checking import typed
from scripts.settings.types import STRICT, Amount, Natural, Positive, Share, Text

GZIP = b"\x1f\x8b"
MAX_BYTES = 512 << 20
"""Maximum number of bytes of one unpacked file."""


@dataclass(frozen=True, slots=True)
class Parsed:
    name: str
    """File name without folders and without `.gz`."""
    content: Any
    sha256: str
    """sha256 of the unpacked bytes: the owner's file and a compressed copy agree."""


def digest(files: Sequence[Parsed]) -> str:
    """The sha256 of a file; for several files, of the list of their sha256."""
    sums = [file.sha256 for file in files]
    return sums[0] if len(sums) == 1 else hashlib.sha256("\n".join(sums).encode()).hexdigest()


def parsed(path: Path) -> Parsed:
    """Read and parse a file. Raises DataError if it cannot be read, is too large unpacked, or is in none of the kinds."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path.name}: expected a readable file, found: {error.strerror or error}") from error
    data = unpacked(raw, path.name) if raw.startswith(GZIP) else raw
    name = path.name.removesuffix(".gz")
    return Parsed(name, parse(data.removeprefix(b"\xef\xbb\xbf"), name), hashlib.sha256(data).hexdigest())


def unpacked(raw: bytes, name: str) -> bytes:
    """The content of a gzip file; of all its members, if it was put together from several.

    Raises:
        DataError: it is damaged, cut off, followed by other bytes than zeros, or unpacks to more than MAX_BYTES.
    """
    try:
        data = gzip.GzipFile(fileobj=io.BytesIO(raw)).read(MAX_BYTES + 1)
    except EOFError as error:
        raise DataError(f"{name}: expected a whole gzip file, found one that is cut off") from error
    except (OSError, zlib.error) as error:
        raise DataError(f"{name}: expected a whole gzip file, found: {error}") from error
    if len(data) > MAX_BYTES:
        raise DataError(f"{name}: expected at most {MAX_BYTES:,} bytes unpacked, found more")
    return data


def parse(data: bytes, name: str) -> Any:
    """The value of a JSON text, or a list of the values of JSON Lines, or a list of the rows of a CSV with a header.

    Raises:
        DataError: the text is none of these.
    """
    lines = [line for line in data.split(b"\n") if line.strip()]
    if not lines:
        raise DataError(f"{name}: expected JSON, JSON Lines or CSV, found an empty file")
    if lines[0].lstrip()[:1] not in (b"{", b"["):
        return _rows(data, name)
    if len(lines) > 1 and lines[0].strip().endswith(b"}") and lines[1].lstrip().startswith(b"{"):
        return [value for _, value in parse_lines(data, name)]
    value = parse_json(data, name)
    return [value] if name.endswith(".jsonl") and isinstance(value, dict) else value


def _rows(data: bytes, name: str) -> list[dict[str, str]]:
    csv.field_size_limit(MAX_BYTES)  # recalled texts may exceed the default limit
    try:
        reader = csv.DictReader(io.StringIO(data.decode("utf-8"), newline=""), strict=True)
        rows = list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{name}: expected JSON, JSON Lines or CSV, found an error: {error}") from error
    if not rows or len(rows[0]) < 2 or None in rows[0]:
        raise DataError(f"{name}: expected JSON, JSON Lines or a CSV with a header, found another kind of text")
    if longer := [number for number, row in enumerate(rows, 1) if None in row]:
        raise DataError(
            f"{name}: expected as many fields as the header has, found more in record {longer[0]}; a comma needs quotes"
        )
    names = Counter(reader.fieldnames or ())
    if twice := [column for column, count in names.items() if count > 1]:
        raise DataError(f"{name}: expected columns of different names, found {names[twice[0]]} called {twice[0]!r}")
    return [{key: value for key, value in row.items() if value is not None} for row in rows]


State = Literal["judged", "absent", "not judged", "error"]
"""`absent`: the file has no verdict here; `not judged`: it says that the answer was left out of judging; `error`: judging failed."""

WORDS: Mapping[str, float | None] = {
    **dict.fromkeys(("correct", "yes", "true", "pass", "passed", "right", "accurate"), 1.0),
    **dict.fromkeys(("partially_correct", "partially correct", "partial"), 0.5),
    **dict.fromkeys(("wrong", "incorrect", "no", "false", "fail", "failed", "inaccurate"), 0.0),
    **dict.fromkeys(("skip", "skipped", "not_judged", "excluded"), None),
}
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?"
FAILED = frozenset({"", "error", "parse_error", "parse error", "unknown", "failed to parse", "timeout"})


@dataclass(frozen=True, slots=True)
class Scale:
    """The form's notation of verdicts."""

    __pydantic_config__ = STRICT

    scale: Positive = 1
    """The full mark; verdicts stay on this scale."""
    absent: Amount | None = None
    """The verdict of a record that has none, for forms that leave out zeros."""
    failures: bool = False
    """Whether the field lists failures: an empty list is right, any other is wrong."""
    fails: str = ""
    """Place of a word that says whether judging failed."""
    words: Mapping[str, Share | None] = field(default_factory=dict)
    """Values of the form's own words, as shares of the full mark; in lower case."""

    def __post_init__(self) -> None:
        if self.absent is not None and self.absent > self.scale:
            raise ValueError(f"absent must be at most the scale, {self.scale:g}")
        object.__setattr__(self, "words", {word.casefold(): worth for word, worth in self.words.items()})


@dataclass(frozen=True, slots=True)
class Verdict:
    value: float | None
    state: State
    said: str = ""
    """The message of an error, shortened."""
    votes: tuple[float | None, ...] = ()
    """Several verdicts, whose mean is `value`; None for a failed verdict."""


def verdict_of(stored: Any, scale: Scale, word: Any = None) -> Verdict:
    """Read one verdict.

    Args:
        stored: the record's value; None if it has none.
        word: the value at `scale.fails`.
    """
    if stored is None:
        return Verdict(scale.absent, "absent")
    verdict = _value(stored, scale)
    if scale.fails and isinstance(word, str) and word.strip().casefold() in FAILED:
        # A number that the file stores with a failure stays in the file's mean; the failure is counted.
        return replace(verdict, state="error", said=word or "empty label")
    return verdict


def _value(stored: Any, scale: Scale) -> Verdict:
    if isinstance(stored, dict):
        stored = list(stored.values())
    if isinstance(stored, list):
        if scale.failures:
            return Verdict(0.0 if stored else 1.0, "judged")
        votes = [_value(vote, scale) for vote in stored if not isinstance(vote, list | dict)]
        values = [vote.value for vote in votes if vote.value is not None]
        if values:
            return Verdict(sum(values) / len(values), "judged", votes=tuple(vote.value for vote in votes))
        return votes[0] if votes else Verdict(None, "absent")
    if isinstance(stored, str):
        return _word(stored, scale)
    if isinstance(stored, bool):
        return Verdict(float(stored) * scale.scale, "judged")
    if isinstance(stored, int | float) and 0 <= stored <= scale.scale and math.isfinite(stored):
        return Verdict(float(stored), "judged")
    huge = isinstance(stored, int) and stored.bit_length() > 64  # repr refuses integers with thousands of digits
    return Verdict(None, "error", "too large a number" if huge else repr(stored)[:40])


def _word(stored: str, scale: Scale) -> Verdict:
    word = stored.strip().casefold().strip(".!")
    words = {**WORDS, **scale.words}
    if word in words:
        worth = words[word]
        return Verdict(None, "not judged") if worth is None else Verdict(worth * scale.scale, "judged")
    # float() would read `1_0` as ten, and accept digits of any script.
    if len(word) > 40 or not re.fullmatch(NUMBER, word, re.ASCII):
        return Verdict(None, "error", stored[:40] or "empty label")
    return _value(float(word), scale)


FORMS = Path(__file__).resolve().parents[2] / "conf" / "claims" / "forms.yaml"
LONGEST_NAME = 200
"""Maximum number of characters of a conversation's name: the time of a pattern grows with the square of the name's length."""
NESTED = 20
"""Maximum depth of nested lists that are read as a text."""
LISTED = 20
"""Maximum number of listed irregularities of a kind; all are counted."""
SCORES = ("f1", "bleu1", "rouge_l_f")
"""Scores of the file's authors that are kept in addition to their verdict."""
FIELDS = (
    "question", "question_id", "conversation", "gold", "answer", "category", "verdict", *SCORES,
    "tokens", "seconds", "milliseconds", "outcome", "error", "cut",
)  # fmt: skip
OPTION = r"\{(\w+)\}"
ENTRIES = ("about", "records", "fields", "conversation", "verdict", "needs", "skip", "options", "reader")
"""Keys of a description of a form."""
ANSWERED = ("", "answered", "success", "success_empty")
"""Words of the field `outcome` for an answered question; after any other word a record without text is an error."""


def _place(text: str) -> str:
    if text.startswith("@") and not re.fullmatch(r"@(?:file|[1-9]\d?)(?:\|.*)?", text):
        raise ValueError(f"must be @file, or @1 for the key at the first `*`; found {text!r}")
    return text


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"must be a regular expression: {error}") from error
    return text


Place = Annotated[Text, AfterValidator(_place)]
Pattern = Annotated[Text, AfterValidator(_pattern)]


@dataclass(frozen=True, slots=True)
class Form:
    """A form of published answers."""

    __pydantic_config__ = STRICT

    name: Text
    about: Text
    records: Annotated[tuple[Text, ...], Field(min_length=1)]
    fields: Mapping[str, tuple[Place, ...]]
    pattern: Pattern
    """The part of a conversation's text that names it."""
    first: Natural
    """Number of the first conversation, where a number names it."""
    scale: Scale
    needs: str = ""
    skip: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    reader: Literal["", "paired"] = ""
    """`paired` puts two files together before they are read."""

    @property
    def takes(self) -> frozenset[str]:
        """Names of the form's options."""
        places = (*self.records, *(place for own in self.fields.values() for place in own))
        return frozenset(name for place in places for name in re.findall(OPTION, place))


@dataclass(slots=True)
class Contents:
    """Content of a set of files."""

    answers: list[Answer] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """Irregularities by kind."""
    listed: list[str] = field(default_factory=list)
    """The first of each kind, with their places."""
    fields_of_answers: int = 0
    """Number of records with a field for the answer, empty or not."""

    def note(self, kind: str, place: str, said: str = "") -> None:
        """Count an irregularity, and list it unless there are many of its kind."""
        self.counts[kind] += 1
        if self.counts[kind] <= LISTED:
            self.listed.append(f"{place}: {kind}{f' ({said})' if said else ''}")


class _Once(yaml.SafeLoader):
    """A YAML loader that refuses duplicate keys; the standard loader silently keeps the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        names = Counter(str(key.value) for key, _ in node.value)
        if twice := [name for name, count in names.items() if count > 1]:
            raise yaml.constructor.ConstructorError(None, None, f"{twice[0]} is there twice", node.start_mark)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> Any:
    """The value of a YAML file. Raises RunError if it cannot be read, is no YAML, is nested too deeply, or names a key twice."""
    try:
        return _Once(path.read_text(encoding="utf-8")).get_single_data()
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise RunError(f"{path.name}: {' '.join(str(error).split())[:300]}") from error


@lru_cache(maxsize=8)
def forms(path: Path = FORMS) -> Mapping[str, Form]:
    """Every form of a file of forms, by name. Raises RunError if the file describes a form wrongly."""
    described, usual = read_yaml(path), read_yaml(FORMS)["flat"]
    if not isinstance(described, dict) or not described:
        raise RunError(f"{path.name}: expected forms by name, each with its description")
    return {str(name): _form(path.name, name, given, usual) for name, given in described.items()}


def _form(file: str, name: object, given: object, usual: Mapping[str, Any]) -> Form:
    where = f"{file}: {name}"
    if not isinstance(given, dict):
        raise RunError(f"{where}: expected a description of a form")
    parts = {key: given.get(key, {}) for key in ("fields", "conversation", "verdict")}
    if wrong := [key for key, part in parts.items() if not isinstance(part, dict)]:
        raise RunError(f"{where}: {wrong[0]} must be a mapping")
    known = ((given, ENTRIES), (parts["fields"], FIELDS), (parts["conversation"], ("pattern", "first")))
    for part, names in known:
        if unknown := [key for key in part if key not in names]:
            raise RunError(f"{where}: {unknown[0]} is not known; there are: {', '.join(names)}")
    scale = typed(Scale, parts["verdict"], f"{where}: verdict: ")
    own = {key: value for key, value in given.items() if key not in parts}
    fields = {**dict.fromkeys(FIELDS, ()), **usual["fields"], **parts["fields"]}
    conversation = {**usual["conversation"], **parts["conversation"]}
    made = {"records": usual["records"], **own, **conversation, "fields": fields, "scale": scale, "name": name}
    return typed(Form, made, f"{where}: ")


def read_declared(files: Sequence[Parsed], form: Form, options: Mapping[str, str] | None = None) -> Contents:
    """The answers of a set of files.

    Raises:
        DataError: no file has records where the form has them, or an option is missing or unknown.
    """
    if unknown := [name for name in options or {} if name not in form.takes]:
        takes = ", ".join(f"{name}=" for name in sorted(form.takes)) or "none"
        raise DataError(f"the form {form.name} has no option {unknown[0]}=; it takes {takes}")
    chosen = {**form.options, **(options or {})}
    contents = Contents()
    for file in _paired(files) if form.reader == "paired" else files:
        spots = [_filled(spot, chosen) for spot in form.records]
        for spot in _first_with_answers(file, spots, form):
            _read(contents, form, chosen, spot)
    if not contents.answers:
        names = ", ".join(file.name for file in files[:3])
        raise DataError(f"{names}: no answers where the form {form.name} has them ({', '.join(form.records)})")
    return contents


def _filled(place: str, chosen: Mapping[str, str]) -> str:
    """A place with the values of its options filled in by plain substitution: no text of a form or an option acts as a format string."""

    def value(found: re.Match[str]) -> str:
        if found[1] not in chosen:
            raise DataError(f"the option {found[1]}= is missing")
        return chosen[found[1]]

    return re.sub(OPTION, value, place)


@dataclass(frozen=True, slots=True)
class _Spot:
    """A record with its surrounding values."""

    record: Mapping[str, Any]
    keys: tuple[str, ...]
    around: tuple[Any, ...]
    file: str

    @property
    def place(self) -> str:
        return f"{self.file}[{']['.join(self.keys)}]"

    def get(self, where: str) -> Any:
        """The value at a place; None where the place does not exist."""
        if where in self.record:
            return self.record[where]
        if where.isidentifier():
            return None
        path, _, words = where.partition("|")
        if path == "@file":
            return self.file
        if path.startswith("@"):
            number = int(path[1:]) - 1
            return self.keys[number] if number < len(self.keys) else None
        if path.startswith("^"):
            holders = (each for each in reversed(self.around) if isinstance(each, dict) and path[1:] in each)
            return next((holder[path[1:]] for holder in holders), None)
        if "+" in path:
            parts = [amount_of(self.get(part)) for part in path.split("+")]
            known = [part for part in parts if part is not None]
            return sum(known) if len(known) == len(parts) else None
        value: Any = self.record
        for part in path.split("."):
            if not isinstance(value, dict):
                return None
            keys = [part] if part in value else [key for key in value if part[:1] == "*" and key.endswith(part[1:])]
            if len(keys) != 1:
                return None
            value = value[keys[0]]
        if words:
            return value[len(words) :] if isinstance(value, str) and value.startswith(words) else None
        return value

    def first(self, places: Sequence[str], chosen: Mapping[str, str]) -> Any:
        """The value at the first place that has one; None where none has."""
        for place in places:
            if (value := self.get(_filled(place, chosen) if "{" in place else place)) is not None:
                return value
        return None


def _first_with_answers(file: Parsed, places: Sequence[str], form: Form) -> list[_Spot]:
    """The records at the first place where at least one has a question."""
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
    """Add one record's answer, or count the record's fault."""
    if wrong := _no_answer(form, spot):
        contents.note(wrong, spot.place)
        return
    stored = {name: spot.first(places, chosen) for name, places in form.fields.items()}
    question, question_id, text = (_plain(stored[name]) for name in ("question", "question_id", "answer"))
    if not question and not question_id:
        contents.note("record without a question", spot.place)
        return
    if max(len(text), len(question)) > MAX_TEXT or not encodable(text + question + question_id):
        contents.note("record whose text is no text", spot.place)
        return
    missing = stored["answer"] is None or isinstance(stored["answer"], dict)
    contents.fields_of_answers += any(place.partition(".")[0] in spot.record for place in form.fields["answer"])
    outcome, error = _outcome(stored, text, missing)
    if outcome == "answered" and not text.strip():
        contents.note("blank answer", spot.place)
    elif missing:
        contents.note("missing answer", spot.place)
    conversation, position = _conversation(form, stored["conversation"])
    if len(_plain(stored["conversation"])) > LONGEST_NAME:
        contents.note("conversation whose name is too long", spot.place)
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
            _verdict(contents, form, spot, stored["verdict"]) | _scores(contents, spot, stored),
            outcome,
            error,
            stored["cut"] is True,
            int(tokens) if tokens else None,  # files write 0 where the recalled text was not available
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
    """The reason why a record holds no answer; empty where it holds one."""
    if not isinstance(spot.record, dict):
        return "record that is no object"
    if form.needs and form.needs not in spot.record:
        return f"record without {form.needs}"
    if any(_plain(spot.record.get(key)) in values for key, values in form.skip.items()):
        return "record of another data set"
    return ""


def _verdict(contents: Contents, form: Form, spot: _Spot, stored: Any) -> dict[str, tuple[float | None, ...]]:
    """The verdict as the grade `judge`, on a scale from 0 to 1; no grade if the record has no verdict."""
    word = spot.get(form.scale.fails) if form.scale.fails else None
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


def _scores(contents: Contents, spot: _Spot, stored: Mapping[str, Any]) -> dict[str, tuple[float | None, ...]]:
    """The authors' scores from 0 to 1; one above 1, such as a percentage, is counted and left out."""
    scores = {name: score for name in SCORES if (score := amount_of(stored[name])) is not None}
    for name in (name for name, score in scores.items() if score > 1):
        contents.note(f"{name} above 1", spot.place, f"{scores[name]:g}")
    return {name: (score,) for name, score in scores.items() if score <= 1}


def _conversation(form: Form, stored: Any) -> tuple[str, int | None]:
    """The name of the conversation, and its position where a number names it; both empty where the file has none."""
    text = _plain(stored)
    named = re.search(form.pattern, text) if 0 < len(text) <= LONGEST_NAME else None
    if named is None:
        return "", None
    number = int(named[0]) - form.first if re.fullmatch(r"\d{1,6}", named[0]) else None
    return named[0], number


def _plain(value: Any, nested: int = NESTED) -> str:
    """A field as text: published files hold numbers, true and false, and lists of texts among their texts."""
    if isinstance(value, list):
        return ", ".join(_plain(each, nested - 1) for each in value) if nested else ""
    if isinstance(value, int) and value.bit_length() > 64:
        return ""
    return value if isinstance(value, str) else str(value) if isinstance(value, int | float) else ""


def encodable(text: str) -> bool:
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
