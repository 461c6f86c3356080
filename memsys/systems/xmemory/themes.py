"""The themes of xMemory: a partition of statements, grown statement by statement under an objective (xMemory §3.2, App. B).

The objective says how balanced, coherent and well spaced a partition is (Eq. 1-3). This module is pure geometry and calls no model. Its
result lists, in order, the sets of statements that the method summarises on the way, so that the memory can request the summaries
together. A theme keeps the number it got when it was opened. The first part of a split keeps the number of the old theme; a merge keeps
the number of the larger theme (of equals, the older).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

import numpy as np

from memsys.interface import Positive, Settings, filled
from memsys.systems.nemori import Mode
from memsys.vectors import Vectors, best, normalised

Members = tuple[int, ...]
"""Numbers of statements, ascending."""
_LEAST_GAIN = 1e-9
"""A merge needs a gain above this; smaller ones are rounding errors."""


@dataclass(frozen=True)
class ThemeRules(Settings):
    """Settings of the construction; all similarities are cosines."""

    theme_cap: Positive = 12
    """Maximum number of statements in a theme; more are split."""
    attach: float = 0.62
    """Minimum similarity to a theme's centroid at which a statement joins the theme, full or not."""
    lenient: float = 0.52
    """Minimum similarity at which a statement joins a theme that is not full."""
    small: int = 8
    """Number of statements up to which a theme is not split by its graph."""
    edge: float = 0.66
    """Minimum similarity at which a theme's graph links two statements."""
    cohesion: float = 0.72
    """Mean similarity of its statements below which a full theme is considered for a split."""
    tiny: Positive = 1
    """Number of statements up to which a theme may be merged with a near one."""
    coalesce: float = 0.50
    """Minimum similarity at which a tiny theme and another may be merged."""
    near: float = 0.78
    """Minimum similarity at which themes of any size may be merged at the end."""
    max_merges: int = 2
    """Maximum number of such merges at the end."""
    neighbours: Positive = 10
    """Number of nearest themes considered for a merge, and of a node's neighbours in the graphs that reads use."""
    objective_over: Positive | None = None
    """Number of themes around a change that the objective covers; None is the mode's (`paper`: the whole partition, Eq. 1-3)."""
    split: bool = True
    """Whether themes are split (Table 6)."""
    merge: bool = True
    """Whether themes are merged (Table 6)."""
    merge_at: Literal["insertion", "end"] | None = None
    """When to merge tiny themes: at each `insertion`, around the theme that the statement has changed; or once at the `end` (as
    released), after the pairs of near themes; None is the mode's."""
    guided: bool | None = None
    """Whether the objective chooses the split of an overcrowded theme; otherwise its graph does (as released). None is the mode's."""
    renew_full: bool | None = None
    """Whether full themes are summarised again at the end; otherwise they keep the summary of when they were opened (as released). None
    is the mode's."""

    def of(self, mode: Mode) -> ThemeRules:
        """These rules with the mode's values in the place of None."""
        if mode == "paper":
            return filled(self, {"merge_at": "insertion", "guided": True, "renew_full": True})
        return filled(self, {"objective_over": 10, "merge_at": "end", "guided": False, "renew_full": False})


