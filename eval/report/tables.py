"""A table as data, memory x data set x metric; `eval.report.rendering` prints it.

No cell is left out: a memory that was not run says `pending`, a data set that is missing says `no data` and the command that gets it,
and scored + unscored + errored + not reached = questions in every cell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from eval.costs import Price
from eval.report.cell import Cell, Column
from eval.report.published import Published, qualified, verdict
from eval.stats import Difference, Estimate, holm


@dataclass(frozen=True, slots=True)
class Measure:
    """A value that isn't a mean score: a cost, a count, a property of a structure, the difference of two cells."""

    column: Column
    ours: Estimate | None
    published: Published | None = None
    why_not: str = ""
    """Why the published number is not comparable; empty when it is."""
    tolerance: float | None = None
    """How far outside the interval is still `close`; None is 5 % of the published value."""
    qualifier: str = ""
    """What else differs from the published number, such as `prompts ours`; printed after the verdict."""

    def verdict(self) -> str:
        """The verdict on our number beside the published one."""
        scale, printed = self.column.scale, self.published
        near = self.tolerance if self.tolerance is not None or printed is None else 0.05 * abs(printed.value / scale)
        plain = verdict(self.ours, printed, scale=scale, tolerance=near or 0.0, why_not=self.why_not)
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


@dataclass(frozen=True, slots=True)
class Pair:
    """A row compared with the table's reference row in one column."""

    difference: Difference
    p: float | None
    """Adjusted (Holm) over all pairs of the table."""
    p_by_case: float | None
    """Adjusted likewise, over the tests by case."""


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

    @property
    def missing_share(self) -> float:
        """The largest share of unscored questions in a cell, over the rows that the user asked for."""
        rows = [row for row in self.rows if self.wanted is None or row.name in self.wanted]
        return max(
            (cell.counts().missing_share for row in rows for cell in row.cells if isinstance(cell, Cell)), default=0.0
        )

    @cached_property
    def pairs(self) -> Mapping[tuple[str, int], Pair]:
        """Every row compared with the reference, by row name and column number; empty for a table without a reference."""
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
