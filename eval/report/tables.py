"""What a table holds, memory x data set x metric: mean, intervals, counts, the published number, a verdict.

Nothing is left out: a memory that is not built says `pending`, a data set that is not there says `no data` and the command that
gets it, and scored + unscored + errored + not reached = questions in every cell. `eval.report.rendering` prints it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from data_loaders.schema import Case
from eval.costs import Price
from eval.report.published import Published, verdict
from eval.score import read_scores
from eval.stats import Difference, Estimate, Interval, difference, estimate, holm, stratified
from eval.store import read_predictions, safe_name

ALL, ANSWERABLE = "all", "answerable"
AGGREGATES = ("question", "case", "category")


@dataclass(frozen=True, slots=True)
class Asked:
    """A question as a table needs it: where it belongs, not what it says."""

    case_id: str
    question_id: str
    category: str
    cluster: str
    answerable: bool
    evidence: bool
    """Whether the data set says where the answer stands."""


def asked(cases: Iterable[Case]) -> tuple[Asked, ...]:
    """Every question of a data set, in order."""
    return tuple(
        Asked(case.id, question.id, gold.category, case.cluster or case.id, gold.answerable, bool(gold.evidence))
        for case in cases
        for question, gold in case.questions
    )


Scores = Mapping[tuple[str, str], float]
"""The score of each (case, question) that has one."""
Outcomes = Mapping[tuple[str, str], frozenset[str]]
"""What became of each (case, question), over replicates; absent when it was not reached."""


def outcomes(folders: Iterable[Path], questions: Sequence[Asked]) -> Outcomes:
    """Read the predictions of a run and its replicates."""
    found: dict[tuple[str, str], frozenset[str]] = {}
    for folder in folders:
        for case_id in dict.fromkeys(one.case_id for one in questions):
            for one in read_predictions(folder / "cases" / safe_name(case_id)).values():
                key = (case_id, one.question_id)
                found[key] = found.get(key, frozenset()) | {one.outcome} | ({"cut"} if one.cut else set())
    return found


@dataclass(frozen=True, slots=True)
class Counts:
    """What became of the questions; the four outcomes add up to `questions`."""

    questions: int
    scored: int
    unscored: int
    """Answered, but no verdict could be had."""
    errored: int
    not_reached: int
    aborted: int = 0
    """Among the scored: a memory's own search ended without a result."""
    cut: int = 0
    """Among the scored: an answer that was cut at the reader's limit."""

    @property
    def missing_share(self) -> float:
        """Share of the questions without a score."""
        return 1.0 - self.scored / self.questions if self.questions else 0.0


@dataclass(frozen=True, slots=True)
class Column:
    """One metric on one data set."""

    dataset: str
    title: str
    """Data set as printed."""
    metric: str
    """Metric as printed: which judge, or which F1."""
    questions: tuple[Asked, ...]
    aggregate: str = "question"
    answerable_title: str = ANSWERABLE
    scale: float = 1.0
    """What printed values are divided by to be shares."""


