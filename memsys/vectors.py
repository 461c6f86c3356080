"""The interface of embedders, and a growable matrix of unit vectors with exact top-k search; of equal scores the lower index is first."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
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
        """A view of all rows, float32 [n, d]; a row is replaced in it."""
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


def descent(
    scores: np.ndarray,
    top: Sequence[int],
    children: Callable[[int], Iterable[int]],
    width: int,
    k: int | None,
    levels: float = math.inf,
) -> list[int]:
    """The nodes that a descent visits, which keeps the `width` best of each level; of these the `k` best (None: all).

    Args:
        scores: of all nodes, [n].
        top: the nodes of the first level.
        children: the nodes below a node; a node may be below several.
        levels: number of levels to visit.
    """
    visited: list[int] = []
    candidates = list(top)
    while candidates and levels > 0:
        levels -= 1
        kept = [candidates[at] for at in best(scores[candidates], width)]
        visited += kept
        candidates = sorted({child for index in kept for child in children(index)})
    return visited if k is None else [visited[at] for at in sorted(best(scores[visited], k))]


def scaled(values: np.ndarray, *, flat: float) -> np.ndarray:
    """Values scaled to [0, 1] by their minimum and maximum, [n]; `flat` where all are equal."""
    low, high = values.min(initial=np.inf), values.max(initial=-np.inf)
    return (values - low) / (high - low) if low < high else np.full(len(values), flat)


def normalised(vectors: np.ndarray) -> np.ndarray:
    """Vectors [..., d] scaled to unit length along the last axis; zero vectors stay zero."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    scaled: np.ndarray = np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)
    return scaled
