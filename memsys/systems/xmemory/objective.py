"""The objective of xMemory's themes: how balanced, coherent and well spaced a partition of statements is (xMemory Eq. 1-3)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from statistics import median

import numpy as np

_EPSILON = 1e-8


def sparsity(sizes: Sequence[int] | np.ndarray) -> float:
    """How balanced the theme sizes are, in (0, 1] (xMemory Eq. 2)."""
    counts = np.asarray(sizes, dtype=np.float64)
    return float(counts.sum() ** 2 / (len(counts) * (counts**2).sum()))


def bell(similarities: Sequence[float] | np.ndarray) -> np.ndarray:
    """g of each nearest-neighbour similarity: 1 at their median, falling off by the median absolute deviation (Eq. 3), float64 [K]."""
    values = np.asarray(similarities, dtype=np.float64)
    deviations = values - median(values.tolist())
    spread = median(np.abs(deviations).tolist()) + _EPSILON
    weights: np.ndarray = np.exp(-(deviations**2) / (2 * spread**2))
    return weights


def guidance(sizes: Sequence[int], totals: np.ndarray) -> float:
    """The objective f = sparsity + semantics of themes (Eq. 1-3), each given by its size and the sum of its unit vectors [K, d]."""
    counts = np.asarray(sizes, dtype=np.float64)
    # Of unit vectors the mean cosine with their centroid is the length of their mean.
    products = totals @ totals.T
    lengths = np.sqrt(products.diagonal())
    similarities = rounded(products / np.maximum(np.outer(lengths, lengths), _EPSILON))
    np.fill_diagonal(similarities, -np.inf)
    closest = similarities.max(axis=1) if len(counts) > 1 else np.zeros(1)
    return sparsity(counts) + float((lengths / counts) @ bell(closest)) / len(counts)


def rounded(cosines: np.ndarray) -> np.ndarray:
    """Cosines to six decimals, float64: thresholds are met exactly, and the bell, 1e-8 wide where most are equal, sees them equal."""
    rounded: np.ndarray = np.round(cosines.astype(np.float64), 6)
    return rounded


class Whole:
    """The objective over a whole partition, kept up to date while its themes change.

    Its value with some themes replaced takes the products of the replacements with all centroids; `guidance` multiplies all with all.
    """

    def __init__(self) -> None:
        self._sizes = np.empty(0)
        """By theme number, float64 [K]; 0 for a theme that is gone."""
        self._cohesion = np.empty(0)
        self._centroids = np.empty((0, 0))
        """Of unit length, float64 [K, d]."""
        self._cosines = np.empty((0, 0))
        """Of the centroids, float64 [K, K]; minus infinity for a theme with itself and with one that is gone."""
        self._nearest = np.empty(0, dtype=np.intp)
        """The theme nearest to each."""

    def set(self, number: int, size: int, total: np.ndarray) -> None:
        """A theme has this many statements, whose vectors have this sum [d]; 0 takes it away. Numbers are given in order."""
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
        """The objective with `parts` (size and sum of the vectors of each) in the place of the themes `without`."""
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
