"""The common record of all forms: one answer to one question, with the grades of its authors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eval.files.records import Outcome

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
    known = isinstance(value, int | float) and not isinstance(value, bool) and _finite(value) and value >= 0
    return float(value) if known else None


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer with hundreds of digits
        return False
