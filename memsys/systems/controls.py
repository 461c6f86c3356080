"""Controls: memories that recall nothing, the whole history, or the most recent units, and a memory that refuses."""

from __future__ import annotations

from typing import ClassVar

from data_loaders.schema import Question, Unit
from memsys.interface import Item, MemorySystem, Recall, positive, unit_item
from memsys.tokens import count_tokens, first_within

REFUSAL = (
    '{"action": "refuse", "answer": "This is not for you to know.", "answer_structured": {}, "used_record_ids": []}'
)
"""A refusal in the form that GateMem's metrics read."""


class Nothing(MemorySystem):
    """Recalls nothing, so that the reader answers from its own knowledge or guesses."""

    WAIVED: ClassVar = {"empties": "it recalls nothing on purpose"}

    def write(self, unit: Unit) -> None:
        """Ignore the unit."""

    def read(self, question: Question) -> Recall:
        return Recall(())


class RefuseAll(Nothing):
    """Recalls nothing and refuses every question, so that no reader is asked."""

    WAIVED: ClassVar = {"failures reported as success": "it stores nothing and refuses on purpose"}

    def read(self, question: Question) -> Recall:
        return Recall((), answer=REFUSAL)


class FullHistory(MemorySystem):
    """Recalls the whole history in order; where it is longer than `max_tokens`, the earliest units are left out.

    A unit's score is its place, so that a reader's budget leaves out the earliest units, too.

    Args:
        max_tokens: maximum number of o200k tokens of a recall; None for no limit.
    """

    READ_KNOBS: ClassVar = ("max_tokens",)
    ENTRIES: ClassVar = "_items"

    def __init__(self, max_tokens: int | None = None) -> None:
        self.max_tokens = max_tokens
        self._items: list[Item] = []

    def write(self, unit: Unit) -> None:
        self._items.append(unit_item(unit, float(len(self._items))))

    def read(self, question: Question) -> Recall:
        if self.max_tokens is None:
            return Recall(tuple(self._items))
        latest = first_within(reversed(self._items), self.max_tokens, lambda item: count_tokens(item.text))
        return Recall(tuple(latest[::-1]))


class Recency(FullHistory):
    """Recalls the last `k` units, in order, with their places as scores.

    Raises:
        ValueError: `k` is below 1.
    """

    READ_KNOBS: ClassVar = ("k",)

    def __init__(self, k: int = 10) -> None:
        super().__init__()
        self.k = positive("k", k)

    def read(self, question: Question) -> Recall:
        return Recall(tuple(self._items[max(0, len(self._items) - self.k) :]))
