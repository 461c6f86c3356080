"""BM25 over the units, and the lexical index that other systems use too.

The settings are those of SegTreeMem App. E (k1 1.5, b 0.75, K = 10), which names neither idf nor stemmer: Robertson's formula with Lucene's
idf, computed by `bm25s`, over Porter stems.
"""

from __future__ import annotations

import re
from typing import ClassVar

import numpy as np

from data_loaders.schema import Question, Unit
from memsys.interface import MemorySystem, Recall, positive, unit_item
from memsys.lean import hide_modules
from memsys.tokens import stem
from memsys.vectors import best


class BM25(MemorySystem):
    """Recalls the `k` units with the highest BM25 score, best first.

    Words are lower-cased and stemmed. A unit that shares no word with the question is not recalled.
    `consolidate` rebuilds the index when units have been written since; a `read` before that uses the last index.

    Args:
        k: maximum number of units of a recall.
        k1, b: parameters of BM25: saturation of term counts, and weight of the unit's length.

    Raises:
        ValueError: `k` is below 1.
    """

    READ_KNOBS: ClassVar = ("k",)
    ENTRIES: ClassVar = "_units"

    def __init__(self, k: int = 10, k1: float = 1.5, b: float = 0.75) -> None:
        self.k, self.k1, self.b = positive("k", k), k1, b
        self._units: list[Unit] = []
        self._tokens: list[list[str]] = []
        self._index: object | None = None
        self._indexed = 0

    def write(self, unit: Unit) -> None:
        self._units.append(unit)
        self._tokens.append(words(unit.text))

    def consolidate(self) -> None:
        if self._indexed == len(self._units):
            return
        self._index = bm25_index(self._tokens, self.k1, self.b)
        self._indexed = len(self._units)

    def read(self, question: Question) -> Recall:
        scores = bm25_scores(self._index, words(question.text), self._indexed)
        ranked = [index for index in best(scores, self.k) if scores[index] > 0]
        return Recall(tuple(unit_item(self._units[index], float(scores[index])) for index in ranked))


def words(text: str) -> list[str]:
    """Porter stems of the words of a text, in lower case."""
    # The stem of the "s" in "Mara's" is empty.
    return [stemmed for word in plain_words(text) if (stemmed := stem(word))]


def plain_words(text: str) -> list[str]:
    """The runs of letters and digits in a text, in lower case. A script without spaces (Chinese, Japanese, Thai) gives a word a clause."""
    return re.findall(r"[^\W_]+", text.lower())


def bm25_index(documents: list[list[str]], k1: float, b: float) -> object | None:
    """A `bm25s` index over tokenised documents; None where no document has a word."""
    import logging

    # It uses SciPy only where `csc_backend` asks for it.
    with hide_modules("numba", "scipy"):
        import bm25s

    logging.getLogger("bm25s").setLevel(logging.WARNING)  # otherwise it logs every index it builds
    if not any(documents):
        return None
    index = bm25s.BM25(k1=k1, b=b, method="lucene")
    index.index(documents, show_progress=False)
    return index  # type: ignore[no-any-return]


def bm25_scores(index: object | None, query: list[str], count: int) -> np.ndarray:
    """Scores of the query against every indexed document, float32 [count]."""
    # `bm25s` has "" in every vocabulary and then fails on it.
    known = [word for word in query if index is not None and word and word in index.vocab_dict]  # type: ignore[attr-defined]
    if not known:
        return np.zeros(count, dtype=np.float32)
    scores: np.ndarray = index.get_scores(known)  # type: ignore[union-attr]
    return scores
