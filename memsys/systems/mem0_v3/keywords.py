"""The keyword channel of Mem0 v3: BM25 with the constants for which its squashing curve was calibrated.

The reference stores memories with `fastembed`'s BM25 vectors in Qdrant (mem0ai 2.2.1): k1 1.2, b 0.75, a fixed average length of 256
words instead of the real one, the numerator (k1 + 1), and Qdrant's idf. It encodes a question like a memory (`embed`, never
`query_embed`), so each term of a question has the same weight as in a memory of that length: 1.7 for a term that a short question has
once, more if it is repeated. Stop words are removed from memories and questions before terms are counted to choose the squashing curve.

Deviations: Porter stems replace Snowball stems of spaCy's lemmas, and NLTK's list of stop words (in `bm25s`, the same as in `fastembed`)
replaces spaCy's longer one. The release counts a participle in -ing twice, as itself and as its lemma; here it counts once.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from memsys.lean import hide_modules
from memsys.systems.bm25 import plain_words
from memsys.tokens import stem

K1, B, AVERAGE_LENGTH = 1.2, 0.75, 256
_SQUASHING = ((3, 5.0, 0.7), (6, 7.0, 0.6), (9, 9.0, 0.5), (15, 10.0, 0.5), (math.inf, 12.0, 0.5))
"""Maximum number of terms of the query, and the midpoint and steepness of the squashing curve for them."""


class KeywordIndex:
    """An inverted index of memories; an added memory is searched at once."""

    def __init__(self) -> None:
        self._postings: dict[str, list[tuple[int, float]]] = {}
        self._count = 0

    def add(self, terms: Sequence[str]) -> None:
        """Add the next memory by its terms."""
        for term, weight in _weights(terms).items():
            self._postings.setdefault(term, []).append((self._count, weight))
        self._count += 1

    def scores(self, terms: Sequence[str]) -> np.ndarray:
        """BM25 of every memory with the weighted terms of a question, float64 [n]; 0 where no term is shared."""
        scores = np.zeros(self._count)
        for term, asked in _weights(terms).items():
            postings = self._postings.get(term, ())
            idf = math.log(1 + (self._count - len(postings) + 0.5) / (len(postings) + 0.5))
            for number, weight in postings:
                scores[number] += idf * asked * weight
        return scores


def content_terms(text: str) -> list[str]:
    """Stems of the words in a text that are not stop words, in order, with repetitions."""
    return [stemmed for word in plain_words(text) if word not in _stop_words() and (stemmed := stem(word))]


def _weights(terms: Sequence[str]) -> dict[str, float]:
    """Weight of each distinct term of a memory or a question: its frequency, saturated by k1 and by the length of the text."""
    penalty = K1 * (1 - B + B * len(terms) / AVERAGE_LENGTH)
    return {term: times * (K1 + 1) / (times + penalty) for term, times in Counter(terms).items()}


def squashed(raw: np.ndarray, terms: int) -> np.ndarray:
    """BM25 scores mapped into (0, 1), float64 [n], by a logistic curve that depends on the number of terms in the query."""
    middle, steepness = next((middle, steepness) for most, middle, steepness in _SQUASHING if terms <= most)
    values: np.ndarray = 1 / (1 + np.exp(-steepness * (raw.astype(np.float64) - middle)))
    return values


@lru_cache(maxsize=1)
def _stop_words() -> frozenset[str]:
    with hide_modules("numba"):
        from bm25s.stopwords import STOPWORDS_EN_PLUS
    return frozenset(STOPWORDS_EN_PLUS)
