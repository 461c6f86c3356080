"""The interface of embedders, and a growable matrix of unit vectors with exact top-k search; of equal scores the lower index is first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class Embedder(Protocol):
    """Turns texts into unit vectors."""

    def embed(self, texts: Sequence[str], *, query: bool = False) -> np.ndarray:
        """The unit vectors of n texts, float32 [n, d]. `query` selects the query encoder of an asymmetric model."""


class Vectors:
    """A matrix of unit vectors, float32 [n, d], that grows row by row."""

    def __init__(self) -> None:
        self._rows = np.empty((0, 0), dtype=np.float32)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def matrix(self) -> np.ndarray:
        """A view of all rows, float32 [n, d]."""
        return self._rows[: self._count]

    def add(self, vector: np.ndarray) -> int:
        """Append a vector, float32 [d], and return its index. Takes amortised constant time."""
        if self._count == len(self._rows):
            rows = np.zeros((max(64, 2 * self._count), vector.shape[-1]), dtype=np.float32)
            if self._count:
                rows[: self._count] = self.matrix
            self._rows = rows
        self._rows[self._count] = vector
        self._count += 1
        return self._count - 1

    def set(self, index: int, vector: np.ndarray) -> None:
        """Replace the row `index` by a vector, float32 [d]."""
        self.matrix[index] = vector

    def similarities(self, query: np.ndarray) -> np.ndarray:
        """Cosine similarity of the query, float32 [d], with every row; float32 [n]. Equal rows have equal similarities."""
        return cosines(self.matrix, query) if self._count else np.empty(0, dtype=np.float32)

    def top(self, query: np.ndarray, k: int) -> list[tuple[int, float]]:
        """The `k` rows most similar to the query, float32 [d], as (index, cosine), best first."""
        similarities = self.similarities(query)
        return [(index, float(similarities[index])) for index in best(similarities, k)]


def cosines(rows: np.ndarray, query: np.ndarray) -> np.ndarray:
    """Cosine of unit vectors, float32 [n, d], with a query, float32 [d]; float32 [n].

    Equal rows have equal cosines. In a matrix product they may differ in the last bit, by their places and by the processor.
    """
    products: np.ndarray = np.vecdot(rows, query)
    return products


def best(scores: np.ndarray | Sequence[float], k: int) -> list[int]:
    """Indices of the `k` highest of the scores [n], best first; equal scores in index order."""
    values = np.asarray(scores)
    if k <= 0 or not len(values):
        return []
    if k < len(values) // 4:
        # All scores that equal the k-th are candidates, so that among them too the lower index wins.
        threshold = np.partition(values, len(values) - k)[len(values) - k]
        candidates = np.flatnonzero(values >= threshold)
    else:
        candidates = np.arange(len(values))
    order = candidates[np.argsort(-values[candidates], kind="stable")]
    return [int(index) for index in order[:k]]


def normalised(vectors: np.ndarray) -> np.ndarray:
    """Vectors [..., d] scaled to unit length along the last axis; zero vectors stay zero."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    scaled: np.ndarray = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
    return scaled
