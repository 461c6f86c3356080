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
    """Hashes of the recalled items, in the order in which they were returned; their texts stand once in `items.jsonl`."""
    scores: tuple[float, ...]
    """The memory's own score of each item, to four decimals."""
    outcome: Outcome
    error: str = ""
    cut: bool = False
    """Whether the answer was cut at the reader's limit: it is scored as it is, and counted."""


@dataclass(frozen=True, slots=True)
class Effort:
    """What one step cost: a unit written, a consolidation, a read, an answer, a judgement."""

    case_id: str
    subject: str
    """Unit id, question id, or empty."""
    phase: str
    """embed, write, consolidate, read, answer or judge."""
    held: int
    """Entries in the memory after the step."""
    calls: Mapping[str, int]
    attempts: Mapping[str, int]
    failures: Mapping[str, int]
    parse_failures: Mapping[str, int]
    """Each by purpose."""
    notes: Mapping[str, int]
    """Fallbacks, truncations and caps, by name."""
    sent: int
    """Calls that were not answered from the cache."""
    tokens_in: int
    tokens_out: int
    tokens_cached: int
    tokens_reasoning: int
    embedding_calls: int
    embedding_tokens: int
    provider_seconds: float
    """Critical path: recorded seconds of each call, calls made together counted by their longest."""
    provider_seconds_sum: float
    own_cpu_seconds: float
    context_tokens: int = 0
    """Answers: tokens of the recalled text shown to the reader."""
    dropped_items: int = 0
    """Answers: recalled items that did not fit the token budget."""
    roles: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Counts `calls`, `tokens_in`, `tokens_out` and `tokens_cached` by role, of models with a price of their own (the probe).
    They are part of the totals."""


@dataclass(frozen=True, slots=True)
class Score:
    """One metric's verdict on one prediction."""

    value: float | None
    """None when it could not be judged: counted and shown, never averaged in."""
    why: str = ""
    repeat: int = 0
    detail: Mapping[str, Any] = field(default_factory=dict)
