"""The soft clusters of one layer of RAPTOR: UMAP, a Gaussian mixture whose size BIC chooses, globally and then within each group.

What differs from the release is told in `memsys.systems.raptor`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from memsys import lean


@dataclass(frozen=True, slots=True)
class Clustering:
    """How one layer is clustered; the defaults are the release's."""

    dimension: int = 10
    threshold: float = 0.1
    max_tokens: int = 3500
    max_components: int = 50
    reducer: Literal["umap", "pca"] = "umap"
    seed: int = 224


_FEWEST = 5
_ROUNDS = 10


def clusters(vectors: np.ndarray, tokens: np.ndarray, how: Clustering, again: Clustering) -> list[list[int]]:
    """Groups of rows that may overlap and may leave rows out; one longer than the limit is clustered again with `again`.

    Args:
        vectors: [n, d], unit length.
        tokens: length of each row's text, [n].
    """
    with lean.one_core("sklearn.mixture", *(["umap"] if how.reducer == "umap" else [])):
        return _clusters(vectors, tokens, how, again, 0)


def _clusters(
    vectors: np.ndarray, tokens: np.ndarray, how: Clustering, again: Clustering, rounds: int
) -> list[list[int]]:
    if len(vectors) < _FEWEST:
        return [list(range(len(vectors)))]
    groups: list[list[int]] = []
    for column in _memberships(vectors, how):
        rows = np.flatnonzero(column)
        stuck = rounds == _ROUNDS or len(rows) < _FEWEST or (len(rows) == len(vectors) and how == again)
        if tokens[rows].sum() <= how.max_tokens or stuck:
            groups.append(rows.tolist())
        else:
            inner = _clusters(vectors[rows], tokens[rows], again, again, rounds + 1)
            groups += [rows[group].tolist() for group in inner]
    return groups


def _memberships(vectors: np.ndarray, how: Clustering) -> list[np.ndarray]:
    """Who is in each local cluster, bool [n] each, global component by global component; none of them is empty."""
    count = len(vectors)
    _, same = np.unique(vectors, axis=0, return_inverse=True)
    same = same.reshape(count)
    reduced = _reduced(vectors, how, min(how.dimension, count - 2), math.isqrt(count - 1))
    found: list[np.ndarray] = []
    for component in _mixture(reduced, how).T:
        members = np.flatnonzero(component)
        if len(members) <= how.dimension + 1:
            found.append(members)
        else:
            local = _mixture(_reduced(vectors[members], how, how.dimension, 10), how)
            found += [members[inside] for inside in local.T]
    # Equal vectors share their labels, as in the release, which finds a cluster's rows by comparing vectors.
    return [np.isin(same, same[members]) for members in found if len(members)]


def _mixture(points: np.ndarray, how: Clustering) -> np.ndarray:
    """Which components each point belongs to, bool [n, components]; BIC chooses how many there are."""
    from sklearn.mixture import GaussianMixture

    points = points.astype(np.float64)
    distinct = len(np.unique(points, axis=0))
    sizes = range(1, max(2, min(how.max_components, len(points), distinct + 1)))
    bics = [GaussianMixture(size, random_state=how.seed).fit(points).bic(points) for size in sizes]
    mixture = GaussianMixture(sizes[int(np.argmin(bics))], random_state=0).fit(points)
    belongs: np.ndarray = mixture.predict_proba(points) > how.threshold
    return belongs


def _reduced(vectors: np.ndarray, how: Clustering, components: int, neighbours: int) -> np.ndarray:
    """The vectors in `components` dimensions (fewer where PCA finds no more)."""
    if how.reducer == "pca":
        left, values, _ = np.linalg.svd(vectors - vectors.mean(axis=0), full_matrices=False)
        projected: np.ndarray = left[:, :components] * values[:components]
        return projected
    from umap import UMAP

    reducer = UMAP(
        n_neighbors=min(neighbours, len(vectors) - 1),
        n_components=components,
        metric="cosine",
        random_state=how.seed,
        n_jobs=1,
    )
    reduced: np.ndarray = reducer.fit_transform(vectors)
    return reduced
