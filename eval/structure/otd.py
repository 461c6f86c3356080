"""Online Top-Down insertion (OTD, Menon et al. 2019, as in MemTree appendix B.2) and a numerical check of its guarantee.

The guarantee is Rev(OTD) >= (beta/3) Rev(optimum). `check_guarantee` compares OTD with the optimum on random instances.

Deviations. `binarised` rebuilds a node's children by OTD with each child as one point, the mean of its leaves. The pseudo-code of Menon
et al. was read in MemTree's summary of it, not in the original.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from eval.structure.revenue import (
    Hierarchy,
    Weights,
    bottom_up,
    from_matrix,
    from_vectors,
    optimum,
    revenue,
    sizes,
    upper_bound,
)


@dataclass(slots=True)
class _Node:
    """A subtree with the sums that an insertion needs."""

    left: np.ndarray
    right: np.ndarray
    size: int
    within: float
    """Sum of the similarities of its pairs."""
    children: list[_Node] = field(default_factory=list)
    point: int = -1

    @property
    def mean(self) -> float:
        """Mean similarity of its pairs; a single point has none."""
        return self.within / (self.size * (self.size - 1) / 2)


@dataclass(frozen=True, slots=True)
class OTD:
    """A hierarchy built online, and the separation of its points."""

    tree: Hierarchy
    beta: float
    """Smallest mean(A) / mean(A, x) over all descents, where A is the child not taken and x the new point; at most 1."""


def otd(weights: Weights, order: Sequence[int] | None = None) -> OTD:
    """Insert the points one by one, top down (Menon et al. 2019, as in MemTree appendix B.2), O(depth x d) each.

    At subtree S a point x becomes S's sibling when S is a single point or mean(S) >= mean(S, x). Otherwise it descends into the child with
    the higher mean similarity; in a tie into the second child. The child that was entered is the second from then on.

    Raises:
        ValueError: there are no points, or `order` is not a permutation of them.
    """
    order = range(len(weights)) if order is None else order
    if not len(weights) or sorted(order) != list(range(len(weights))):
        raise ValueError(f"order must be a permutation of {len(weights)} points, at least one")
    beta = 1.0
    root: _Node | None = None
    for point in order:
        leaf = _Node(weights.left[point], weights.right[point], 1, 0.0, point=point)
        if root is None:
            root = leaf
            continue
        root, separation = _insert(root, leaf)
        beta = min(beta, separation)
    assert root is not None
    return OTD(_numbered(root, len(weights)), beta)


def _insert(root: _Node, leaf: _Node) -> tuple[_Node, float]:
    beta, above, node = 1.0, None, root
    while True:
        across = float(node.left @ leaf.right)
        if node.size == 1 or node.mean >= across / node.size:
            pair = _Node(
                node.left + leaf.left, node.right + leaf.right, node.size + 1, node.within + across, [node, leaf]
            )
            if above is None:
                return pair, beta
            above.children[1] = pair
            return root, beta
        first, second = node.children
        near_first, near_second = (float(child.left @ leaf.right) / child.size for child in (first, second))
        if near_first > near_second:
            first, second, near_first = second, first, near_second
        if first.size > 1 and near_first > 0:
            beta = min(beta, first.mean / near_first)
        node.left, node.right = node.left + leaf.left, node.right + leaf.right
        node.size, node.within, node.children = node.size + 1, node.within + across, [first, second]
        above, node = node, second


def _numbered(root: _Node, n: int) -> Hierarchy:
    """The finished tree as a hierarchy: points keep their numbers, inner nodes are numbered from the root down."""
    parents = [-1] * n
    open_nodes: list[tuple[_Node, int]] = [(root, -1)]
    while open_nodes:
        node, parent = open_nodes.pop()
        if node.point >= 0:
            parents[node.point] = parent
            continue
        parents.append(parent)
        # Reversed, because the last node pushed is visited first: children keep their order.
        open_nodes += [(child, len(parents) - 1) for child in reversed(node.children)]
    return Hierarchy(n, tuple(parents))


def binarised(tree: Hierarchy, weights: Weights) -> Hierarchy:
    """The tree as a binary tree: the children of each larger node are rearranged by OTD, each child as the mean of its points."""
    below, size = tree.children, sizes(tree)
    left = {point: weights.left[point] for point in range(tree.n)}
    right = {point: weights.right[point] for point in range(tree.n)}
    parents = list(tree.parents)
    for node in bottom_up(tree):
        under = below[node]
        if not under:
            continue
        left[node], right[node] = sum(left[child] for child in under), sum(right[child] for child in under)
        if len(under) > 2:
            count = np.array([[size[child]] for child in under])
            means = Weights(
                np.stack([left[child] for child in under]) / count, np.stack([right[child] for child in under]) / count
            )
            _graft(parents, node, under, otd(means).tree)
        for child in under:
            del left[child], right[child]
    return Hierarchy(tree.n, tuple(parents))


def _graft(parents: list[int], node: int, under: Sequence[int], made: Hierarchy) -> None:
    """Arrange the children of `node` as in hierarchy `made`, whose root becomes `node`."""
    root = made.parents.index(-1)
    inner = [number for number in range(made.n, len(made.parents)) if number != root]
    place = {root: node, **dict(enumerate(under)), **{number: len(parents) + at for at, number in enumerate(inner)}}
    parents += [-1] * len(inner)
    for number, parent in enumerate(made.parents):
        if number != root:
            parents[place[number]] = place[parent]


@dataclass(frozen=True, slots=True)
class Guarantee:
    """Comparison of OTD's revenue with its bounds on random instances."""

    trials: int
    below_optimum: int
    """Instances that earned less than beta/3 of the optimum: 0 unless the theorem or this code is wrong."""
    below_bound: int
    """Instances that earned less than beta/3 of the upper bound, which the theorem does not promise."""
    tightest: float
    """Smallest revenue / (beta/3 x upper bound)."""
    worst: float
    """Smallest revenue / optimum."""


def check_guarantee(trials: int, rng: np.random.Generator) -> Guarantee:
    """Check OTD's guarantee on random weight matrices (3-7 points) and, every twentieth time, on random embeddings (4-8)."""
    to_optimum, to_promise, to_bound = [], [], []
    for trial in range(trials):
        weights = _random_vectors(rng) if trial % 20 == 19 else _random_matrix(rng)
        run = otd(weights)
        earned, best = revenue(run.tree, weights), optimum(weights)
        to_optimum.append(earned / best)
        to_promise.append(earned / (run.beta / 3 * best) if run.beta else np.inf)
        to_bound.append(earned / (run.beta / 3 * upper_bound(weights)) if run.beta else np.inf)
    slack = 1 - 1e-9
    return Guarantee(
        trials,
        sum(ratio < slack for ratio in to_promise),
        sum(ratio < slack for ratio in to_bound),
        float(min(to_bound)),
        float(min(to_optimum)),
    )


def _random_matrix(rng: np.random.Generator) -> Weights:
    n = int(rng.integers(3, 8))
    upper = np.triu(rng.random((n, n)), 1)
    return from_matrix(upper + upper.T)


def _random_vectors(rng: np.random.Generator) -> Weights:
    rows = rng.standard_normal((int(rng.integers(4, 9)), 3))
    return from_vectors(rows / np.linalg.norm(rows, axis=1, keepdims=True))
