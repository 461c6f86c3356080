"""Join published answers of any form with the questions of a data set: by conversation, text, category and gold; never by a guess.

The conversation is used if the file names it, by its id or by its number. It is not used if conversations have numbers as names (some
files count from 0) and no two questions have the same text. Category and gold only distinguish questions with the same text, because
names of categories differ between files: the category is always the data set's. Questions that agree in text and gold are
interchangeable, since every score of an answer is the same for each of them; they are assigned in the order of the data set. Two answers
to one question are duplicates: if they are equal the first counts, if they differ none counts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from itertools import groupby
from pathlib import Path
from typing import Any

from data_loaders import beam, locomo, longmemeval
from data_loaders.schema import Case, DataError, Gold
from data_loaders.source import data_root, find, manifest
from eval.files.records import Outcome
from eval.report.counted import counted

Grades = Mapping[str, tuple[float | None, ...]]
"""Grades by metric (judge, f1, bleu1 …), from 0 to 1, one per repeat; None for a failed repeat. A metric without grades is left out."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of a published file."""

    place: str
    """Place in the file, for messages."""
    conversation: str
    """The file's own name of the conversation."""
    question: str
    """The question's text; empty where `question_id` names it."""
    answer: str
    position: int | None = None
    """The conversation's position in the data set's file, where the form numbers conversations."""
    question_id: str = ""
    category: str = ""
    """The file's name or number of the category; empty if it has none."""
    gold: str | None = None
    grades: Grades = field(default_factory=dict)
    outcome: Outcome = "answered"
    error: str = ""
    cut: bool = False
    recalled_tokens: int | None = None
    recall_seconds: float | None = None

    def grade(self, metric: str) -> float | None:
        """The mean of a metric's repeats; None without repeats."""
        known = [value for value in self.grades.get(metric, ()) if value is not None]
        return sum(known) / len(known) if known else None


def amount_of(value: Any) -> float | None:
    """A time or a count if it is a finite number of at least 0; None for any other value, which counts as not recorded."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value) if math.isfinite(value) and value >= 0 else None
    except OverflowError:  # an integer with hundreds of digits
        return None


@dataclass(frozen=True, slots=True)
class Asked:
    """A question of a data set, with the data that scores need."""

    case_id: str
    question_id: str
    text: str
    gold: str
    category: str
    """Category in the data set: `1` to `5` for LoCoMo, the question type for LongMemEval, the ability for BEAM."""
    answerable: bool = True
    also: tuple[str, ...] = ()
    """Further gold answers."""

    def is_gold(self, text: str | None) -> bool:
        """Whether a file's gold answer is one of the data set's."""
        return (text or "").strip() in (each.strip() for each in (self.gold, *self.also))


@dataclass(frozen=True)
class Questions:
    title: str
    asked: tuple[Asked, ...]
    cases: tuple[str, ...]
    """Names of the conversations in the order of the data set's file."""

    @cached_property
    def by_text(self) -> Mapping[str, tuple[Asked, ...]]:
        return self._grouped(lambda each: each.text.strip())

    @cached_property
    def by_id(self) -> Mapping[str, tuple[Asked, ...]]:
        return self._grouped(lambda each: each.question_id)

    def _grouped(self, name: Callable[[Asked], str]) -> dict[str, tuple[Asked, ...]]:
        return {key: tuple(same) for key, same in groupby(sorted(self.asked, key=name), name)}

    @cached_property
    def only_numbered(self) -> bool:
        """Whether a question's text identifies it better than the conversation that a file names."""
        return len(self.by_text) == len(self.asked) and all(name.isdecimal() for name in self.cases)


@dataclass(slots=True)
class Matched:
    """Answers with their questions, and answers without a question."""

    pairs: list[tuple[Asked, Answer]] = field(default_factory=list)
    unjoined: list[str] = field(default_factory=list)
    """Places of unjoined answers, with reasons."""
    without_question: list[Answer] = field(default_factory=list)
    """The answers that `unjoined` names, without the duplicates."""
    duplicates: list[str] = field(default_factory=list)
    interchangeable: int = 0
    other_gold: list[str] = field(default_factory=list)
    """Joined answers whose gold differs from the data set's, with both golds."""
    other_category: list[str] = field(default_factory=list)
    """Joined answers whose category number differs from the data set's, with both numbers."""
    golds: int = 0
    """Number of joined answers that have a gold."""

    @property
    def only_golds(self) -> list[str]:
        """A warning if no gold was read and every answer is its question's gold: the field that was read may hold the golds; else empty."""
        same = [asked.is_gold(answer.answer) for asked, answer in self.pairs if asked.answerable]
        if self.golds or len(same) < 2 or not all(same):
            return []
        return [
            f"each of {len(same)} answers is the data set's gold, word for word; the system's may be in another field"
        ]


def own_questions(answers: Sequence[Answer]) -> list[tuple[Asked, Answer]]:
    """Each answer with the question, gold and category of its own file, for data sets whose questions are not available."""
    return [
        (
            Asked(
                answer.conversation or "one",
                answer.question_id or f"{answer.conversation}_{number}",
                answer.question,
                answer.gold or "",
                answer.category,
            ),
            answer,
        )
        for number, answer in enumerate(answers)
    ]


