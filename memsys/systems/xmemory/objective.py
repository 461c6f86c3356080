"""The objective of xMemory's themes: how balanced, coherent and well spaced a partition of statements is (xMemory Eq. 1-3)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from statistics import median

import numpy as np

_EPSILON = 1e-8


def sparsity(sizes: Sequence[int] | np.ndarray) -> float:
    """Balance of the theme sizes, in (0, 1]; 1 for equal sizes (xMemory Eq. 2)."""
    counts = np.asarray(sizes, dtype=np.float64)
    return float(counts.sum() ** 2 / (len(counts) * (counts**2).sum()))


def bell(similarities: Sequence[float] | np.ndarray) -> np.ndarray:
    """Weight g of each nearest-neighbour similarity, float64 [K]: a Gaussian around their median (xMemory Eq. 3).

    Its width is the median absolute deviation.
    """
    values = np.asarray(similarities, dtype=np.float64)
    deviations = values - median(values.tolist())
    spread = median(np.abs(deviations).tolist()) + _EPSILON
    weights: np.ndarray = np.exp(-(deviations**2) / (2 * spread**2))
    return weights


def guidance(sizes: Sequence[int], totals: np.ndarray) -> float:
    """The objective f = sparsity + semantics of themes (xMemory Eq. 1-3).

    Args:
        sizes: number of statements of each theme, [K].
        totals: sum of each theme's unit vectors, [K, d].
    """
    counts = np.asarray(sizes, dtype=np.float64)
    # The mean cosine of unit vectors with their centroid is the length of their mean.
    products = totals @ totals.T
    lengths = np.sqrt(products.diagonal())
    similarities = rounded(products / np.maximum(np.outer(lengths, lengths), _EPSILON))
    np.fill_diagonal(similarities, -np.inf)
    closest = similarities.max(axis=1) if len(counts) > 1 else np.zeros(1)
    return sparsity(counts) + float((lengths / counts) @ bell(closest)) / len(counts)


def rounded(cosines: np.ndarray) -> np.ndarray:
    """Round cosines to six decimals, float64.

    Cosines at a threshold then compare equal to it. So do equal similarities in `bell`, whose width is 1e-8 when most are equal.
    """
    rounded: np.ndarray = np.round(cosines.astype(np.float64), 6)
    return rounded


class Whole:
    """The objective over a whole partition, updated while its themes change.

    To evaluate a replacement of some themes, it compares the replacements with all centroids; `guidance` compares all with all.
    """

    def __init__(self) -> None:
        self._sizes = np.empty(0)
        """Number of statements by theme number, float64 [K]; 0 for a removed theme."""
        self._cohesion = np.empty(0)
        """Mean cosine of each theme's statements with its centroid, float64 [K]."""
        self._centroids = np.empty((0, 0))
        """Unit vectors, float64 [K, d]."""
        self._cosines = np.empty((0, 0))
        """Cosines between centroids, float64 [K, K]; minus infinity on the diagonal and for removed themes."""
        self._nearest = np.empty(0, dtype=np.intp)
        """Number of the theme nearest to each theme."""

    def set(self, number: int, size: int, total: np.ndarray) -> None:
        """Set a theme's number of statements and the sum of their vectors [d]; size 0 removes it. New numbers must be consecutive."""
        if number == len(self._sizes):
            self._grow(len(total))
        length = float(np.linalg.norm(total)) if size else 0.0
        self._sizes[number] = size
        self._cohesion[number] = length / max(size, 1)
        self._centroids[number] = total / max(length, _EPSILON)
        cosines = rounded(self._centroids @ self._centroids[number]) if size else np.full(len(self._sizes), -np.inf)
        cosines[self._sizes == 0] = -np.inf
        cosines[number] = -np.inf
        closer = cosines > self._cosines[np.arange(len(cosines)), self._nearest]
        stale = (self._nearest == number) & ~closer
        self._cosines[number], self._cosines[:, number] = cosines, cosines
        self._nearest[closer] = number
        self._nearest[stale] = self._cosines[stale].argmax(axis=1)
        self._nearest[number] = int(cosines.argmax())

    def value(self, without: Collection[int] = (), parts: Sequence[tuple[int, np.ndarray]] = ()) -> float:
        """The objective when `parts`, each (size, sum of vectors [d]), replace the themes `without`."""
        alive = self._sizes > 0
        alive[list(without)] = False
        kept = np.flatnonzero(alive)
        closest = self._cosines[kept, self._nearest[kept]]
        orphans = np.isin(self._nearest[kept], list(without))
        if orphans.any():
            closest[orphans] = np.where(alive, self._cosines[kept[orphans]], -np.inf).max(axis=1)
        sizes = np.array([size for size, _ in parts], dtype=np.float64)
        totals = np.array([total for _, total in parts]).reshape(len(parts), self._centroids.shape[1])
        lengths = np.linalg.norm(totals, axis=1)
        units = totals / np.maximum(lengths, _EPSILON)[:, None]
        if parts:
            outside = rounded(self._centroids[kept] @ units.T)
            inside = rounded(units @ units.T)
            np.fill_diagonal(inside, -np.inf)
            closest = np.maximum(closest, outside.max(axis=1, initial=-np.inf))
            closest = np.append(closest, np.vstack([outside, inside]).max(axis=0))
        counts = np.append(self._sizes[kept], sizes)
        closest = closest if len(counts) > 1 else np.zeros(1)
        cohesion = np.append(self._cohesion[kept], lengths / sizes)
        return sparsity(counts) + float(cohesion @ bell(closest)) / len(counts)

    def _grow(self, dimension: int) -> None:
        count = len(self._sizes)
        self._sizes, self._cohesion = np.append(self._sizes, 0.0), np.append(self._cohesion, 0.0)
        self._nearest = np.append(self._nearest, 0)
        self._centroids = np.vstack([self._centroids.reshape(count, dimension), np.zeros(dimension)])
        self._cosines = np.pad(self._cosines, (0, 1), constant_values=-np.inf)