@dataclass(frozen=True)
class Cell:
    """One memory's scores in one column; several replicates are averaged question by question."""

    column: Column
    outcomes: Outcomes
    score_files: tuple[Path, ...]
    published: Published | None = None
    why_not: str = ""
    chosen: Mapping[str, Cell] = field(default_factory=dict)
    """Of the best of several: whose scores stand for each cluster; empty for a memory of its own."""
    rechosen: Mapping[str, Mapping[str, Cell]] = field(default_factory=dict)
    """The same, had the choice been made without a cluster: by the cluster that is left out."""
    repeats: int | None = None
    """How many of the judge's repeats count, the first ones; a file may hold more from an earlier run. None: all."""

    @cached_property
    def values(self) -> dict[tuple[str, str], float]:
        """Score of each scored question: the mean over repeats and replicates."""
        return {key: fmean(value for _, value in found) for key, found in self._found.items()}

    @cached_property
    def _found(self) -> dict[tuple[str, str], list[tuple[tuple[int, int], float]]]:
        clusters = {(one.case_id, one.question_id): one.cluster for one in self.column.questions}
        if self.chosen:
            return {
                key: self.chosen[cluster]._found[key]
                for key, cluster in clusters.items()
                if key in self.chosen[cluster]._found
            }
        found: dict[tuple[str, str], list[tuple[tuple[int, int], float]]] = {}
        for replicate, path in enumerate(self.score_files):
            for key, lines in read_scores(path).items():
                for line in lines:
                    if line["value"] is not None and key in clusters and self._counts(line["repeat"]):
                        found.setdefault(key, []).append(((replicate, line["repeat"]), line["value"]))
        return found

    def _counts(self, repeat: int) -> bool:
        return self.repeats is None or repeat < self.repeats

    @cached_property
    def spread(self) -> float | None:
        """Standard deviation of the mean over repeats and replicates; None for a single one."""
        draws: dict[tuple[int, int], list[float]] = {}
        for found in self._found.values():
            for draw, value in found:
                draws.setdefault(draw, []).append(value)
        return stdev([fmean(values) for values in draws.values()]) if len(draws) > 1 else None

    def counts(self, category: str = ALL) -> Counts:
        """What became of the questions of a category."""
        keys = [(one.case_id, one.question_id) for one in self._of(category)]
        scored = sum(key in self.values for key in keys)
        rest = [self.outcomes.get(key, frozenset()) for key in keys if key not in self.values]
        unscored = sum(bool(found - {"error"}) for found in rest)
        errored = sum(found == {"error"} for found in rest)
        aborted, cut = (
            sum(key in self.values and kind in self.outcomes.get(key, ()) for key in keys)
            for kind in ("aborted", "cut")
        )
        return Counts(len(keys), scored, unscored, errored, len(keys) - scored - unscored - errored, aborted, cut)

    def estimate(self, category: str = ALL, aggregate: str | None = None) -> Estimate | None:
        """Mean and intervals over the scored questions of a category; None when there are none."""
        key = (category, aggregate or self.column.aggregate)
        if key not in self._estimates:
            self._estimates[key] = self._estimated(*key)
        return self._estimates[key]

    @cached_property
    def _estimates(self) -> dict[tuple[str, str], Estimate | None]:
        """Those made so far: print, verdict, CSV and LaTeX ask for the same."""
        return {}

    def _estimated(self, category: str, aggregate: str) -> Estimate | None:
        kept = [one for one in self._of(category) if (one.case_id, one.question_id) in self.values]
        if not kept:
            return None
        values = [self.values[one.case_id, one.question_id] for one in kept]
        clusters = [one.cluster for one in kept]
        groups = {"question": [""] * len(kept), "case": clusters, "category": [one.category for one in kept]}[aggregate]
        without = None
        if self.rechosen:
            without = [_mean_of_groups(kept, groups, self._without(name)) for name in sorted(set(clusters))]
        if aggregate == "question":
            return estimate(values, clusters, without)
        return stratified(values, groups, clusters, without)

    def _without(self, cluster: str) -> Scores:
        """The scores of the other clusters, had the choice been made without this one; a memory of its own stays as it is."""
        cells = self.rechosen.get(cluster, {})
        return {
            key: value
            for one in self.column.questions
            if one.cluster != cluster
            and (key := (one.case_id, one.question_id))
            and (value := cells.get(one.cluster, self).values.get(key)) is not None
        }

    def bounds(self, category: str = ALL) -> Interval | None:
        """What the mean over all questions could be if everything without a score were wrong, or right."""
        counts = self.counts(category)
        if not counts.questions:
            return None
        keys = {(one.case_id, one.question_id) for one in self._of(category)}
        total = sum(value for key, value in self.values.items() if key in keys)
        return Interval(total / counts.questions, (total + counts.questions - counts.scored) / counts.questions)

    def verdict(self) -> str:
        """What our number means beside the published one."""
        return verdict(self.estimate(), self.published, scale=self.column.scale, why_not=self.why_not)

    def minus(self, other: Cell, category: str = ALL) -> Difference | None:
        """Paired difference over the questions that both have a score for."""
        shared = self.values.keys() & other.values.keys()
        both = [one for one in self._of(category) if (one.case_id, one.question_id) in shared]
        if not both:
            return None
        keys, clusters = [(one.case_id, one.question_id) for one in both], [one.cluster for one in both]
        without = None
        if self.rechosen or other.rechosen:
            without = [self._gap_without(other, both, name) for name in sorted(set(clusters))]
        first, second = [self.values[key] for key in keys], [other.values[key] for key in keys]
        return difference(first, second, clusters, without=without)

    def _gap_without(self, other: Cell, questions: Sequence[Asked], cluster: str) -> float:
        first, second = self._without(cluster), other._without(cluster)
        gaps = {key: first[key] - second[key] for key in first.keys() & second.keys()}
        return _mean_of_groups(questions, [""] * len(questions), gaps)

    def _of(self, category: str) -> list[Asked]:
        if category == ALL:
            return list(self.column.questions)
        if category == ANSWERABLE:
            return [one for one in self.column.questions if one.answerable]
        return [one for one in self.column.questions if one.category == category]


