"""Moseley-Wang revenue of a hierarchy: the quantity of MemTree's Theorem 1.

Given points with similarities w_ij >= 0, a rooted hierarchy earns `sum over pairs of w_ij (n - leaves below their lowest common ancestor)`
(MemTree appendix B, Definition 1; Moseley and Wang 2017). Summed over nodes this is `sum over v of W(v) (|parent(v)| - |v|)`, where W(v)
adds the pairs inside v. Embeddings therefore cost one vector sum per node, O(nodes x d).

Similarities are bilinear here, w_ij = left_i . right_j, which covers both a matrix (left = unit vectors) and cosines. Cosines may be
negative, but the bounds need w >= 0: `from_vectors` uses (1 + cosine) / 2. Revenue ratios depend on that choice.

Checks and observations. The guarantee Rev(OTD) >= (beta/3) Rev(optimum) is checked; it holds for OTD (Menon et al. 2019). It does not
carry over to MemTree as specified: MemTree attaches below its threshold and so builds multi-way trees (n equal similarities below it give
a star, whose revenue is 0), it compares with embeddings of summaries instead of averages, and its thresholds follow a fixed schedule.
A MemTree's revenue is therefore only an observation, reported with that of OTD, average linkage and a random tree over the same leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eval.structure.tree import Tree

EXACT = 12
"""Maximum number of points for which the optimum is searched: there are 3^n splits."""


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """Similarities of n points, w_ij = left_i . right_j, float64 [n, d] each; for embeddings both are the same array."""

    left: np.ndarray
    right: np.ndarray

    def __len__(self) -> int:
        return len(self.left)

    @property
    def matrix(self) -> np.ndarray:
        """All w_ij, zero on the diagonal."""
        full: np.ndarray = self.left @ self.right.T
        np.fill_diagonal(full, 0.0)
        return full

    @property
    def total(self) -> float:
        """Sum of the similarities of all pairs."""
        return _within(self.left.sum(axis=0), self.right.sum(axis=0), float((self.left * self.right).sum()))


def from_matrix(matrix: np.ndarray) -> Weights:
    """Weights from similarities [n, n]; the diagonal is ignored.

    Raises:
        ValueError: not square, not symmetric, or negative.
    """
    full = np.array(matrix, dtype=np.float64)
    if full.ndim != 2 or full.shape[0] != full.shape[1] or not np.allclose(full, full.T) or (full < 0).any():
        raise ValueError(f"similarities must be a symmetric matrix without negative entries, found shape {full.shape}")
    np.fill_diagonal(full, 0.0)
    return Weights(np.eye(len(full)), full)


def from_vectors(vectors: np.ndarray) -> Weights:
    """Weights from unit vectors [n, d]: w = (1 + cosine) / 2."""
    rows = np.asarray(vectors, dtype=np.float64)
    shifted = np.hstack([rows, np.ones((len(rows), 1))]) / np.sqrt(2)
    return Weights(shifted, shifted)


def _within(left: np.ndarray, right: np.ndarray, own: float) -> float:
    """Sum over the pairs of a set, from its vector sums and `own`, the sum of its points' products with themselves."""
    return (float(left @ right) - own) / 2


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """A rooted tree over n points: nodes 0 … n-1 are the points; `parents[v]` is -1 for the root."""

    n: int
    parents: tuple[int, ...]

    @property
    def children(self) -> list[list[int]]:
        below: list[list[int]] = [[] for _ in self.parents]
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                below[parent].append(node)
        return below


def bottom_up(tree: Hierarchy) -> list[int]:
    """All nodes, every node after its children."""
    below = tree.children
    order = [tree.parents.index(-1)]
    for node in order:
        order += below[node]
    return order[::-1]


def sizes(tree: Hierarchy) -> list[int]:
    """Number of points below each node."""
    counts = [1] * tree.n + [0] * (len(tree.parents) - tree.n)
    for node in bottom_up(tree):
        if tree.parents[node] >= 0:
            counts[tree.parents[node]] += counts[node]
    return counts


