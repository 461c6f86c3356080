"""A table as data, memory x data set x metric; `eval.report.rendering` prints it.

No cell is left out: a memory that was not run says `pending`, a data set that is missing says `no data` and the command that gets it,
and scored + unscored + errored + not reached = questions in every cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from eval.analysis.costs import Price
from eval.report.best_of import BestOf
from eval.report.cell import Cell, Column
from eval.report.equivalence import NO_RUNS, Runs
from eval.report.paired import case_gaps, gap_bounds
from eval.report.published import Published, qualified, verdict
from eval.statistics.families import Tested, single_step
from eval.statistics.stats import ENOUGH_CLUSTERS, Difference, Estimate, Interval


@dataclass(frozen=True, slots=True)
class Measure:
    """A value that isn't a mean score: a cost, a count, a property of a structure, the difference of two cells."""

    column: Column
    ours: Estimate | None
    published: Published | None = None
    why_not: str = ""
    """Why the published number is not comparable; empty when it is."""
    margin: float | None = None
    """Smaller gaps from the published value are `equivalent`; None is 5 % of it."""
    runs: Runs = NO_RUNS
    """How much the value changes from run to run, where it is the difference of two means."""
    qualifier: str = ""
    """What else differs from the published number, such as `prompts ours`; printed after the verdict."""

    def verdict(self) -> str:
        """The verdict on our number beside the published one."""
        plain = verdict(
            None if self.ours is None else self.ours.mean,
            self.published,
            scale=self.column.scale,
            margin=self.margin,
            runs=self.runs,
            why_not=self.why_not,
        )
        return qualified(plain, self.qualifier)


AnyCell = Cell | Measure | str
"""A string says why there is no number: `pending`, `no data: …`, or `–` where the row does not apply."""


@dataclass(frozen=True, slots=True)
class Row:
    """One memory and what the table prints of it."""

    name: str
    title: str
    cells: tuple[AnyCell, ...]
    """One per column."""
    runs: Mapping[str, Path] = field(default_factory=dict)
    """Run folder by data set, for the costs."""
    evidence: Mapping[str, Path] = field(default_factory=dict)
    """Evidence score file by data set."""
    ruled: bool = False
    """Whether a rule is printed above: the rows below it are not among the published ones."""
    by_stand_ins: bool = False
    """Whether an engine without a model gave its answers, or a part of them."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A row compared with the table's reference row in one column."""

    difference: Difference
    p: float | None
    """Adjusted over the table's family (`eval.statistics.families`); None where the pair is not tested."""
    untested: str = ""
    """Why it is not tested: one of the constants below, or `only_about`; empty where it is."""
    bounds: Interval | None = None
    """The difference over all questions, whatever the missing answers are worth; None where none is missing."""


EXPLORATORY = "exploratory"
NOT_ASKED = "not asked for"
CHOSEN = "chosen on these questions"
UNLIKE = "one side by stand-ins"
NO_SPREAD = "no spread"


def only_about(histories: int) -> str:
    """Said of a difference over fewer than five histories: a test over questions says nothing about others."""
    return f"about {'this 1 history' if histories == 1 else f'these {histories} histories'} alone"


