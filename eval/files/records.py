"""The records that a run writes: one line per question, one per step, one per score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Outcome = Literal["answered", "recalled", "error", "aborted"]
"""`recalled`: the memory was read, and the reader is not asked, because only the recall counts (`Gold.supports`)."""

BUILD_FAILED = "build: "
"""Beginning of the error of a question that was not asked because the build failed before."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Recall and answer of one question; no times, no gold, and no texts of items.

    A new field has a default, so that older files still open; its type says what a line may hold (`eval.files.fields.BY_TYPE`), and
    `eval.running.question` fills it.
    """

    case_id: str
    question_id: str
    answer: str
    items: tuple[str, ...]
    """Hashes of the recalled items, in the order in which they were returned; `items.jsonl` holds each text once."""
    scores: tuple[float, ...]
    """The memory's own score of each item, to four decimals."""
    outcome: Outcome
    error: str = ""
    cut: bool = False
    """Whether the answer was cut at the reader's token limit; it is scored as it is, and counted."""

    @property
    def empty(self) -> bool:
        """Whether the reader's reply has no words; it is scored 0, and counted."""
        return self.outcome == "answered" and not self.answer.strip()

    @property
    def ranking(self) -> list[int]:
        """Places of the items by the memory's own scores, best first: the order of a recall may be meant for the reader."""
        return sorted(range(len(self.items)), key=lambda place: -self.scores[place])


@dataclass(frozen=True, slots=True)
class Effort:
    """The cost of one step: embedding, writing a unit, consolidating, reading, answering or judging."""

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
    """This count and the three above are by purpose of the call."""
    notes: Mapping[str, int]
    """Counts of fallbacks, truncations and caps, by name."""
    sent: int
    """Calls that were not answered from the cache."""
    tokens_in: int
    tokens_out: int
    tokens_cached: int
    tokens_reasoning: int
    embedding_calls: int
    embedding_tokens: int
    provider_seconds: float
    """Seconds on the critical path: of calls made together only the longest counts."""
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
    """One metric's score of one prediction."""

    value: float | None
    """None when there is no verdict; such scores are counted and shown, and are never part of a mean."""
    why: str = ""
    repeat: int = 0
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Read:
    """One of several reads that are scored together (`eval.judging.score`)."""

    prediction: Prediction
    texts: tuple[str, ...]
    """The recalled texts, in the memory's order."""
