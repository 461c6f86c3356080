"""Naive RAG: messages are packed into blocks of about 180 tokens, and the top 20 by cosine are recalled (xMemory §5.1, Table 5)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from data_loaders.schema import Question, Unit
from memsys.interface import Item, MemorySystem, Recall, dated, positive, union
from memsys.tokens import count_tokens
from memsys.vectors import Embedder, Vectors, best, cosines


class NaiveRag(MemorySystem):
    """Recalls the `k` blocks most similar to the question.

    A block consists of whole messages of one session, up to `chunk_tokens` (o200k). It is closed when the next message would exceed
    that size, and at the end of a session. A longer message is a block of its own, not truncated. The open block is searched too.

    Raises:
        ValueError: `k` or `chunk_tokens` is below 1.
    """

    READ_KNOBS: ClassVar = ("k",)
    ENTRIES: ClassVar = "_blocks"
    UNIT: ClassVar = {"rule": "utterance"}

    def __init__(self, embedder: Embedder, k: int = 20, chunk_tokens: int = 180) -> None:
        self.embedder = embedder
        self.k, self.chunk_tokens = positive("k", k), positive("chunk_tokens", chunk_tokens)
        self._blocks: list[list[Unit]] = []
        self._vectors = Vectors()
        self._open = False

    def write(self, unit: Unit) -> None:
        same_session = self._open and self._blocks[-1][-1].session_id == unit.session_id
        if same_session and count_tokens(_text([*self._blocks[-1], unit])) <= self.chunk_tokens:
            self._blocks[-1].append(unit)
        else:
            self._close()
            self._blocks.append([unit])
            self._open = True

    def end_session(self, session_id: str) -> None:
        self._close()

    def read(self, question: Question) -> Recall:
        if not self._blocks:
            return Recall(())
        query = self.embedder.embed([question.text], query=True)[0]
        scores = self._vectors.similarities(query)
        if self._open:
            scores = np.append(scores, cosines(self.embedder.embed([_text(self._blocks[-1])]), query))
        items = []
        for index in best(scores, self.k):
            block, sources = self._blocks[index], union(unit.turn_ids for unit in self._blocks[index])
            text = dated(_text(block), block[0].time_text)
            items.append(Item(f"block-{index}", text, float(scores[index]), sources, "chunk"))
        return Recall(tuple(items))

    def _close(self) -> None:
        if self._open:
            self._vectors.add(self.embedder.embed([_text(self._blocks[-1])])[0])
            self._open = False


def _text(block: list[Unit]) -> str:
    return "\n".join(unit.text for unit in block)