def _mean_of_groups(questions: Sequence[Asked], groups: Sequence[str], scores: Scores) -> float:
    """The mean of group means over the questions that have a score; 0 when none has."""
    found: dict[str, list[float]] = {}
    for one, group in zip(questions, groups, strict=True):
        if (value := scores.get((one.case_id, one.question_id))) is not None:
            found.setdefault(group, []).append(value)
    return fmean(map(fmean, found.values())) if found else 0.0


def choose(cells: Mapping[str, Cell], *, held_out: bool) -> dict[str, str]:
    """By cluster the name of the candidate with the highest mean; of equals the first.

    Args:
        cells: one a candidate, in the column that decides.
        held_out: False chooses once, on all questions, those reported included (as papers do); True chooses for each cluster on the others.

    Raises:
        ValueError: `held_out` with a single cluster, so that there is nothing to choose on.
    """
    questions = next(iter(cells.values())).column.questions
    clusters = list(dict.fromkeys(one.cluster for one in questions))
    if held_out and len(clusters) < 2:
        raise ValueError("one history only: nothing to choose on")
    chosen = {}
    for cluster in clusters:
        keys = [(one.case_id, one.question_id) for one in questions if not held_out or one.cluster != cluster]
        means = {
            name: fmean([cell.values[key] for key in keys if key in cell.values] or [-1.0])
            for name, cell in cells.items()
        }
        chosen[cluster] = max(means, key=lambda name: means[name])
    return chosen


def choose_again(cells: Mapping[str, Cell], *, held_out: bool) -> dict[str, dict[str, str]]:
    """`choose`, made anew without each cluster in turn, by the one left out: how much of a best row's luck lies in its choice."""
    questions = next(iter(cells.values())).column.questions
    clusters = list(dict.fromkeys(one.cluster for one in questions))
    place = {name: number for number, name in enumerate(clusters)}
    sums, counts = np.zeros((len(clusters), len(cells))), np.zeros((len(clusters), len(cells)))
    for number, cell in enumerate(cells.values()):
        for one in questions:
            if (value := cell.values.get((one.case_id, one.question_id))) is not None:
                sums[place[one.cluster], number] += value
                counts[place[one.cluster], number] += 1
    names = list(cells)
    found = {}
    for out, name in enumerate(clusters):
        left, size = sums.sum(axis=0) - sums[out], counts.sum(axis=0) - counts[out]
        total = left - sums if held_out else np.broadcast_to(left, sums.shape)
        known = size - counts if held_out else np.broadcast_to(size, sums.shape)
        means = np.divide(total, known, out=np.full(sums.shape, -1.0), where=known > 0)
        best = means.round(12).argmax(axis=1)  # of equals, up to rounding, the first
        found[name] = {other: names[best[place[other]]] for other in clusters if other != name}
    return found


