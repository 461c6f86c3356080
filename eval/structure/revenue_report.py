"""The revenue of a memory's tree compared with other hierarchies over the same leaves: OTD, average linkage, a random tree.

Deviation. The random tree merges random pairs; no source defines its distribution.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from eval.structure.otd import binarised, otd
from eval.structure.revenue import EXACT, Hierarchy, Weights, optimum, revenue, upper_bound


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
