"""Geometry of the embeddings of a memory's nodes, level by level, over all histories (TiMem appendix D, Tables 11 and 12).

The paper names the metrics and prints values, but no formulas. This module computes:

- intrinsic dimension: principal components that explain 95 % of the variance, at most 100 (the printed values saturate at 100);
- silhouette over histories (Rousseeuw 1987), cosine distance: evenly scattered nodes with a separation ratio of R have about
  R² / (2 + R²), with Euclidean distance 1 - √(2 / (2 + R²)), and the printed rows of levels 1 to 4 are nearer to the first;
- separation ratio: mean distance between the centroids of histories over mean distance of nodes to their own history's centroid
  (a ratio of the nodes' own distances to the centroids, others' over own, could hardly fall to the printed .30);
- spread: mean Euclidean distance to the centroid of the level; coefficient of variation: standard deviation of these distances over
  their mean; radius 95: their 95th percentile (the printed rows agree: radius 95 is spread x (1 + 1.645 CV) within 3 %);
- trustworthiness and continuity (Venna and Kaski 2001), five neighbours, of the projection on the first two principal components;
  continuity is the trustworthiness with the roles of the two spaces exchanged. The paper draws with UMAP, which the printed .95 to .97
  of levels 1 to 4 fit (hashed vectors of a TiMem tree of LoCoMo: .90 to .97, by components .73 to .75); it needs half a minute to
  compile and as long for a level, and its value depends on a seed.

Deviations. All formulas are our interpretation, so only trends compare with the printed values. Levels of more than 3,000 nodes are
sampled: those of LongMemEval-S are, LoCoMo's (2,871 segments) are not. Nodes without a vector are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np

from eval.files.store import RunError
from eval.structure.tree import Tree

EXPLAINED = 0.95
CAP = 100
NEIGHBOURS = 5
MOST = 3000


@dataclass(frozen=True, eq=False)
class Cloud:
    """Nodes of one level, over all histories."""

    nodes: int
    """Number of nodes with a vector, before sampling."""
    vectors: np.ndarray
    """float64 [n, d]"""
    histories: np.ndarray
    """int [n]: number of the history that each node belongs to."""

    @cached_property
    def flat(self) -> np.ndarray:
        """Projection [n, 2] of the vectors on their first two principal components."""
        centred = self.vectors - self.vectors.mean(axis=0)
        projection: np.ndarray = centred @ np.linalg.svd(centred, full_matrices=False)[2][:2].T
        return projection


def manifold(trees: Sequence[Tree], rng: np.random.Generator, *, most: int = MOST) -> list[dict[str, float | None]]:
    """A row for each level over the nodes of all trees, lowest level first.

    It holds the level, its number of nodes before sampling and of histories, and the `MEASURES`, None where there are too few of them.

    Args:
        most: maximum number of nodes of a level; larger levels are sampled.

    Raises:
        RunError: scikit-learn is not installed.
    """
    levels = sorted({level for tree in trees for level in tree.levels})
    clouds = {level: cloud(trees, level, rng, most=most) for level in levels}
    rows: list[dict[str, float | None]] = []
    for level, nodes in clouds.items():
        if nodes.nodes:
            counts = {"level": level, "nodes": nodes.nodes, "histories": len(np.unique(nodes.histories))}
            rows.append({**counts, **{name: measure(nodes) for name, measure in MEASURES.items()}})
    return rows


def cloud(trees: Iterable[Tree], level: int, rng: np.random.Generator, *, most: int = MOST) -> Cloud:
    """The nodes of a level that have a vector; if there are more than `most`, a random sample in their order."""
    rows, histories = [np.empty((0, 0), np.float32)], [np.empty(0, np.int64)]
    for number, tree in enumerate(trees):
        here = tree.vectors[np.asarray(tree.levels) == level]
        here = here[here.any(axis=1)]
        if len(here):
            rows.append(here)
            histories.append(np.full(len(here), number))
    vectors, labels = np.vstack(rows[1:] or rows), np.concatenate(histories)
    kept = np.sort(rng.choice(len(vectors), most, replace=False)) if len(vectors) > most else slice(None)
    return Cloud(len(vectors), vectors[kept].astype(np.float64), labels[kept])


def intrinsic_dimension(vectors: np.ndarray) -> int | None:
    """Number of principal components of rows [n, d] that explain 95 % of the variance, at most 100; None without variance."""
    variances = np.linalg.svd(vectors - vectors.mean(axis=0), compute_uv=False) ** 2
    if len(vectors) < 2 or variances.sum() <= 1e-12:
        return None
    explained = np.cumsum(variances) / variances.sum()
    return min(CAP, int(np.searchsorted(explained, EXPLAINED - 1e-12)) + 1)


def silhouette(vectors: np.ndarray, labels: np.ndarray) -> float | None:
    """Mean silhouette of the histories by cosine distance, in [-1, 1]; None unless there are 2 to n-1 histories."""
    if not 1 < len(np.unique(labels)) < len(labels):
        return None
    return float(_sklearn("metrics").silhouette_score(vectors, labels, metric="cosine"))


def separation_ratio(vectors: np.ndarray, labels: np.ndarray) -> float | None:
    """Mean distance between centroids of histories over mean distance to the own centroid; None for one history or distance 0."""
    groups, number = np.unique(labels, return_inverse=True)
    if len(groups) < 2:
        return None
    centroids = np.stack([vectors[number == group].mean(axis=0) for group in range(len(groups))])
    own = float(np.linalg.norm(vectors - centroids[number], axis=1).mean())
    upper = np.triu_indices(len(groups), 1)
    between = float(np.linalg.norm(centroids[upper[0]] - centroids[upper[1]], axis=1).mean())
    return between / own if own > 0 else None


def spread(vectors: np.ndarray) -> float:
    """Mean Euclidean distance of rows [n, d] to their centroid."""
    return float(_far(vectors).mean())


def variation(vectors: np.ndarray) -> float | None:
    """Coefficient of variation of the distances to the centroid; None when all are 0."""
    far = _far(vectors)
    return float(far.std() / far.mean()) if far.any() else None


def radius(vectors: np.ndarray) -> float:
    """The 95th percentile of the distances to the centroid."""
    return float(np.percentile(_far(vectors), 95))


def _far(vectors: np.ndarray) -> np.ndarray:
    distances: np.ndarray = np.linalg.norm(vectors - vectors.mean(axis=0), axis=1)
    return distances


MEASURES: Mapping[str, Callable[[Cloud], float | None]] = {
    "intrinsic_dimension": lambda nodes: intrinsic_dimension(nodes.vectors),
    "silhouette": lambda nodes: silhouette(nodes.vectors, nodes.histories),
    "separation": lambda nodes: separation_ratio(nodes.vectors, nodes.histories),
    "spread": lambda nodes: spread(nodes.vectors),
    "cv": lambda nodes: variation(nodes.vectors),
    "radius95": lambda nodes: radius(nodes.vectors),
    "trustworthiness": lambda nodes: _neighbours_kept(nodes.vectors, nodes.flat),
    "continuity": lambda nodes: _neighbours_kept(nodes.flat, nodes.vectors),
}
"""The measures that tables print, by name; they need at least one node."""


def _neighbours_kept(space: np.ndarray, image: np.ndarray) -> float | None:
    """How far nodes near in the image are near in the space; None for fewer than 11 nodes. The other way around it is the continuity."""
    if len(space) <= 2 * NEIGHBOURS:
        return None
    return float(_sklearn("manifold").trustworthiness(space, image, n_neighbors=NEIGHBOURS))


def _sklearn(module: str) -> Any:
    try:
        return import_module(f"sklearn.{module}")
    except ImportError as error:
        raise RunError("manifold metrics need scikit-learn: pip install 'memsys-bench[cluster]'") from error