@dataclass(frozen=True, slots=True)
class Partition:
    """Themes in the order in which they were opened; every statement is in exactly one theme."""

    themes: tuple[Members, ...]
    summarised: tuple[Members, ...]
    """For each theme, the statements from which its summary is made."""
    asked: tuple[Members, ...]
    """Every set of statements that the method summarises on the way, in order, with repetitions."""
    reassigned: int
    """Number of statements whose theme changed after their first assignment."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """A k-nearest-neighbour graph: for each node, the nodes that it points to, with their cosine (> 0)."""

    edges: tuple[dict[int, float], ...]

    def weights(self, nodes: Sequence[int]) -> np.ndarray:
        """Edge weights among these nodes, float64 [m, m]: row covers column; 1 on the diagonal, 0 without an edge."""
        row_of = {node: row for row, node in enumerate(nodes)}
        covered = np.eye(len(nodes))
        for node, row in row_of.items():
            for other, cosine in self.edges[node].items():
                if other in row_of:
                    covered[row, row_of[other]] = cosine
        return covered


def partition(vectors: np.ndarray, rules: ThemeRules) -> Partition:
    """Partition statements, given in order by their unit vectors [n, d], into themes.

    Assign each statement (§3.2), split themes above the cap and merge tiny ones (§5.3: later insertions trigger both). Then summarise
    the themes, and split full themes of low cohesion. The release merges only at the end, first near pairs, then tiny themes, while
    the objective gains.
    """
    growing = _Growing(vectors, vectors.astype(np.float64), rules)
    for statement in range(len(vectors)):
        growing.assimilate(statement)
    growing.review()
    if rules.merge and rules.merge_at == "end":
        growing.merge()
        growing.coalesce()
    return growing.result()


def nearest(vectors: np.ndarray, k: int, *, earlier: bool = False) -> Neighbours:
    """Link each row (unit vectors [n, d]) to its `k` most similar other rows of positive cosine; with `earlier`, to rows before it only."""
    edges: list[dict[int, float]] = []
    for first in range(0, len(vectors), 512):  # in blocks, so that memory use stays linear
        similarities = rounded(vectors[first : first + 512] @ vectors.T)
        for row, cosines in enumerate(similarities, start=first):
            cosines[row] = -np.inf
            candidates = cosines[:row] if earlier else cosines
            edges.append({index: float(cosines[index]) for index in best(candidates, k) if cosines[index] > 0})
    return Neighbours(tuple(edges))


def components(vectors: np.ndarray, edge: float) -> list[list[int]]:
    """Connected components of the graph that links rows with a cosine of at least `edge`.

    Rows ascend within a component, and components are ordered by their first row.
    """
    from scipy.sparse.csgraph import connected_components

    linked = rounded(vectors @ vectors.T) >= edge
    labels = connected_components(linked, directed=False)[1]
    groups: dict[int, list[int]] = {}
    for row, label in enumerate(labels):
        groups.setdefault(int(label), []).append(row)
    return list(groups.values())


def principal_order(vectors: np.ndarray) -> list[int]:
    """Rows in order of their projection on the first principal axis, whose sign makes its largest coordinate positive."""
    centred = vectors - vectors.mean(axis=0)
    axis = np.linalg.svd(centred, full_matrices=False)[2][0]
    projections = np.round(centred @ (axis * np.sign(axis[np.argmax(np.abs(axis))])), 6)
    return [int(row) for row in np.argsort(projections, kind="stable")]


def chunks(rows: Sequence[int], size: int) -> Iterator[list[int]]:
    """Cut rows into consecutive pieces of at most `size`, and sort each piece."""
    return (sorted(rows[start : start + size]) for start in range(0, len(rows), size))


_EPSILON = 1e-8


def sparsity(sizes: Sequence[int] | np.ndarray) -> float:
    """Balance of the theme sizes, in (0, 1]; 1 for equal sizes (xMemory Eq. 2)."""
    counts = np.asarray(sizes, dtype=np.float64)
    return float(counts.sum() ** 2 / (len(counts) * (counts**2).sum()))


def bell(similarities: Sequence[float] | np.ndarray) -> np.ndarray:
    """Weight g of each nearest-neighbour similarity, float64 [K]: a Gaussian around their median (xMemory Eq. 3).

    Its width is the median absolute deviation.
    """
    values = np.asarray(similarities, dtype=np.float64)
    deviations = values - median(values.tolist())
    spread = median(np.abs(deviations).tolist()) + _EPSILON
    weights: np.ndarray = np.exp(-(deviations**2) / (2 * spread**2))
    return weights


def guidance(sizes: Sequence[int], totals: np.ndarray) -> float:
    """The objective f = sparsity + semantics of themes (xMemory Eq. 1-3).

    Args:
        sizes: number of statements of each theme, [K].
        totals: sum of each theme's unit vectors, [K, d].
    """
    counts = np.asarray(sizes, dtype=np.float64)
    # The mean cosine of unit vectors with their centroid is the length of their mean.
    products = totals @ totals.T
    lengths = np.sqrt(products.diagonal())
    similarities = rounded(products / np.maximum(np.outer(lengths, lengths), _EPSILON))
    np.fill_diagonal(similarities, -np.inf)
    closest = similarities.max(axis=1) if len(counts) > 1 else np.zeros(1)
    return sparsity(counts) + float((lengths / counts) @ bell(closest)) / len(counts)


def rounded(cosines: np.ndarray) -> np.ndarray:
    """Round cosines to six decimals, float64.

    Cosines at a threshold then compare equal to it. So do equal similarities in `bell`, whose width is 1e-8 when most are equal.
    """
    rounded: np.ndarray = np.round(cosines.astype(np.float64), 6)
    return rounded


class Whole:
    """The objective over a whole partition, updated while its themes change.

    To evaluate a replacement of some themes, it compares the replacements with all centroids; `guidance` compares all with all.
    """

    def __init__(self) -> None:
        self._sizes = np.empty(0)
        """Number of statements by theme number, float64 [K]; 0 for a removed theme."""
        self._cohesion = np.empty(0)
        """Mean cosine of each theme's statements with its centroid, float64 [K]."""
        self._centroids = np.empty((0, 0))
        """Unit vectors, float64 [K, d]."""
        self._cosines = np.empty((0, 0))
        """Cosines between centroids, float64 [K, K]; minus infinity on the diagonal and for removed themes."""
        self._nearest = np.empty(0, dtype=np.intp)
        """Number of the theme nearest to each theme."""

    def set(self, number: int, size: int, total: np.ndarray) -> None:
        """Set a theme's number of statements and the sum of their vectors [d]; size 0 removes it. New numbers must be consecutive."""
        if number == len(self._sizes):
            centroids = self._centroids.reshape(number, len(total))
            self._sizes, self._cohesion = np.append(self._sizes, 0.0), np.append(self._cohesion, 0.0)
            self._nearest = np.append(self._nearest, 0)
            self._centroids = np.vstack([centroids, np.zeros(len(total))])
            self._cosines = np.pad(self._cosines, (0, 1), constant_values=-np.inf)
        length = float(np.linalg.norm(total)) if size else 0.0
        self._sizes[number] = size
        self._cohesion[number] = length / max(size, 1)
        self._centroids[number] = total / max(length, _EPSILON)
        cosines = rounded(self._centroids @ self._centroids[number]) if size else np.full(len(self._sizes), -np.inf)
        cosines[self._sizes == 0] = -np.inf
        cosines[number] = -np.inf
        closer = cosines > self._cosines[np.arange(len(cosines)), self._nearest]
        stale = (self._nearest == number) & ~closer
        self._cosines[number], self._cosines[:, number] = cosines, cosines
        self._nearest[closer] = number
        self._nearest[stale] = self._cosines[stale].argmax(axis=1)
        self._nearest[number] = int(cosines.argmax())

    def value(self, without: Collection[int] = (), parts: Sequence[tuple[int, np.ndarray]] = ()) -> float:
        """The objective when `parts`, each (size, sum of vectors [d]), replace the themes `without`."""
        alive = self._sizes > 0
        alive[list(without)] = False
        kept = np.flatnonzero(alive)
        closest = self._cosines[kept, self._nearest[kept]]
        orphans = np.isin(self._nearest[kept], list(without))
        if orphans.any():
            closest[orphans] = np.where(alive, self._cosines[kept[orphans]], -np.inf).max(axis=1)
        sizes = np.array([size for size, _ in parts], dtype=np.float64)
        totals = np.array([total for _, total in parts]).reshape(len(parts), self._centroids.shape[1])
        lengths = np.linalg.norm(totals, axis=1)
        units = totals / np.maximum(lengths, _EPSILON)[:, None]
        if parts:
            outside = rounded(self._centroids[kept] @ units.T)
            inside = rounded(units @ units.T)
            np.fill_diagonal(inside, -np.inf)
            closest = np.maximum(closest, outside.max(axis=1, initial=-np.inf))
            closest = np.append(closest, np.vstack([outside, inside]).max(axis=0))
        counts = np.append(self._sizes[kept], sizes)
        closest = closest if len(counts) > 1 else np.zeros(1)
        cohesion = np.append(self._cohesion[kept], lengths / sizes)
        return sparsity(counts) + float(cohesion @ bell(closest)) / len(counts)


