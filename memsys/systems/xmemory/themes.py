"""The themes of xMemory: a partition of statements, grown one by one and put in order by an objective (xMemory §3.2, App. B).

Pure geometry: no model is asked here. The result names the sets of statements that the method has summarised on the way,
in order, so that the memory can ask for them together. Themes keep the number they got when they were opened; the first part of a split and
the larger part of a merge (of equals the older) keep theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from memsys.systems.xmemory.objective import Whole, guidance, rounded
from memsys.vectors import Vectors, best, normalised

Members = tuple[int, ...]
"""Numbers of statements, ascending."""
MergeAt = Literal["insertion", "end"]
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
    tiny: int = 1
    """A theme of at most so many may be merged with a near one."""
    coalesce: float = 0.50
    """How similar a tiny theme and another must be to be merged."""
    near: float = 0.78
    """In the end, themes of any size this similar may be merged."""
    max_merges: int = 2
    """In the end, at most so many pairs of these."""
    neighbours: int = 10
    """With how many nearest themes a merge is considered."""
    objective_over: int | None = None
    """How many themes around a change the objective looks at; None is the whole partition (Eq. 1-3)."""
    split: bool = True
    merge: bool = True
    merge_at: MergeAt = "insertion"
    """When tiny themes are merged: as statements come, around the theme that a statement has changed; or once in the `end` (as
    released), with the pairs of near themes before them."""
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

    Attach each (§3.2), splitting what exceeds the cap and merging what is tiny (§5.3: later insertions trigger either); summarise;
    split full themes that do not hold together. The release merges in the end only: the best pairs, then what is tiny, as long as
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
    """The `k` most similar other rows of each row (unit vectors [n, d]) with a positive cosine; with `earlier`, of those before it."""
    edges: list[dict[int, float]] = []
    for first in range(0, len(vectors), 512):  # in blocks, so that the memory needed stays linear
        similarities = rounded(vectors[first : first + 512] @ vectors.T)
        for row, cosines in enumerate(similarities, start=first):
            cosines[row] = -np.inf
            seen = cosines[:row] if earlier else cosines
            edges.append({index: float(seen[index]) for index in best(seen, k) if seen[index] > 0})
    return Neighbours(tuple(edges))


def components(vectors: np.ndarray, edge: float) -> list[list[int]]:
    """Connected components of the graph that links rows of cosine `edge` or more, each ascending, by their first row."""
    from scipy.sparse.csgraph import connected_components

    linked = rounded(vectors @ vectors.T) >= edge
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
    whole: Whole = field(default_factory=Whole)

    def result(self) -> Partition:
        numbers = sorted(self.themes)
        return Partition(
            tuple(tuple(self.themes[number].members) for number in numbers),
            tuple(self.summarised[number] for number in numbers),
            tuple(self.asked),
            len(self.moved),
        )

    def assimilate(self, statement: int) -> None:
        similarities = self._alive(self.centroids.similarities(self.rows[statement]))
        number = int(np.argmax(similarities)) if len(similarities) else None
        if number is None or not self._takes(self.themes[number], float(similarities[number])):
            changed = [self._open([statement])]
            self._summarise(changed[0])
        else:
            theme, changed = self.themes[number], [number]
            self._set(number, [*theme.members, statement], theme.total + self.vectors[statement])
            if self.rules.split and self.sizes[number] > self.rules.cap:
                parts = self._best_split(number) if self.rules.guided else self._graph_split(number)
                changed = self._split(number, parts)
        if self.rules.merge and self.rules.merge_at == "insertion":
            for number in changed:
                while number in self.themes and (pair := self._best_merge(number)):
                    number = self._join(*pair)

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
        """Let each tiny theme join the neighbour with the largest gain, until nothing changes."""
        changed = True
        while changed:
            changed = False
            for number in list(self.themes):
                if 0 < self.sizes[number] <= self.rules.tiny and (pair := self._best_merge(number)):
                    self._join(*pair)
                    changed = True

    def _best_merge(self, number: int) -> tuple[int, int] | None:
        """The theme and the near one whose merge gains most, one of them tiny; None where none gains."""
        similarities = self._similarities(number)
        sizes = np.array(self.sizes)
        similarities[sizes > self.rules.cap - self.sizes[number]] = -np.inf
        if self.sizes[number] > self.rules.tiny:
            similarities[sizes > self.rules.tiny] = -np.inf
        near = [
            other for other in best(similarities, self.rules.neighbours) if similarities[other] >= self.rules.coalesce
        ]
        gains = {other: self._gain(other, number) for other in near}
        other = max(gains, key=lambda theme: gains[theme], default=None)
        return None if other is None or gains[other] <= _LEAST_GAIN else (other, number)

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
        return max((self._graph_split(number), by_axis), key=lambda parts: self._objective((number,), around, parts))

    def _split(self, number: int, parts: Sequence[list[int]]) -> list[int]:
        """Put each part into a theme of its own, the first into the old one; their numbers."""
        self._set(number, parts[0], self.vectors[parts[0]].sum(axis=0))
        numbers = [number, *(self._open(part) for part in parts[1:])]
        self.moved.update(*parts[1:])
        for each in numbers:
            self._summarise(each)
        return numbers

    def _join(self, one: int, other: int) -> int:
        """Merge two themes; the number of the larger, of equals the older, which is kept."""
        kept, gone = sorted((one, other), key=lambda number: (-self.sizes[number], number))
        left = self.themes.pop(gone)
        self.sizes[gone] = 0
        self._tell(gone, 0, left.total)
        self.moved.update(left.members)
        self._set(kept, sorted([*self.themes[kept].members, *left.members]), self.themes[kept].total + left.total)
        self._summarise(kept)
        return kept

    def _open(self, members: list[int]) -> int:
        number = self.centroids.add(self.rows[members[0]])
        self.sizes.append(0)
        self._set(number, members, self.vectors[members].sum(axis=0))
        return number

    def _set(self, number: int, members: list[int], total: np.ndarray) -> None:
        self.themes[number] = _Theme(members, total)
        self.sizes[number] = len(members)
        self.centroids.set(number, normalised(total))
        self._tell(number, len(members), total)

    def _tell(self, number: int, size: int, total: np.ndarray) -> None:
        if self.rules.objective_over is None:
            self.whole.set(number, size, total)

    def _summarise(self, number: int) -> None:
        self.summarised[number] = tuple(self.themes[number].members)
        self.asked.append(self.summarised[number])

    def _similarities(self, number: int) -> np.ndarray:
        """Cosine of a theme's centroid with every other, by number; minus infinity for itself and those that are gone."""
        similarities = self._alive(self.centroids.similarities(self.centroids.matrix[number]))
        similarities[number] = -np.inf
        return similarities

    def _alive(self, similarities: np.ndarray) -> np.ndarray:
        """Cosines with all centroids, rounded; minus infinity with those that are gone."""
        cosines = rounded(similarities)
        cosines[np.array(self.sizes) == 0] = -np.inf
        return cosines

    def _around(self, number: int) -> list[int]:
        """The themes nearest to one that the objective looks at, itself left out; none where it looks at all."""
        if self.rules.objective_over is None:
            return []
        similarities = self._similarities(number)
        return [
            other for other in best(similarities, self.rules.objective_over) if self.sizes[other] and other != number
        ]

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
        """What the objective gains by a merge."""
        pair = (one, other)
        around = sorted({*self._around(one), *self._around(other)} - {*pair})
        parts = [self.themes[number].members for number in pair]
        return self._objective(pair, around, [parts[0] + parts[1]]) - self._objective(pair, around, parts)

    def _objective(self, gone: Sequence[int], around: Iterable[int], parts: Sequence[list[int]]) -> float:
        """The objective with the parts in the place of some themes, over the whole partition or the themes around."""
        totals = [self.vectors[part].sum(axis=0) for part in parts]
        sizes = [len(part) for part in parts]
        if self.rules.objective_over is None:
            return self.whole.value(gone, list(zip(sizes, totals, strict=True)))
        themes = [self.themes[number] for number in around]
        return guidance(
            [*(len(theme.members) for theme in themes), *sizes], np.stack([*(theme.total for theme in themes), *totals])
        )
