"""Soft clustering of one layer of RAPTOR: UMAP, then a Gaussian mixture with a size chosen by BIC; globally, then within each cluster.

`memsys.systems.raptor` lists the deviations from the release.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from memsys import lean


@dataclass(frozen=True, slots=True)
class Clustering:
    """Settings of the clustering; the defaults are those of the release."""

    dimension: int = 10
    """Number of dimensions after the reduction."""
    threshold: float = 0.1
    """Minimum posterior (exclusive) with which a point belongs to a component."""
    max_tokens: int = 3500
    """Length above which a cluster is clustered again."""
    max_components: int = 50
    """Exclusive upper limit of a mixture's number of components."""
    reducer: Literal["umap", "pca"] = "umap"
    seed: int = 224


_FEWEST = 5
"""Fewer nodes form a single cluster."""
_ROUNDS = 10
"""Number of times that an oversized cluster is clustered again."""


def clusters(
    vectors: np.ndarray, tokens: np.ndarray, settings: Clustering, reclustering: Clustering
) -> list[list[int]]:
    """Cluster the nodes of a layer; the clusters may overlap and may leave nodes out.

    Args:
        vectors: vectors of the nodes, [n, d], unit length.
        tokens: length of each node's text, [n].
        settings: settings of the first clustering.
        reclustering: settings with which an oversized cluster is clustered again.

    Returns:
        The row indices of each cluster.
    """
    with lean.one_core("sklearn.mixture", *(["umap"] if settings.reducer == "umap" else [])):
        from sklearn import config_context

        # Hundreds of fits of a few points each.
        with config_context(assume_finite=True, skip_parameter_validation=True):
            return _clusters(vectors, tokens, settings, reclustering, 0)


def _clusters(
    vectors: np.ndarray, tokens: np.ndarray, settings: Clustering, reclustering: Clustering, rounds: int
) -> list[list[int]]:
    if len(vectors) < _FEWEST:
        return [list(range(len(vectors)))]
    final: list[list[int]] = []
    for member in _memberships(vectors, settings):
        rows = np.flatnonzero(member)
        unchanged = len(rows) == len(vectors) and settings == reclustering
        if tokens[rows].sum() <= settings.max_tokens or rounds == _ROUNDS or len(rows) < _FEWEST or unchanged:
            final.append(rows.tolist())
        else:
            parts = _clusters(vectors[rows], tokens[rows], reclustering, reclustering, rounds + 1)
            final += [rows[part].tolist() for part in parts]
    return final


def _memberships(vectors: np.ndarray, settings: Clustering) -> list[np.ndarray]:
    """Membership of the rows in each local cluster, bool [n] each, in order of the global clusters; no cluster is empty."""
    count = len(vectors)
    _, identity = np.unique(vectors, axis=0, return_inverse=True)
    identity = identity.reshape(count)
    reduced = _reduced(vectors, settings, min(settings.dimension, count - 2), math.isqrt(count - 1))
    local_clusters: list[np.ndarray] = []
    for component in _mixture(reduced, settings).T:
        members = np.flatnonzero(component)
        if len(members) <= settings.dimension + 1:
            local_clusters.append(members)
        else:
            local = _mixture(_reduced(vectors[members], settings, settings.dimension, 10), settings)
            local_clusters += [members[inside] for inside in local.T]
    # Equal vectors belong to the same clusters, as in the release, which finds a cluster's rows by comparing vectors.
    return [np.isin(identity, identity[members]) for members in local_clusters if len(members)]


def _mixture(points: np.ndarray, settings: Clustering) -> np.ndarray:
    """Fit a Gaussian mixture with the number of components that BIC prefers; memberships, bool [n, components]."""
    from sklearn.mixture import GaussianMixture

    points = points.astype(np.float64)
    distinct = len(np.unique(points, axis=0))
    sizes = range(1, max(2, min(settings.max_components, len(points), distinct + 1)))
    bics = [GaussianMixture(size, random_state=settings.seed).fit(points).bic(points) for size in sizes]
    mixture = GaussianMixture(sizes[int(np.argmin(bics))], random_state=0).fit(points)
    belongs: np.ndarray = mixture.predict_proba(points) > settings.threshold
    return belongs


def _reduced(vectors: np.ndarray, settings: Clustering, components: int, neighbours: int) -> np.ndarray:
    """Reduce vectors to `components` dimensions (PCA to fewer when their rank is lower)."""
    if settings.reducer == "pca":
        left, values, _ = np.linalg.svd(vectors - vectors.mean(axis=0), full_matrices=False)
        projected: np.ndarray = left[:, :components] * values[:components]
        return projected
    reducer = lean.umap().UMAP(
        n_neighbors=min(neighbours, len(vectors) - 1),
        n_components=components,
        metric="cosine",
        random_state=settings.seed,
        n_jobs=1,
    )
    with _seeded_eigenvectors(settings.seed):
        reduced: np.ndarray = reducer.fit_transform(vectors)
    return reduced


@contextmanager
def _seeded_eigenvectors(seed: int) -> Iterator[None]:
    """Give SciPy's sparse eigenvectors this seed, so that UMAP's first layout of the same points is the same.

    UMAP passes its random state to everything but `eigsh`, whose restarts SciPy draws from fresh entropy since 1.17. Only one thread
    reduces at a time (`memsys.lean.one_core`).
    """
    from scipy.sparse import linalg

    plain = linalg.eigsh
    if "rng" in inspect.signature(plain).parameters:
        linalg.eigsh = partial(plain, rng=seed)  # type: ignore[assignment]
    try:
        yield
    finally:
        linalg.eigsh = plain
