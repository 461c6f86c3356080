"""Online Top-Down insertion (OTD, Menon et al. 2019, as in MemTree appendix B.2) and a numerical check of its guarantee.

The guarantee is Rev(OTD) >= (beta/3) Rev(optimum). `check_guarantee` compares OTD with the optimum on random instances. `report` compares
a memory's tree with OTD, average linkage and a random tree over the same leaves.

Deviations. `binarised` rebuilds a node's children by OTD with each child as one point, the mean of its leaves. The pseudo-code of Menon
et al. was read in MemTree's summary of it, not in the original. The random tree merges random pairs; no source defines its distribution.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from eval.structure.revenue import (
    EXACT,
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


# --- a memory's tree and others ---------------------------------------------------------------------------------------


def average_linkage(weights: Weights) -> Hierarchy:
    """Agglomerative clustering by mean similarity (SciPy); it earns at least a third of the upper bound (Moseley and Wang 2017)."""
    from scipy.cluster.hierarchy import linkage
    from scipy.spatial.distance import squareform

    if len(weights) == 1:
        return Hierarchy(1, (-1,))
    full = weights.matrix
    far = full.max() - full
    np.fill_diagonal(far, 0.0)
    return _merged(
        len(weights), ((int(row[0]), int(row[1])) for row in linkage(squareform(far, checks=False), "average"))
    )


def random_binary(n: int, rng: np.random.Generator) -> Hierarchy:
    """A binary tree from merging random pairs until one tree is left."""

    def draws() -> Iterator[tuple[int, int]]:
        open_nodes = list(range(n))
        for made in range(n, 2 * n - 1):
            first, second = sorted(rng.choice(len(open_nodes), 2, replace=False))
            pair = open_nodes[first], open_nodes[second]
            open_nodes[first] = made
            open_nodes[second] = open_nodes[-1]
            open_nodes.pop()
            yield pair

    return _merged(n, draws())


def _merged(n: int, merges: Iterator[tuple[int, int]]) -> Hierarchy:
    """The hierarchy of a sequence of merges; the i-th merge makes node n + i."""
    parents = [-1] * n
    for first, second in merges:
        parents[first] = parents[second] = len(parents)
        parents.append(-1)
    return Hierarchy(n, tuple(parents))


@dataclass(frozen=True, slots=True)
class RevenueReport:
    """Revenues of several hierarchies over the same leaves."""

    n: int
    total: float
    bound: float
    """(n - 2) x total similarity."""
    earned: Mapping[str, float]
    """observed, binarised, otd, average linkage, random binary, and the optimum where n <= 12."""
    beta: float
    """beta of the OTD tree."""

    @property
    def ratios(self) -> dict[str, float | None]:
        """Revenues as shares of the upper bound; None for fewer than three leaves, whose revenue is 0 in any tree."""
        return {name: value / self.bound if self.bound > 0 else None for name, value in self.earned.items()}

    @property
    def holds(self) -> bool:
        """Whether OTD earned at least beta / 3 of the upper bound; this is more than the theorem promises."""
        return self.earned["otd"] >= self.beta / 3 * self.bound * (1 - 1e-9)


def report(tree: Hierarchy, weights: Weights, rng: np.random.Generator) -> RevenueReport:
    """Revenues of one memory's tree and of the hierarchies to compare; OTD inserts the points in the order of their numbers."""
    online = otd(weights)
    earned = {
        "observed": revenue(tree, weights),
        "binarised": revenue(binarised(tree, weights), weights),
        "otd": revenue(online.tree, weights),
        "average linkage": revenue(average_linkage(weights), weights),
        "random binary": revenue(random_binary(len(weights), rng), weights),
    }
    if len(weights) <= EXACT:
        earned["optimum"] = optimum(weights)
    return RevenueReport(len(weights), weights.total, upper_bound(weights), earned, online.beta)
