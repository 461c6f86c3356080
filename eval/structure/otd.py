"""Moseley-Wang revenue of a hierarchy, the quantity of MemTree's Theorem 1, and Online Top-Down insertion (OTD), which guarantees a share.

Given points with similarities w_ij >= 0, a rooted hierarchy earns `sum over pairs of w_ij (n - leaves below their lowest common ancestor)`
(MemTree appendix B, Definition 1; Moseley and Wang 2017). Summed over nodes this is `sum over v of W(v) (|parent(v)| - |v|)`, where W(v)
adds the pairs inside v. Embeddings therefore cost one vector sum per node, O(nodes x d).

Similarities are bilinear here, w_ij = left_i . right_j, which covers both a matrix (left = unit vectors) and cosines. Cosines may be
negative, but the bounds need w >= 0: `from_vectors` uses (1 + cosine) / 2. Revenue ratios depend on that choice.

Checks and observations. The guarantee Rev(OTD) >= (beta/3) Rev(optimum) holds for OTD (Menon et al. 2019, as in MemTree appendix B.2);
`check_guarantee` compares both on random instances. It does not carry over to MemTree as specified: MemTree attaches below its threshold
and so builds multi-way trees (n equal similarities below it give a star, whose revenue is 0), it compares with embeddings of summaries
instead of averages, and its thresholds follow a fixed schedule. A MemTree's revenue is therefore only an observation, which `report` gives
with that of OTD, average linkage and a random tree over the same leaves.

Deviations. `binarised` rebuilds a node's children by OTD with each child as one point, the mean of its leaves. The pseudo-code of Menon
et al. was read in MemTree's summary of it, not in the original. The random tree merges random pairs; no source defines its distribution.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

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
    leaves = [node for node, under in enumerate(below) if not under]
    leaves.sort(key=lambda node: rank.get(tree.ids[node], len(rank)))
    vectors = tree.vectors[leaves]
    if not vectors.size or not vectors.any(axis=1).all():
        raise ValueError(f"{tree.case_id}: a leaf has no vector")
    nodes = [*leaves, *(node for node, under in enumerate(below) if under)]
    number = {node: place for place, node in enumerate(nodes)}
    several = sum(not parents for parents in tree.parents) > 1
    top = len(nodes) if several else -1
    parents = [number[tree.parents[node][0]] if tree.parents[node] else top for node in nodes]
    return Hierarchy(len(leaves), (*parents, *([-1] if several else []))), vectors


# --- online insertion -------------------------------------------------------------------------------------------------


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
            sums = node.left + leaf.left, node.right + leaf.right
            pair = _Node(*sums, node.size + 1, node.within + across, [node, leaf])
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
            means = Weights(*(np.stack([side[child] for child in under]) / count for side in (left, right)))
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
        if trial % 20 == 19:
            rows = rng.standard_normal((int(rng.integers(4, 9)), 3))
            weights = from_vectors(rows / np.linalg.norm(rows, axis=1, keepdims=True))
        else:
            size = int(rng.integers(3, 8))
            upper = np.triu(rng.random((size, size)), 1)
            weights = from_matrix(upper + upper.T)
        run = otd(weights)
        earned, best = revenue(run.tree, weights), optimum(weights)
        to_optimum.append(earned / best)
        to_promise.append(earned / (run.beta / 3 * best) if run.beta else np.inf)
        to_bound.append(earned / (run.beta / 3 * upper_bound(weights)) if run.beta else np.inf)
    optimal, bounded = (sum(ratio < 1 - 1e-9 for ratio in ratios) for ratios in (to_promise, to_bound))
    return Guarantee(trials, optimal, bounded, float(min(to_bound)), float(min(to_optimum)))


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
    merges = linkage(squareform(far, checks=False), "average")[:, :2].astype(int).tolist()
    return _merged(len(weights), ((first, second) for first, second in merges))


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
