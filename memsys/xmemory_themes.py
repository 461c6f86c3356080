"""The themes of xMemory: a partition of statements, grown one by one and put in order by an objective (xMemory §3.2, App. B).

Pure geometry: no model is asked here. The result names the sets of statements that the method has summarised on the way,
in order, so that the memory can ask for them together. Themes keep the number they got when they were opened; the first part of a split and
the larger part of a merge (of equals the older) keep theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from memsys.vectors import Vectors, best, normalised

Members = tuple[int, ...]
"""Numbers of statements, ascending."""
_EPSILON = 1e-8
_LEAST_GAIN = 1e-9


@dataclass(frozen=True, slots=True)
class ThemeRules:
    """The thresholds of the construction; all similarities are cosines."""

    cap: int = 12
    """Most statements in a theme."""
    attach: float = 0.62
    """A statement this similar to a theme's centroid joins it, full or not."""
    lenient: float = 0.52
    """A statement this similar joins a theme that is not full."""
    small: int = 8
    """A theme of at most so many is not taken apart by its graph."""
    edge: float = 0.66
    """Statements this similar are linked in a theme's graph."""
    cohesion: float = 0.72
    """A full theme whose statements are less similar than this on average is considered for a split."""
    near: float = 0.78
    """Themes this similar may be merged."""
    max_merges: int = 2
    coalesce: float = 0.50
    """A single statement may join a theme this similar."""
    neighbours: int = 10
    """Themes around that the objective looks at."""
    split: bool = True
    merge: bool = True
    """Whether themes are merged and single statements coalesced."""
    guided: bool = True
    """Whether the objective chooses the split of an overcrowded theme; else its graph does (as released)."""
    renew_full: bool = True
    """Whether full themes are summarised again in the end; else they keep the summary of when they were opened (as released)."""


@dataclass(frozen=True, slots=True)
class Partition:
    """Themes in the order in which they were opened; every statement is in exactly one."""

    themes: tuple[Members, ...]
    summarised: tuple[Members, ...]
    """For each theme, the statements that its summary was made of."""
    asked: tuple[Members, ...]
    """Every set that was summarised on the way, in order, with repetitions."""
    reassigned: int
    """Statements whose theme changed after they were first attached."""


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The k-nearest-neighbour graph of some nodes: for each node the nodes it points to, with their cosine (> 0)."""

    edges: tuple[dict[int, float], ...]

    def weights(self, nodes: Sequence[int]) -> np.ndarray:
        """How much each of the nodes covers each other, float64 [m, m]; 1 for itself, 0 without an edge."""
        place = {node: index for index, node in enumerate(nodes)}
        covered = np.eye(len(nodes))
        for node, row in place.items():
            for other, cosine in self.edges[node].items():
                if other in place:
                    covered[row, place[other]] = cosine
        return covered


def partition(vectors: np.ndarray, rules: ThemeRules) -> Partition:
    """The themes of statements with these unit vectors [n, d], which are taken in order.

    Attach each (§3.2), splitting what exceeds the cap; summarise; split full themes that do not hold together; merge the best pairs;
    let single statements join a theme as long as the objective gains.
    """
    growing = _Growing(vectors, vectors.astype(np.float64), rules)
    for statement in range(len(vectors)):
        growing.assimilate(statement)
    growing.review()
    if rules.merge:
        growing.merge()
        growing.coalesce()
    return growing.result()


def nearest(vectors: np.ndarray, k: int, *, earlier: bool = False) -> Neighbours:
    """The `k` most similar other rows of each row (unit vectors [n, d]) with a positive cosine; with `earlier`, of those before it."""
    edges: list[dict[int, float]] = []
    for first in range(0, len(vectors), 512):  # in blocks, so that the memory needed stays linear
        similarities = _rounded(vectors[first : first + 512] @ vectors.T)
        for row, cosines in enumerate(similarities, start=first):
            cosines[row] = -np.inf
            seen = cosines[:row] if earlier else cosines
            edges.append({index: float(seen[index]) for index in best(seen, k) if seen[index] > 0})
    return Neighbours(tuple(edges))


def sparsity(sizes: Sequence[int] | np.ndarray) -> float:
    """How balanced the theme sizes are, in (0, 1] (xMemory Eq. 2)."""
    counts = np.asarray(sizes, dtype=np.float64)
    return float(counts.sum() ** 2 / (len(counts) * (counts**2).sum()))


def bell(similarities: Sequence[float] | np.ndarray) -> np.ndarray:
    """g of each nearest-neighbour similarity: 1 at their median, falling off by the median absolute deviation (Eq. 3), float64 [K]."""
    values = np.asarray(similarities, dtype=np.float64)
    deviations = values - median(values.tolist())
    spread = median(np.abs(deviations).tolist()) + _EPSILON
    weights: np.ndarray = np.exp(-(deviations**2) / (2 * spread**2))
    return weights


def guidance(sizes: Sequence[int], totals: np.ndarray) -> float:
    """The objective f = sparsity + semantics of themes (Eq. 1-3), each given by its size and the sum of its unit vectors [K, d]."""
    counts = np.asarray(sizes, dtype=np.float64)
    # Of unit vectors the mean cosine with their centroid is the length of their mean.
    products = totals @ totals.T
    lengths = np.sqrt(products.diagonal())
    similarities = _rounded(products / np.maximum(np.outer(lengths, lengths), _EPSILON))
    np.fill_diagonal(similarities, -np.inf)
    closest = similarities.max(axis=1) if len(counts) > 1 else np.zeros(1)
    return sparsity(counts) + float((lengths / counts) @ bell(closest)) / len(counts)


def components(vectors: np.ndarray, edge: float) -> list[list[int]]:
    """Connected components of the graph that links rows of cosine `edge` or more, each ascending, by their first row."""
    from scipy.sparse.csgraph import connected_components

    linked = _rounded(vectors @ vectors.T) >= edge
    labels = connected_components(linked, directed=False)[1]
    groups: dict[int, list[int]] = {}
    for row, label in enumerate(labels):
        groups.setdefault(int(label), []).append(row)
    return list(groups.values())


def principal_order(vectors: np.ndarray) -> list[int]:
    """Rows by their place on the first principal axis, whose largest coordinate counts as positive."""
    centred = vectors - vectors.mean(axis=0)
    axis = np.linalg.svd(centred, full_matrices=False)[2][0]
    places = np.round(centred @ (axis * np.sign(axis[np.argmax(np.abs(axis))])), 6)
    return [int(row) for row in np.argsort(places, kind="stable")]


def chunks(rows: Sequence[int], size: int) -> Iterator[list[int]]:
    """The rows in consecutive pieces of at most `size`, each put in ascending order."""
    return (sorted(rows[start : start + size]) for start in range(0, len(rows), size))


def _rounded(cosines: np.ndarray) -> np.ndarray:
    """Cosines to six decimals, float64: thresholds are met exactly, and the bell, 1e-8 wide where most are equal, sees them equal."""
    rounded: np.ndarray = np.round(cosines.astype(np.float64), 6)
    return rounded


@dataclass(slots=True)
class _Theme:
    members: list[int]
    total: np.ndarray
    """Sum of the members' vectors, float64 [d]."""