def composed(
    cells: Mapping[str, Cell], chosen: Mapping[str, str], again: Mapping[str, Mapping[str, str]] | None = None
) -> Cell:
    """One cell out of the candidates' cells of a column: for each cluster the scores and outcomes of the one chosen.

    Args:
        again: what would be chosen without each cluster (`choose_again`); the interval by case then counts the choice's own luck.
    """
    column = next(iter(cells.values())).column
    outcomes = {
        key: cells[chosen[one.cluster]].outcomes[key]
        for one in column.questions
        if (key := (one.case_id, one.question_id)) in cells[chosen[one.cluster]].outcomes
    }
    rechosen = {
        out: {cluster: cells[name] for cluster, name in others.items()} for out, others in (again or {}).items()
    }
    return Cell(column, outcomes, (), chosen={one: cells[name] for one, name in chosen.items()}, rechosen=rechosen)


@dataclass(frozen=True, slots=True)
class Figure:
    """A number that is no mean of scores: a cost, a count, a property of a structure, the difference of two cells."""

    column: Column
    ours: Estimate | None
    published: Published | None = None
    why_not: str = ""
    tolerance: float | None = None
    """How far beyond the interval is still close; None is 5 % of the printed value."""

    def verdict(self) -> str:
        """What our number means beside the published one."""
        scale, printed = self.column.scale, self.published
        near = self.tolerance if self.tolerance is not None or printed is None else 0.05 * abs(printed.value / scale)
        return verdict(self.ours, printed, scale=scale, tolerance=near or 0.0, why_not=self.why_not)


AnyCell = Cell | Figure | str
"""A string says why there is no number: `pending`, `no data: …`, `–` where a row has nothing to say."""


def categories(column: Column) -> list[str]:
    """Names under which a column's questions are reported: all, answerable where some are not, then each category."""
    found = list(dict.fromkeys(one.category for one in column.questions if one.category))
    groups = [ALL] if len({one.answerable for one in column.questions}) < 2 else [ALL, ANSWERABLE]
    return [*groups, *(found if len(found) > 1 else [])]


@dataclass(frozen=True, slots=True)
class Row:
    """One memory and what there is to print of it."""

    name: str
    title: str
    cells: tuple[AnyCell, ...]
    runs: Mapping[str, Path] = field(default_factory=dict)
    """Run folder by data set, for the costs."""
    evidence: Mapping[str, Path] = field(default_factory=dict)
    """Evidence score file by data set."""
    ruled: bool = False
    """A rule stands above it: what follows is not among the published rows."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A row of a table compared with its reference row in one column."""

    difference: Difference
    p: float | None
    """Adjusted (Holm) over all pairs of the table."""
    p_by_case: float | None
    """Likewise, among the tests by case."""


@dataclass(frozen=True)
class Table:
    """A table ready to be printed."""

    name: str
    title: str
    caption: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    reference: str = ""
    """The memory that the others are compared with, pair by pair."""
    prices: Mapping[str, Price] = field(default_factory=dict)
    """By role; a role without one (an offline engine) costs no money."""
    wanted: frozenset[str] | None = None
    """Names of the rows that were asked for; None: all. The others are printed from what is on disk."""

    @property
    def missing_share(self) -> float:
        """The largest share of questions without a score in any cell of a row that was asked for."""
        rows = [row for row in self.rows if self.wanted is None or row.name in self.wanted]
        return max(
            (cell.counts().missing_share for row in rows for cell in row.cells if isinstance(cell, Cell)), default=0.0
        )

    @cached_property
    def pairs(self) -> Mapping[tuple[str, int], Pair]:
        """Every row compared with the reference, by row and place of the column; empty for a table without a reference."""
        reference = next((row for row in self.rows if row.name == self.reference), None)
        if reference is None:
            return {}
        gaps = {
            (row.name, place): gap
            for row in self.rows
            if row is not reference
            for place, (cell, other) in enumerate(zip(row.cells, reference.cells, strict=True))
            if isinstance(cell, Cell) and isinstance(other, Cell) and (gap := cell.minus(other)) is not None
        }
        adjusted = zip(
            holm([gap.p for gap in gaps.values()]), holm([gap.p_by_case for gap in gaps.values()]), strict=True
        )
        return {key: Pair(gap, *ps) for (key, gap), ps in zip(gaps.items(), adjusted, strict=True)}