def match(answers: Sequence[Answer], questions: Questions) -> Matched:
    """Find the question of every answer."""
    matched = Matched()
    groups: dict[tuple[Asked, ...], list[Answer]] = defaultdict(list)
    for answer in answers:
        candidates = _candidates(answer, questions)
        if isinstance(candidates, str):
            matched.unjoined.append(f"{answer.place} {(answer.question or answer.question_id)[:100]!r}: {candidates}")
            matched.without_question.append(answer)
        else:
            groups[candidates].append(answer)
    for candidates, own in groups.items():
        kept = own
        if len(own) > len(candidates):
            equal = len({answer.answer for answer in own}) == 1
            kept = own[: len(candidates)] if equal else []
            why = f"{len(own)} {'equal' if equal else 'different'} answers to {len(candidates)} question"
            matched.duplicates += [f"{answer.place} {answer.question[:100]!r}: {why}" for answer in own[len(kept) :]]
        matched.interchangeable += len(kept) if len(candidates) > 1 else 0
        matched.pairs += zip(candidates, kept, strict=False)
    for asked, answer in matched.pairs:
        if answer.gold is not None and asked.answerable:
            matched.golds += 1
            if not asked.is_gold(answer.gold):
                both = f"the file's gold is {answer.gold[:80]!r}, ours {asked.gold[:80]!r}"
                matched.other_gold.append(f"{asked.question_id}: {both}")
        if answer.category.isdecimal() and asked.category.isdecimal() and answer.category != asked.category:
            both = f"the file's category is {answer.category[:20]}, ours {asked.category}"
            matched.other_category.append(f"{asked.question_id}: {both}")
    return matched


def _candidates(answer: Answer, questions: Questions) -> tuple[Asked, ...] | str:
    """The interchangeable questions of an answer, or the reason why there are none."""
    named = questions.by_id.get(answer.question_id, ())
    same = named or questions.by_text.get(answer.question.strip(), ())
    by = "text" if answer.question else "id"
    if not same:
        return f"no question of this {by}"
    if case := _case(answer, questions):
        same = tuple(each for each in same if each.case_id == case)
        if not same:
            return f"no question of this {by} in {case}"
    # This is the only name that all files give to the same category.
    adversarial = "adversarial" in answer.category.casefold()
    same = tuple(each for each in same if each.category == answer.category or adversarial > each.answerable) or same
    same = tuple(each for each in same if each.answerable and each.is_gold(answer.gold)) or same
    if len({(each.gold, each.category) for each in same}) > 1:
        return f"{counted(len(same), 'question')} of this text, which neither conversation nor gold tells apart"
    return same


def _case(answer: Answer, questions: Questions) -> str:
    """The conversation that an answer names; empty if it names no conversation of the data set."""
    if questions.only_numbered:
        return ""
    if answer.conversation in questions.cases:
        return answer.conversation
    known = answer.position is not None and 0 <= answer.position < len(questions.cases)
    return questions.cases[answer.position] if known and answer.position is not None else ""


LONGMEMEVAL = ("longmemeval/longmemeval_oracle.json", "longmemeval/longmemeval_questions_500.json")
"""Files with all 500 questions: the smallest official one, else the list of the questions alone."""


def of_cases(title: str, cases: Sequence[Case]) -> Questions:
    """The questions of loaded cases, each with the category that `category_of` gives."""
    asked = [
        Asked(
            case.id,
            question.id,
            question.text,
            gold.answers[0] if gold.answers else "",
            category_of(gold),
            gold.answerable,
            gold.answers[1:],
        )
        for case in cases
        for question, gold in case.questions
    ]
    return Questions(title, tuple(asked), tuple(case.id for case in cases))


def category_of(gold: Gold) -> str:
    """The benchmark's number of a category, which published files use; its name if it has no number."""
    return str(gold.detail.get("category_id", gold.category))


def of_locomo(root: Path | None) -> Questions:
    """LoCoMo's 1,986 questions, with their category numbers. Raises DataError where the file is missing or damaged."""
    return of_cases("LoCoMo", locomo.load(find("locomo/locomo10.json", root=root).path))


def of_longmemeval(root: Path | None) -> Questions:
    """LongMemEval's 500 questions; every question is a case of its own. Raises DataError where no file has them."""
    missing = []
    for file in LONGMEMEVAL:
        try:
            return of_cases("LongMemEval", longmemeval.load_questions(find(file, root=root, unpinned=True).path))
        except DataError as error:
            missing.append(str(error))
    raise DataError(missing[0])


def of_beam(tier: str, root: Path | None) -> Questions | None:
    """The questions of a length tier of BEAM; None if its files of questions are missing.

    An abstention has a reference text and counts in the official mean, so every question counts as answerable.
    Raises DataError if a file is damaged.
    """
    folder = f"beam/chats/{tier}"
    files = [name for name in manifest() if name.startswith(f"{folder}/") and name.endswith("/probing_questions.json")]
    found = [find(name, root=root).path for name in files if (data_root(root) / name).is_file()]
    if len(found) < len(files) or not files:
        return None
    questions = of_cases(f"BEAM {tier}", beam.load(data_root(root) / folder, chats="none"))
    return replace(questions, asked=tuple(replace(each, answerable=True) for each in questions.asked))


TIERS = ("100K", "500K", "1M")
"""Lengths of BEAM whose questions are joined."""
LOADERS: Mapping[str, Callable[[Path | None], Questions | None]] = {
    "LoCoMo": of_locomo,
    "LongMemEval": of_longmemeval,
    **{f"BEAM {tier}": partial(of_beam, tier) for tier in TIERS},
}
"""Data sets whose questions are joined; answers to other data sets are scored with the gold of their own file."""


@lru_cache(maxsize=4)
def questions_of(title: str, root: Path | None) -> Questions | None:
    """The questions of a data set, `BEAM 1M` for a tier; None for a data set that is not joined.

    Raises:
        DataError: its file is missing or damaged.
    """
    loader = LOADERS.get(title)
    return None if loader is None else loader(root)