def revenue(tree: Hierarchy, weights: Weights) -> float:
    """Moseley-Wang revenue of any rooted tree, multi-way and unary nodes included, in O(nodes x d)."""
    below, size = tree.children, sizes(tree)
    sums: dict[int, tuple[np.ndarray, np.ndarray, float]] = {}
    earned = 0.0
    for node in bottom_up(tree):
        if node < tree.n:
            sums[node] = weights.left[node], weights.right[node], float(weights.left[node] @ weights.right[node])
            continue
        sums[node] = _added([sums.pop(child) for child in below[node]])
        if tree.parents[node] >= 0:
            earned += _within(*sums[node]) * (size[tree.parents[node]] - size[node])
    return earned


def _added(parts: Sequence[tuple[np.ndarray, np.ndarray, float]]) -> tuple[np.ndarray, np.ndarray, float]:
    left = np.sum([part[0] for part in parts], axis=0)
    alike = all(part[0] is part[1] for part in parts)
    return left, left if alike else np.sum([part[1] for part in parts], axis=0), sum(part[2] for part in parts)


def upper_bound(weights: Weights) -> float:
    """(n - 2) times the sum of all similarities: no hierarchy earns more."""
    return (len(weights) - 2) * weights.total


def optimum(weights: Weights) -> float:
    """The highest revenue of any hierarchy, by search over all splits of all subsets (3^n of them).

    Raises:
        ValueError: more than 12 points.
    """
    n, full = len(weights), weights.matrix
    if n > EXACT:
        raise ValueError(f"the optimum is searched for at most {EXACT} points, found {n}")
    within, highest = [0.0] * (1 << n), [0.0] * (1 << n)
    for members in range(1, 1 << n):
        lowest = (members & -members).bit_length() - 1
        rest = members & (members - 1)
        within[members] = within[rest] + sum(float(full[lowest, other]) for other in range(n) if rest >> other & 1)
        if not rest:
            continue
        size, part = members.bit_count(), rest
        candidates = []
        while part:  # the part without the lowest point; it is never empty, so both parts are proper subsets
            other = members ^ part
            across = within[members] - within[part] - within[other]
            candidates.append(across * (n - size) + highest[part] + highest[other])
            part = (part - 1) & rest
        highest[members] = max(candidates) if candidates else 0.0
    return highest[-1]


def leaf_hierarchy(tree: Tree, order: Sequence[str] = ()) -> tuple[Hierarchy, np.ndarray]:
    """A memory's tree as a hierarchy over its leaves, and the leaves' vectors [n, d].

    A root is added where the memory hides its own.

    Args:
        order: ids of the leaves in the order in which they are numbered; others follow in the order of the file.

    Raises:
        ValueError: a node has several parents, or a leaf has no vector.
    """
    if any(len(parents) > 1 for parents in tree.parents):
        raise ValueError(f"{tree.case_id}: revenue is defined for trees; here nodes have several parents")
    below = tree.children
    rank = {leaf: place for place, leaf in enumerate(order)}
    leaves = sorted(
        (node for node, under in enumerate(below) if not under), key=lambda node: rank.get(tree.ids[node], len(rank))
    )
    vectors = tree.vectors[leaves]
    if not vectors.size or not vectors.any(axis=1).all():
        raise ValueError(f"{tree.case_id}: a leaf has no vector")
    nodes = [*leaves, *(node for node, under in enumerate(below) if under)]
    number = {node: place for place, node in enumerate(nodes)}
    several = sum(not parents for parents in tree.parents) > 1
    top = len(nodes) if several else -1
    parents = [number[tree.parents[node][0]] if tree.parents[node] else top for node in nodes]
    return Hierarchy(len(leaves), (*parents, *([-1] if several else []))), vectors