@dataclass(slots=True)
class _Theme:
    members: list[int]
    total: np.ndarray
    """Sum of the members' vectors, float64 [d]."""


@dataclass(slots=True)
class _Growing:
    """Themes under construction; a theme that was merged into another is removed."""

    rows: np.ndarray
    """The statements' vectors, float32 [n, d]."""
    vectors: np.ndarray
    """The same vectors in float64, for sums and the objective."""
    rules: ThemeRules
    themes: dict[int, _Theme] = field(default_factory=dict)
    centroids: Vectors = field(default_factory=Vectors)
    """Unit vectors, by theme number."""
    sizes: list[int] = field(default_factory=list)
    """Number of statements, by theme number; 0 for a removed theme."""
    summarised: dict[int, Members] = field(default_factory=dict)
    """For each theme, the statements of its last summary."""
    asked: list[Members] = field(default_factory=list)
    moved: set[int] = field(default_factory=set)
    """Statements whose theme has changed."""
    whole: Whole = field(default_factory=Whole)

    def result(self) -> Partition:
        """The current partition."""
        numbers = sorted(self.themes)
        return Partition(
            tuple(tuple(self.themes[number].members) for number in numbers),
            tuple(self.summarised[number] for number in numbers),
            tuple(self.asked),
            len(self.moved),
        )

    def assimilate(self, statement: int) -> None:
        """Assign a statement to the most similar theme or a new one; then split that theme or merge tiny ones."""
        similarities = self._alive(self.centroids.similarities(self.rows[statement]))
        number = int(np.argmax(similarities)) if len(similarities) else None
        if number is None or not self._takes(self.themes[number], float(similarities[number])):
            changed = [self._open([statement])]
            self._summarise(changed[0])
        else:
            theme, changed = self.themes[number], [number]
            self._set(number, [*theme.members, statement], theme.total + self.vectors[statement])
            if self.rules.split and self.sizes[number] > self.rules.theme_cap:
                parts = self._best_split(number) if self.rules.guided else self._graph_split(number)
                changed = self._split(number, parts)
        if self.rules.merge and self.rules.merge_at == "insertion":
            for number in changed:
                while number in self.themes and (pair := self._best_merge(number)):
                    number = self._join(*pair)

    def review(self) -> None:
        """Summarise every theme again, after a split of full themes with low cohesion."""
        for number, theme in list(self.themes.items()):
            full = self.sizes[number] >= self.rules.theme_cap
            if full and self.rules.split and self._loose(theme) and len(parts := self._best_split(number)) > 1:
                self._split(number, parts)
            elif not full or self.rules.renew_full:
                self._summarise(number)

    def merge(self) -> None:
        """Merge the pair of near themes with the largest gain, at most `max_merges` times."""
        for _ in range(self.rules.max_merges):
            gains = {pair: self._gain(*pair) for pair in self._near_pairs()}
            pair = max(gains, key=lambda pair: gains[pair], default=None)
            if pair is None or gains[pair] <= _LEAST_GAIN:
                return
            self._join(*pair)

    def coalesce(self) -> None:
        """Merge each tiny theme with the neighbour of largest gain, until nothing changes."""
        changed = True
        while changed:
            changed = False
            for number in list(self.themes):
                if 0 < self.sizes[number] <= self.rules.tiny and (pair := self._best_merge(number)):
                    self._join(*pair)
                    changed = True

    def _best_merge(self, number: int) -> tuple[int, int] | None:
        """The pair of this theme and a near one with the largest gain, one of them tiny; None if no merge gains."""
        similarities = self._similarities(number)
        sizes = np.array(self.sizes)
        similarities[sizes > self.rules.theme_cap - self.sizes[number]] = -np.inf
        if self.sizes[number] > self.rules.tiny:
            similarities[sizes > self.rules.tiny] = -np.inf
        near = [
            other for other in best(similarities, self.rules.neighbours) if similarities[other] >= self.rules.coalesce
        ]
        gains = {other: self._gain(other, number) for other in near}
        other = max(gains, key=lambda theme: gains[theme], default=None)
        return None if other is None or gains[other] <= _LEAST_GAIN else (other, number)

    def _takes(self, theme: _Theme, similarity: float) -> bool:
        """Whether a statement with this similarity joins the theme."""
        fits = similarity >= self.rules.lenient and len(theme.members) < self.rules.theme_cap
        return similarity >= self.rules.attach or fits

    def _loose(self, theme: _Theme) -> bool:
        """Whether the mean cosine between different statements of the theme is below `cohesion`."""
        size = len(theme.members)
        self_products = float((self.vectors[theme.members] ** 2).sum())
        mean = (float(theme.total @ theme.total) - self_products) / (size * (size - 1)) if size > 1 else 1.0
        return size >= self.rules.small and mean < self.rules.cohesion

    def _graph_split(self, number: int) -> list[list[int]]:
        """Split a theme into the components of its graph, each cut to at most `cap` statements."""
        members = self.themes[number].members
        if len(members) <= self.rules.small:
            groups = [list(range(len(members)))]
        else:
            groups = components(self.vectors[members], self.rules.edge)
        return [[members[row] for row in piece] for group in groups for piece in chunks(group, self.rules.theme_cap)]

    def _best_split(self, number: int) -> list[list[int]]:
        """The better of two splits by the objective: by graph, or along the principal axis. A single part means no split."""
        members = self.themes[number].members
        order = principal_order(self.vectors[members])
        by_axis = [[members[row] for row in piece] for piece in chunks(order, self.rules.theme_cap)]
        around = self._around(number)
        return max((self._graph_split(number), by_axis), key=lambda parts: self._objective((number,), around, parts))

    def _split(self, number: int, parts: Sequence[list[int]]) -> list[int]:
        """Give each part a theme of its own, the old theme to the first; return their numbers."""
        self._set(number, parts[0], self.vectors[parts[0]].sum(axis=0))
        numbers = [number, *(self._open(part) for part in parts[1:])]
        self.moved.update(*parts[1:])
        for part in numbers:
            self._summarise(part)
        return numbers

    def _join(self, first: int, second: int) -> int:
        """Merge two themes; return the number that is kept, that of the larger theme (of equals, the older)."""
        kept, removed = sorted((first, second), key=lambda number: (-self.sizes[number], number))
        merged = self.themes.pop(removed)
        self.sizes[removed] = 0
        self._update_objective(removed, 0, merged.total)
        self.moved.update(merged.members)
        self._set(kept, sorted([*self.themes[kept].members, *merged.members]), self.themes[kept].total + merged.total)
        self._summarise(kept)
        return kept

    def _open(self, members: list[int]) -> int:
        """Open a theme with these statements and return its number."""
        number = self.centroids.add(self.rows[members[0]])
        self.sizes.append(0)
        self._set(number, members, self.vectors[members].sum(axis=0))
        return number

    def _set(self, number: int, members: list[int], total: np.ndarray) -> None:
        """Replace the statements of a theme; `total` is the sum of their vectors [d]."""
        self.themes[number] = _Theme(members, total)
        self.sizes[number] = len(members)
        self.centroids.matrix[number] = normalised(total)
        self._update_objective(number, len(members), total)

    def _update_objective(self, number: int, size: int, total: np.ndarray) -> None:
        if self.rules.objective_over is None:
            self.whole.set(number, size, total)

    def _summarise(self, number: int) -> None:
        self.summarised[number] = tuple(self.themes[number].members)
        self.asked.append(self.summarised[number])

    def _similarities(self, number: int) -> np.ndarray:
        """Cosine of a theme's centroid with every other, by number; minus infinity for itself and removed themes."""
        similarities = self._alive(self.centroids.similarities(self.centroids.matrix[number]))
        similarities[number] = -np.inf
        return similarities

    def _alive(self, similarities: np.ndarray) -> np.ndarray:
        """Round cosines with all centroids; those with removed themes become minus infinity."""
        cosines = rounded(similarities)
        cosines[np.array(self.sizes) == 0] = -np.inf
        return cosines

    def _around(self, number: int) -> list[int]:
        """The nearest other themes that the objective covers; empty when it covers the whole partition."""
        if self.rules.objective_over is None:
            return []
        similarities = self._similarities(number)
        return [
            other for other in best(similarities, self.rules.objective_over) if self.sizes[other] and other != number
        ]

    def _near_pairs(self) -> list[tuple[int, int]]:
        """Pairs of themes that may be merged: similar, together within the cap, and one among the other's nearest."""
        pairs: set[tuple[int, int]] = set()
        for number in self.themes:
            similarities = self._similarities(number)
            similarities[np.array(self.sizes) > self.rules.theme_cap - self.sizes[number]] = -np.inf
            near = best(similarities, self.rules.neighbours)
            similar = [other for other in near if similarities[other] >= self.rules.near]
            pairs |= {(min(number, other), max(number, other)) for other in similar}
        return sorted(pairs)

    def _gain(self, first: int, second: int) -> float:
        """Increase of the objective by a merge of two themes."""
        pair = (first, second)
        around = sorted({*self._around(first), *self._around(second)} - {*pair})
        parts = [self.themes[number].members for number in pair]
        return self._objective(pair, around, [parts[0] + parts[1]]) - self._objective(pair, around, parts)

    def _objective(self, replaced: Sequence[int], around: Iterable[int], parts: Sequence[list[int]]) -> float:
        """The objective when `parts` replace some themes, over the whole partition or over the themes `around`."""
        totals = [self.vectors[part].sum(axis=0) for part in parts]
        sizes = [len(part) for part in parts]
        if self.rules.objective_over is None:
            return self.whole.value(replaced, list(zip(sizes, totals, strict=True)))
        themes = [self.themes[number] for number in around]
        return guidance(
            [*(len(theme.members) for theme in themes), *sizes], np.stack([*(theme.total for theme in themes), *totals])
        )