@dataclass(frozen=True)
class Table:
    """A table ready to be printed."""

    name: str
    title: str
    caption: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    reference: str = ""
    """Name of the row that the others are compared with; empty: none."""
    prices: Mapping[str, Price] = field(default_factory=dict)
    """By role; a role without a price (an offline engine) costs nothing."""
    wanted: frozenset[str] | None = None
    """Names of the rows that the user asked for, None for all; the others show what earlier runs left on disk."""
    use: str = ""
    """What the table may be used for, in one sentence."""
    primary: frozenset[int] | None = None
    """Numbers of the columns that are tested; None takes the first score of each data set. The others are exploratory."""

    @property
    def missing_share(self) -> float:
        """The largest share of unscored questions in a cell, over the rows that the user asked for."""
        rows = [row for row in self.rows if self.wanted is None or row.name in self.wanted]
        return max(
            (cell.counts().missing_share for row in rows for cell in row.cells if isinstance(cell, Cell)), default=0.0
        )

    @cached_property
    def primaries(self) -> tuple[int, ...]:
        """Numbers of the columns that the table tests, in order."""
        first: dict[str, int] = {}
        for place, column in enumerate(self.columns):
            if column.questions:
                first.setdefault(column.dataset, place)
        chosen = first.values() if self.primary is None else self.primary
        return tuple(sorted(place for place in chosen if self.columns[place].questions))

    @cached_property
    def testable(self) -> tuple[int, ...]:
        """Numbers of the primary columns with five histories or more: the columns of the family."""
        return tuple(place for place in self.primaries if histories(self.columns[place]) >= ENOUGH_CLUSTERS)

    @cached_property
    def tests(self) -> Mapping[int, tuple[tuple[str, ...], Tested]]:
        """For each primary column with a test: the rows that are tested, and what came out.

        The family is what was asked for: the rows of `wanted` in the primary columns of at least five histories. Rows that earlier runs
        left on the disk are no part of it.
        """
        tested = {}
        for place in self.testable:
            rows = [row for row in self.rows if (row.name, place) in self._gaps and not self._untested(row, place)]
            if rows:
                tested[place] = (tuple(row.name for row in rows), self._tested(rows, place))
        return tested

    @cached_property
    def pairs(self) -> Mapping[tuple[str, int], Pair]:
        """Every row compared with the reference, by row name and column number; empty for a table without a reference."""
        adjusted = {
            (name, place): p
            for place, (names, tested) in self.tests.items()
            for name, p in zip(names, tested.ps, strict=True)
        }
        rows = {row.name: row for row in self.rows}
        return {
            (name, place): Pair(
                gap,
                adjusted.get((name, place)),
                self._untested(rows[name], place),
                gap_bounds(*self._cells(rows[name], place)),
            )
            for (name, place), gap in self._gaps.items()
        }

    @cached_property
    def _reference(self) -> Row | None:
        return next((row for row in self.rows if row.name == self.reference), None)

    @cached_property
    def _gaps(self) -> Mapping[tuple[str, int], Difference]:
        gaps: dict[tuple[str, int], Difference] = {}
        reference = self._reference
        if reference is None:
            return gaps
        for row in self.rows:
            for place, column in enumerate(self.columns):
                cell, other = row.cells[place], reference.cells[place]
                if row is reference or not (isinstance(cell, Cell) and isinstance(other, Cell)):
                    continue
                # The permutation over questions is printed for few histories only.
                gap = cell.minus(other, test=histories(column) < ENOUGH_CLUSTERS)
                if gap is not None:
                    gaps[row.name, place] = gap
        return gaps

    def _cells(self, row: Row, place: int) -> tuple[Cell, Cell]:
        assert self._reference is not None
        cell, other = row.cells[place], self._reference.cells[place]
        assert isinstance(cell, Cell)
        assert isinstance(other, Cell)
        return cell, other

    def _untested(self, row: Row, place: int) -> str:
        gap = self._gaps[row.name, place]
        if self._reference is not None and row.by_stand_ins != self._reference.by_stand_ins:
            return UNLIKE
        if gap.clusters < ENOUGH_CLUSTERS:
            return only_about(gap.clusters)
        if place not in self.primaries:
            return EXPLORATORY
        if self.wanted is not None and row.name not in self.wanted:
            return NOT_ASKED
        if any(isinstance(cell, BestOf) and not cell.held_out for cell in self._cells(row, place)):
            return CHOSEN
        return NO_SPREAD if gap.p_by_case is None else ""

    def _tested(self, rows: Sequence[Row], place: int) -> Tested:
        names = list(dict.fromkeys(question.cluster for question in self.columns[place].questions))
        gaps, ps, freedoms = [], [], []
        for row in rows:
            gap = self._gaps[row.name, place]
            assert gap.p_by_case is not None
            assert gap.sampling is not None
            gaps.append(case_gaps(*self._cells(row, place), names))
            ps.append(gap.p_by_case)
            freedoms.append(gap.sampling.freedom)
        return single_step(gaps, ps, freedoms, len(self.testable))


def histories(column: Column) -> int:
    """The number of histories that a column's questions are about."""
    return len({question.cluster for question in column.questions})
