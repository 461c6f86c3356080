"""What a run writes down: one line a question, one line a step, one line a score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Outcome = Literal["answered", "error", "aborted"]


@dataclass(frozen=True, slots=True)
class Prediction:
    """What was recalled and said for one question: no times, no gold, no repeated texts."""

    case_id: str
    question_id: str
    answer: str
    items: tuple[str, ...]
    """Ids of the recalled items, best first; their texts stand once in `items.jsonl`."""
    outcome: Outcome
    error: str = ""


@dataclass(frozen=True, slots=True)
class Score:
    """One metric's verdict on one prediction."""

    value: float | None
    """None when it could not be judged: counted and shown, never averaged in."""
    why: str = ""
    repeat: int = 0
    detail: Mapping[str, Any] = field(default_factory=dict)
