"""Clusters of bounded size, for the layers of a LATTICE tree."""

from __future__ import annotations

import math

import numpy as np

from memsys import lean
from memsys.vectors import normalised

_SPECTRAL_LIMIT = 2000
"""Maximum number of vectors that are clustered by eigenvectors; more would take too long."""


def clusters(vectors: np.ndarray, limit: int, seed: int) -> list[list[int]]:
    """Rows of `vectors` in clusters, ordered by their first rows.

    A cluster has at most `limit` rows. There are at most half as many clusters as rows, rounded up: until then the two most similar
    single rows are joined.

    Args:
        vectors: float32 [n, d], unit length.
    """
    groups = sorted(_divided(vectors, np.arange(len(vectors)), limit, seed))
    surplus = len(groups) - math.ceil(len(vectors) / 2)
    while surplus > 0:
        singles = [group[0] for group in groups if len(group) == 1]
        similarities = vectors[singles] @ vectors[singles].T
        np.fill_diagonal(similarities, -np.inf)
        most_similar = np.unravel_index(np.argmax(similarities), similarities.shape)
        first, second = sorted(singles[place] for place in most_similar)
        groups = sorted([*(group for group in groups if group not in ([first], [second])), [first, second]])
        surplus -= 1
    return groups


def _divided(vectors: np.ndarray, rows: np.ndarray, limit: int, seed: int) -> list[list[int]]:
    """The rows, clustered again and again until no cluster has more than `limit`."""
    if len(rows) <= limit:
        return [rows.tolist()]
    labels = _labels(vectors[rows], min(limit, math.ceil(len(rows) / limit)), seed)
    parts = [rows[labels == label] for label in np.unique(labels)]
    if len(parts) == 1:
        parts = [rows[first : first + limit] for first in range(0, len(rows), limit)]
    return [group for part in parts for group in _divided(vectors, part, limit, seed)]


def _labels(vectors: np.ndarray, count: int, seed: int) -> np.ndarray:
    """A cluster number for each vector, int [n]: seeded k-means on the leading eigenvectors of the normalised cosine affinity."""
    with lean.one_core("sklearn.cluster"):
        from sklearn.cluster import KMeans

        points = vectors.astype(np.float64)
        if len(points) <= _SPECTRAL_LIMIT:
            points = _spectral(points, count)
        distinct = len(np.unique(points.round(8), axis=0))
        labels: np.ndarray = KMeans(min(count, distinct), n_init=4, random_state=seed).fit_predict(points)
        return labels


def _spectral(points: np.ndarray, count: int) -> np.ndarray:
    """The `count` leading eigenvectors of the normalised affinity as unit-length rows, float64 [n, count]."""
    affinity = np.maximum(points @ points.T, 0.0)
    degrees = affinity.sum(axis=1)
    scale = np.where(degrees > 0, 1 / np.sqrt(np.where(degrees > 0, degrees, 1)), 0.0)
    _, eigenvectors = np.linalg.eigh(scale[:, None] * affinity * scale)
    return normalised(eigenvectors[:, -count:])
