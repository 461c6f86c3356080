"""What every format is read into: one answer to one question, with the grades that its authors gave."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from data_loaders.raw import get
from data_loaders.schema import DataError
from eval.records import Outcome

Grades = Mapping[str, tuple[float | None, ...]]
"""Grades by metric (judge, f1, bleu1 …), one a repeat; None where the file has none for this answer."""


MOST_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Answer:
    """One line of a published file."""

    place: str
    """Where it stands in the file, for messages."""
    conversation: str
    """The file's own name of the conversation."""
    question: str
    """The question's text; empty where `question_id` names it."""
    answer: str
    position: int | None = None
    """The conversation's position in the data set's file, where the format names conversations like this."""
    question_id: str = ""
    category: str = ""
    """The file's name or number of the category; empty where it has none."""
    gold: str | None = None
    grades: Grades = field(default_factory=dict)
    outcome: Outcome = "answered"
    error: str = ""
    cut: bool = False
    recalled_tokens: int | None = None
    recall_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Format:
    """A format of published answers."""

    name: str
    about: str
    fits: Callable[[Any], bool]
    """Whether a parsed file looks like this format."""
    read: Callable[[Any], list[Answer]]
    """Its answers; raises DataError where a record is damaged."""


def text_of(value: Any) -> str:
    """A gold answer or category as text: published files hold numbers among them."""
    return "" if value is None else str(value)


def plain_text(record: Any, key: str, where: str) -> str:
    """A field that is text, or a number, which becomes text.

    Raises:
        DataError: the field is missing or something else.
    """
    return text_of(get(record, key, (str, int, float), where))


def grade_of(value: Any, where: str) -> float | None:
    """A grade as a number; None where the file has none.

    Raises:
        DataError: it is neither a number nor true or false.
    """
    if value is None:
        return None
    if not isinstance(value, bool | int | float) or not _finite(value):
        raise DataError(f"{where}: expected a number, true or false, found {_short(value)}")
    return float(value)


def amount_of(value: Any) -> float | None:
    """A time or a count that is a finite number of at least 0; None for anything else, which is as good as not recorded."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and _finite(value) and value >= 0
    return float(value) if known else None


def _short(value: Any) -> str:
    return "too large a number" if isinstance(value, int) else repr(value)[:80]


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number of hundreds of digits
        return False


def position_of(digits: str) -> int | None:
    """The number of a conversation; None for a text that is no number, or a number of more digits than any data set has."""
    return int(digits) if digits.isdecimal() and len(digits) <= MOST_DIGITS else None


def each_record(raw: Any, answer_of: Callable[[str, Any, str], Answer]) -> list[Answer]:
    """The answers of a file that `grouped` knows, by conversation, record and the record's place in the file."""
    return [
        answer_of(conversation, record, f"[{conversation}][{number}]")
        for conversation, records in raw.items()
        for number, record in enumerate(records)
    ]


def grouped(raw: Any, needed: set[str]) -> bool:
    """Whether a file is a mapping of lists of records, and the first record has these fields."""
    if not isinstance(raw, dict) or not all(isinstance(records, list) for records in raw.values()):
        return False
    first = next((record for records in raw.values() for record in records), None)
    return isinstance(first, dict) and needed <= first.keys()
