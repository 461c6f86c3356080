"""How the embeddings of a memory's nodes lie in space, level by level, across histories (TiMem appendix D, Tables 11 and 12).

The paper names the metrics and prints values, but no formulas. What is computed here:

- intrinsic dimension: principal components that explain 95 % of the variance, at most 100 (the printed values saturate at 100);
- silhouette over histories (Rousseeuw 1987), cosine distance;
- separation ratio: mean distance between the centroids of histories over mean distance of nodes to their own history's centroid;
- spread: mean Euclidean distance to the centroid of the level; coefficient of variation: standard deviation of these distances over
  their mean; radius 95: their 95th percentile (the printed rows agree: radius 95 is spread x (1 + 1.645 CV) within 3 %);
- trustworthiness and continuity (Venna and Kaski 2001), five neighbours, of the projection on the first two principal components;
  continuity is the trustworthiness with the roles of the two spaces exchanged.

Deviations. All formulas are a reading, so only trends compare with the printed values. Levels of more than `most` nodes are sampled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eval.store import RunError
from eval.structure import Tree

EXPLAINED = 0.95
CAP = 100
NEIGHBOURS = 5


@dataclass(frozen=True, slots=True)
class Manifold:
    """The metrics of one level; None where there are too few nodes or histories to say."""

    level: int
    nodes: int
    """With a vector, before sampling."""
    histories: int
    intrinsic_dimension: int | None
    silhouette: float | None
    separation_ratio: float | None
    spread: float
    variation: float | None
    radius_95: float
    trustworthiness: float | None
    continuity: float | None


def manifold(trees: Sequence[Tree], rng: np.random.Generator, *, most: int = 2000) -> list[Manifold]:
    """The metrics of each level over the nodes of all trees, lowest level first; nodes without a vector are left out.

    Raises:
        RunError: scikit-learn is not installed.
    """
    found = []
    for level in sorted({level for tree in trees for level in tree.levels}):
        vectors, labels = _level(trees, level)
        if not len(vectors):
            continue
        kept = (
            np.sort(rng.choice(len(vectors), most, replace=False)) if len(vectors) > most else np.arange(len(vectors))
        )
        found.append(_measured(level, len(vectors), vectors[kept], labels[kept]))
    return found


def _level(trees: Sequence[Tree], level: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of a level, float64 [n, d], and the number of the history that each is of."""
    rows, labels = [], []
    for number, tree in enumerate(trees):
        if not tree.vectors.size:
            continue
        here = tree.vectors[np.asarray(tree.levels) == level]
        here = here[here.any(axis=1)]
        rows.append(here.astype(np.float64))
        labels += [number] * len(here)
    return (np.vstack(rows) if rows else np.empty((0, 0))), np.asarray(labels)


def _measured(level: int, nodes: int, vectors: np.ndarray, labels: np.ndarray) -> Manifold:
    far = np.linalg.norm(vectors - vectors.mean(axis=0), axis=1)
    spread = float(far.mean())
    trust, continued = neighbourhoods(vectors)
    return Manifold(
        level=level,
        nodes=nodes,
        histories=len(np.unique(labels)),
        intrinsic_dimension=intrinsic_dimension(vectors),
        silhouette=silhouette(vectors, labels),
        separation_ratio=separation_ratio(vectors, labels),
        spread=spread,
        variation=float(far.std()) / spread if spread > 0 else None,
        radius_95=float(np.percentile(far, 95)),
        trustworthiness=trust,
        continuity=continued,
    )


def intrinsic_dimension(vectors: np.ndarray) -> int | None:
    """Principal components of rows [n, d] that explain 95 % of their variance, at most 100; None where nothing varies."""
    variances = np.linalg.svd(vectors - vectors.mean(axis=0), compute_uv=False) ** 2
    if len(vectors) < 2 or variances.sum() <= 1e-12:
        return None
    explained = np.cumsum(variances) / variances.sum()
    return min(CAP, int(np.searchsorted(explained, EXPLAINED - 1e-12)) + 1)


def silhouette(vectors: np.ndarray, labels: np.ndarray) -> float | None:
    """Mean silhouette of the histories by cosine distance, in [-1, 1]; None unless there are 2 … n-1 histories."""
    if not 1 < len(np.unique(labels)) < len(labels):
        return None
    return float(_sklearn("metrics").silhouette_score(vectors, labels, metric="cosine"))


def separation_ratio(vectors: np.ndarray, labels: np.ndarray) -> float | None:
    """Mean distance between the centroids of histories over mean distance to the own centroid; None where one is missing or 0."""
    groups, number = np.unique(labels, return_inverse=True)
    if len(groups) < 2:
        return None
    centroids = np.stack([vectors[number == group].mean(axis=0) for group in range(len(groups))])
    own = float(np.linalg.norm(vectors - centroids[number], axis=1).mean())
    upper = np.triu_indices(len(groups), 1)
    between = float(np.linalg.norm(centroids[upper[0]] - centroids[upper[1]], axis=1).mean())
    return between / own if own > 0 else None


def neighbourhoods(vectors: np.ndarray, dimensions: int = 2) -> tuple[float | None, float | None]:
    """Trustworthiness and continuity of the projection on the first principal components; None for fewer than 11 nodes."""
    if len(vectors) <= 2 * NEIGHBOURS:
        return None, None
    centred = vectors - vectors.mean(axis=0)
    axes = np.linalg.svd(centred, full_matrices=False)[2][:dimensions]
    flat = centred @ axes.T
    measure = _sklearn("manifold").trustworthiness
    return (
        float(measure(vectors, flat, n_neighbors=NEIGHBOURS)),
        float(measure(flat, vectors, n_neighbors=NEIGHBOURS)),
    )


def _sklearn(module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(f"sklearn.{module}")
    except ImportError as error:
        raise RunError("manifold metrics need scikit-learn: pip install 'memsys-bench[cluster]'") from error