@dataclass(slots=True)
class _Growing:
    """Themes while they are made; a theme that was merged into another has no entry any more."""

    rows: np.ndarray
    """The statements' vectors, float32 [n, d]."""
    vectors: np.ndarray
    """The same in float64, in which sums and the objective are computed."""
    rules: ThemeRules
    themes: dict[int, _Theme] = field(default_factory=dict)
    centroids: Vectors = field(default_factory=Vectors)
    """Of unit length, by theme number."""
    sizes: list[int] = field(default_factory=list)
    """By theme number; 0 for a theme that is gone."""
    summarised: dict[int, Members] = field(default_factory=dict)
    asked: list[Members] = field(default_factory=list)
    moved: set[int] = field(default_factory=set)

    def result(self) -> Partition:
        numbers = sorted(self.themes)
        return Partition(
            tuple(tuple(self.themes[number].members) for number in numbers),
            tuple(self.summarised[number] for number in numbers),
            tuple(self.asked),
            len(self.moved),
        )

    def assimilate(self, statement: int) -> None:
        similarities = _rounded(self.centroids.similarities(self.rows[statement]))
        number = int(np.argmax(similarities)) if len(similarities) else None
        if number is None or not self._takes(self.themes[number], float(similarities[number])):
            self._summarise(self._open([statement]))
            return
        theme = self.themes[number]
        self._set(number, [*theme.members, statement], theme.total + self.vectors[statement])
        if self.rules.split and self.sizes[number] > self.rules.cap:
            parts = self._best_split(number) if self.rules.guided else self._graph_split(number)
            self._split(number, parts)

    def review(self) -> None:
        """Summarise every theme again; first split full ones that do not hold together."""
        for number, theme in list(self.themes.items()):
            full = self.sizes[number] >= self.rules.cap
            if full and self.rules.split and self._loose(theme) and len(parts := self._best_split(number)) > 1:
                self._split(number, parts)
            elif not full or self.rules.renew_full:
                self._summarise(number)

    def merge(self) -> None:
        """Merge the pair of near themes with the largest gain, at most `max_merges` times."""
        for _ in range(self.rules.max_merges):
            gains = {(one, other): self._gain(one, other) for one, other in self._near_pairs()}
            pair = max(gains, key=lambda pair: gains[pair], default=None)
            if pair is None or gains[pair] <= _LEAST_GAIN:
                return
            self._join(*pair)

    def coalesce(self) -> None:
        """Let each theme of one statement join the neighbour with the largest gain, until nothing changes."""
        changed = True
        while changed:
            changed = False
            for number in list(self.themes):
                if self.sizes[number] == 1:
                    changed |= self._settle(number)

    def _settle(self, single: int) -> bool:
        similarities = self._similarities(single)
        similarities[np.array(self.sizes) >= self.rules.cap] = -np.inf
        near = best(similarities, self.rules.neighbours)
        near = [target for target in near if similarities[target] >= self.rules.coalesce]
        gains = {target: self._gain(single, target) for target in near}
        target = max(gains, key=lambda number: gains[number], default=None)
        if target is None or gains[target] <= _LEAST_GAIN:
            return False
        self._join(target, single)
        return True

    def _takes(self, theme: _Theme, similarity: float) -> bool:
        fits = similarity >= self.rules.lenient and len(theme.members) < self.rules.cap
        return similarity >= self.rules.attach or fits

    def _loose(self, theme: _Theme) -> bool:
        size = len(theme.members)
        own = float((self.vectors[theme.members] ** 2).sum())
        mean = (float(theme.total @ theme.total) - own) / (size * (size - 1)) if size > 1 else 1.0
        return size >= self.rules.small and mean < self.rules.cohesion

    def _graph_split(self, number: int) -> list[list[int]]:
        members = self.themes[number].members
        own = self.vectors[members]
        whole = len(members) <= self.rules.small
        groups = [list(range(len(members)))] if whole else components(own, self.rules.edge)
        return [[members[row] for row in piece] for group in groups for piece in chunks(group, self.rules.cap)]

    def _best_split(self, number: int) -> list[list[int]]:
        """Of the split by graph and that along the principal axis, the one with the higher objective; one part is no split."""
        members = self.themes[number].members
        along = principal_order(self.vectors[members])
        by_axis = [[members[row] for row in piece] for piece in chunks(along, self.rules.cap)]
        around = self._around(number)
        return max((self._graph_split(number), by_axis), key=lambda parts: self._objective(around, parts))

    def _split(self, number: int, parts: Sequence[list[int]]) -> None:
        self._set(number, parts[0], self.vectors[parts[0]].sum(axis=0))
        self._summarise(number)
        for part in parts[1:]:
            self.moved.update(part)
            self._summarise(self._open(part))

    def _join(self, one: int, other: int) -> None:
        kept, gone = sorted((one, other), key=lambda number: (-self.sizes[number], number))
        left = self.themes.pop(gone)
        self.sizes[gone] = 0
        self.moved.update(left.members)
        self._set(kept, sorted([*self.themes[kept].members, *left.members]), self.themes[kept].total + left.total)
        self._summarise(kept)

    def _open(self, members: list[int]) -> int:
        number = self.centroids.add(self.rows[members[0]])
        self.sizes.append(0)
        self._set(number, members, self.vectors[members].sum(axis=0))
        return number

    def _set(self, number: int, members: list[int], total: np.ndarray) -> None:
        self.themes[number] = _Theme(members, total)
        self.sizes[number] = len(members)
        self.centroids.set(number, normalised(total))

    def _summarise(self, number: int) -> None:
        self.summarised[number] = tuple(self.themes[number].members)
        self.asked.append(self.summarised[number])

    def _similarities(self, number: int) -> np.ndarray:
        """Cosine of a theme's centroid with every other, by number; minus infinity for itself and those that are gone."""
        similarities = _rounded(self.centroids.similarities(self.centroids.matrix[number]))
        similarities[np.array(self.sizes) == 0] = -np.inf
        similarities[number] = -np.inf
        return similarities

    def _around(self, number: int) -> list[int]:
        """The themes nearest to one, itself left out."""
        similarities = self._similarities(number)
        return [other for other in best(similarities, self.rules.neighbours) if self.sizes[other] and other != number]

    def _near_pairs(self) -> list[tuple[int, int]]:
        """Pairs that may be merged: near each other, small enough together, one among the nearest of the other."""
        pairs: set[tuple[int, int]] = set()
        for number in self.themes:
            similarities = self._similarities(number)
            similarities[np.array(self.sizes) > self.rules.cap - self.sizes[number]] = -np.inf
            near = best(similarities, self.rules.neighbours)
            pairs |= {(min(number, n), max(number, n)) for n in near if similarities[n] >= self.rules.near}
        return sorted(pairs)

    def _gain(self, one: int, other: int) -> float:
        """What the objective gains by a merge, over the two themes and the nearest of both."""
        around = sorted({*self._around(one), *self._around(other)} - {one, other})
        parts = [self.themes[one].members, self.themes[other].members]
        return self._objective(around, [parts[0] + parts[1]]) - self._objective(around, parts)

    def _objective(self, around: Iterable[int], parts: Sequence[list[int]]) -> float:
        themes = [self.themes[number] for number in around]
        sizes = [*(len(theme.members) for theme in themes), *map(len, parts)]
        totals = [*(theme.total for theme in themes), *(self.vectors[part].sum(axis=0) for part in parts)]
        return guidance(sizes, np.stack(totals))
