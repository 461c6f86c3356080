"""The controls that every table needs: recalling nothing, everything, and the most recent."""

from __future__ import annotations

from typing import ClassVar

from data_loaders.schema import Question, Unit
from memsys.interface import Item, MemorySystem, Recall, positive, unit_item
from memsys.tokens import count_tokens


class Nothing(MemorySystem):
    """Recalls nothing: what the reader knows, or guesses, without a memory."""

    def write(self, unit: Unit) -> None:
        """Forget the unit at once."""

    def read(self, question: Question) -> Recall:
        return Recall(())


class FullHistory(MemorySystem):
    """Recalls the whole history in order, the earliest units dropped when it is longer than `max_tokens`."""

    READ_KNOBS: ClassVar = ("max_tokens",)

    def __init__(self, max_tokens: int | None = None) -> None:
        self.max_tokens = max_tokens
        self._items: list[Item] = []

    def write(self, unit: Unit) -> None:
        self._items.append(unit_item(unit))

    def read(self, question: Question) -> Recall:
        return Recall(tuple(self._items if self.max_tokens is None else self._tail(self.max_tokens)))

    @property
    def held(self) -> int:
        return len(self._items)

    def _tail(self, budget: int) -> list[Item]:
        kept: list[Item] = []
        for item in reversed(self._items):
            budget -= count_tokens(item.text)
            if budget < 0:
                break
            kept.append(item)
        return kept[::-1]


class Recency(MemorySystem):
    """Recalls the last `k` units, in order."""

    READ_KNOBS: ClassVar = ("k",)

    def __init__(self, k: int = 10) -> None:
        self.k = positive("k", k)
        self._items: list[Item] = []

    def write(self, unit: Unit) -> None:
        self._items.append(unit_item(unit))

    def read(self, question: Question) -> Recall:
        return Recall(tuple(self._items[max(0, len(self._items) - self.k) :]))

    @property
    def held(self) -> int:
        return len(self._items)
