"""Dense retrieval over the units: cosine of embeddings, K = 10 (SegTreeMem App. E)."""

from __future__ import annotations

from typing import ClassVar

from data_loaders.schema import Question, Unit
from memsys.interface import MemorySystem, Recall, positive, unit_item
from memsys.vectors import Embedder, Vectors


class Dense(MemorySystem):
    """Recalls the `k` units most similar to the question by cosine, best first.

    Raises:
        ValueError: `k` is below 1.
    """

    READ_KNOBS: ClassVar = ("k",)
    ENTRIES: ClassVar = "_units"

    def __init__(self, embedder: Embedder, k: int = 10) -> None:
        self.embedder, self.k = embedder, positive("k", k)
        self._units: list[Unit] = []
        self._vectors = Vectors()

    def write(self, unit: Unit) -> None:
        self._vectors.add(self.embedder.embed([unit.text])[0])
        self._units.append(unit)

    def read(self, question: Question) -> Recall:
        if not self._units:
            return Recall(())
        query = self.embedder.embed([question.text], query=True)[0]
        return Recall(tuple(unit_item(self._units[index], score) for index, score in self._vectors.top(query, self.k)))
