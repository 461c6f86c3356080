"""What does not add up in a table of scores: totals, fractions, intervals, differences and numbers printed twice.

A total is taken for the mean of its categories weighted by their questions. With every cell rounded to its last digit it may be off by
half of the total's last digit, or by as much as the cells' rounding explains; anything more is a mismatch. An accuracy is k right
answers of n, so few values are possible. Everything is computed in exact fractions from the digits as printed.

Deviation from a plain recomputation: when most totals of a table disagree with its headings, every order of the question counts is
tried, and the one that fits most rows is used from there on (and reported).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import groupby, permutations
from math import ceil, floor
from typing import Literal

from eval.report.published import Published

OVERALL = ("Overall", "Average", "All")
"""What papers call the column of totals."""
MOST_RUNS = 20
"""Beyond so many repetitions nearly every printed value is possible."""
MOST_ORDERED = 6
"""Categories whose orders are all tried (720)."""

Verdict = Literal["OK", "OK within rounding", "MISMATCH"]
Kind = Literal[
    "heading", "average", "fraction", "questions", "interval", "difference", "repetition", "relation", "claim"
]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that does not add up."""

    kind: Kind
    where: str
    """Paper and table, or section."""
    row: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.row}: {self.text}" if self.row else f"{self.where}: {self.text}"


@dataclass(frozen=True, slots=True)
class Value:
    """A number as printed."""

    printed: str
    still: bool = False
    """Its standard deviation over repeated runs is printed as zero."""

    @property
    def exact(self) -> Fraction:
        return Fraction(self.printed)

    @property
    def half(self) -> Fraction:
        """Half of the last digit: how far rounding may have moved it."""
        _, _, decimals = self.printed.partition(".")
        return Fraction(1, 2 * 10 ** len(decimals))


@dataclass(frozen=True, slots=True)
class Line:
    """One row of a table: its categories, their counts of questions, and the total."""

    where: str
    column: str
    """What its total may be compared with: data set, models, metric."""
    name: str
    categories: tuple[str, ...]
    counts: tuple[int, ...]
    cells: tuple[Value, ...]
    total: Value
    scale: int = 1
    """100 where shares are printed as percentages."""
    counted: bool = True
    """Whether a cell is right answers of questions; False for means such as F1."""
    runs: int = 1
    """Repetitions that the paper says its cells are means of."""

    @property
    def row(self) -> str:
        return f"{self.column} · {self.name}"


def weighted_mean(line: Line) -> Fraction:
    """The total that the cells give, in the unit of the table."""
    weighted = sum((n * cell.exact for n, cell in zip(line.counts, line.cells, strict=True)), Fraction())
    return weighted / sum(line.counts)


def average_verdict(line: Line) -> Verdict:
    """Whether the printed total is the weighted mean of its cells."""
    gap = abs(weighted_mean(line) - line.total.exact)
    if gap <= line.total.half:
        return "OK"
    by_cells = sum((n * cell.half for n, cell in zip(line.counts, line.cells, strict=True)), Fraction())
    return "OK within rounding" if gap <= line.total.half + by_cells / sum(line.counts) else "MISMATCH"


def feasible(value: Value, n: int, scale: int = 1) -> bool:
    """Whether some whole number of right answers out of `n` prints as this value."""
    return ceil((value.exact - value.half) * n / scale) <= floor((value.exact + value.half) * n / scale)


def infeasible_cells(line: Line, runs: int) -> list[str]:
    """Categories whose cell is no k/n over so many runs; a cell that never varied must be k/n of a single one."""
    return [
        name
        for name, n, cell in zip(line.categories, line.counts, line.cells, strict=True)
        if not feasible(cell, n if cell.still else n * runs, line.scale)
    ]


def fewest_runs(line: Line) -> int | None:
    """The smallest number of runs over which every cell is k/n; None when none up to `MOST_RUNS` is."""
    return next((runs for runs in range(1, MOST_RUNS + 1) if not infeasible_cells(line, runs)), None)


def one_question_less(line: Line) -> Line | None:
    """The row with the counts that its unvarying cells ask for: one question less where n is impossible and n - 1 is not.

    None when no cell asks for it.
    """
    counts = tuple(
        n - 1 if cell.still and not feasible(cell, n, line.scale) and feasible(cell, n - 1, line.scale) else n
        for n, cell in zip(line.counts, line.cells, strict=True)
    )
    return replace(line, counts=counts) if counts != line.counts else None


def repairs(line: Line) -> dict[str, Fraction]:
    """By category the value that would give the printed total if all other cells stand; impossible shares are left out."""
    missing = (line.total.exact - weighted_mean(line)) * sum(line.counts)
    found = {
        name: cell.exact + missing / n for name, n, cell in zip(line.categories, line.counts, line.cells, strict=True)
    }
    return {name: value for name, value in found.items() if 0 <= value <= line.scale}


def best_order(lines: Sequence[Line]) -> tuple[int, ...]:
    """The order of the question counts under which most totals are the mean of their cells; of equals the closest.

    Args:
        lines: rows of one table, with the same categories.
    """

    def fit(counts: tuple[int, ...]) -> tuple[int, Fraction]:
        tried = [replace(line, counts=counts) for line in lines]
        gaps = sum((abs(weighted_mean(line) - line.total.exact) for line in tried), Fraction())
        return _agreeing(tried), -gaps

    return max(dict.fromkeys(permutations(lines[0].counts)), key=fit)


def _agreeing(lines: Iterable[Line]) -> int:
    return sum(average_verdict(line) != "MISMATCH" for line in lines)


def reordered(lines: Sequence[Line]) -> tuple[list[Line], list[Finding]]:
    """The rows with counts that fit: those of the headings, or where most totals contradict them another order."""
    done: list[Line] = []
    findings: list[Finding] = []
    for (where, categories, counts), found in groupby(
        lines, key=lambda line: (line.where, line.categories, line.counts)
    ):
        group = list(found)
        fitting = _agreeing(group)
        if len(group) > 1 and 2 * fitting < len(group) and len(counts) <= MOST_ORDERED:
            other = best_order(group)
            moved = [replace(line, counts=other) for line in group]
            if 2 * _agreeing(moved) > len(group):
                findings.append(
                    Finding(
                        "heading",
                        where,
                        "",
                        f"with the question counts of its headings ({_pairs(categories, counts)}) {fitting} of {len(group)} totals are the "
                        f"mean of their cells, with {_pairs(categories, other)} {_agreeing(moved)}: the headings are wrong"
                        + _fraction_gain(group, moved),
                    )
                )
                group = moved
        done += group
    return done, findings


def _fraction_gain(before: Sequence[Line], after: Sequence[Line]) -> str:
    if not before[0].counted:
        return ""
    rows = [sum(bool(infeasible_cells(line, line.runs)) for line in lines) for lines in (before, after)]
    return f"; rows with cells that are no k/n: {rows[0]} before, {rows[1]} after"


def _pairs(names: Iterable[str], counts: Iterable[int]) -> str:
    return ", ".join(f"{name} {n}" for name, n in zip(names, counts, strict=True))


def audit_lines(lines: Sequence[Line]) -> list[Finding]:
    """Headings, totals and fractions of tables; rows of one table stand together."""
    lines, findings = reordered(lines)
    for line in lines:
        if average_verdict(line) == "MISMATCH":
            findings.append(
                _mismatch(line, [one for one in lines if (one.where, one.column) == (line.where, line.column)])
            )
        if line.counted:
            findings += _fractions(line)
    return findings


def _mismatch(line: Line, column: Sequence[Line]) -> Finding:
    mean = weighted_mean(line)
    parts = [f"total {line.total.printed}, its cells give {_shown(mean, line.total)}"]
    if line.counted and not infeasible_cells(line, line.runs):
        wanted = ", ".join(f"{name} {_shown(value, line.total)}" for name, value in repairs(line).items())
        parts.append(f"a single cell would mend it: {wanted}" if wanted else "no single cell would mend it")
    passed = [one.name for one in column if (one.total.exact - line.total.exact) * (one.total.exact - mean) < 0]
    if passed:
        parts.append(
            f"with {_shown(mean, line.total)} it would be {'above' if mean > line.total.exact else 'below'} {', '.join(passed)}"
        )
    return Finding("average", line.where, line.row, "; ".join(parts))


def _fractions(line: Line) -> list[Finding]:
    findings = []
    impossible = infeasible_cells(line, line.runs)
    if impossible:
        runs = fewest_runs(line)
        fit = f"{runs} runs would fit" if runs else f"no number of runs up to {MOST_RUNS} fits"
        said = f" over {line.runs} runs" if line.runs > 1 else ""
        findings.append(Finding("fraction", line.where, line.row, f"no k/n{said}: {', '.join(impossible)}; {fit}"))
    if not feasible(line.total, sum(line.counts) * line.runs, line.scale):
        n = sum(line.counts) * line.runs
        findings.append(Finding("fraction", line.where, line.row, f"total {line.total.printed} is no k/{n}"))
    if (fewer := one_question_less(line)) is not None:
        counts = ", ".join(
            f"{name} {cell.printed} is of {now} questions, not {n}"
            for name, cell, n, now in zip(line.categories, line.cells, line.counts, fewer.counts, strict=True)
            if n != now
        )
        mean = _shown(weighted_mean(fewer), line.total)
        text = f"{counts}; over {sum(fewer.counts)} questions the total is {mean}, printed {line.total.printed}"
        findings.append(Finding("questions", line.where, line.row, text))
    return findings


def _shown(value: Fraction, like: Value) -> str:
    """One digit more than a printed number has."""
    return f"{float(value):.{len(like.printed.partition('.')[2]) + 1}f}"


def where(one: Published) -> str:
    """Paper and table."""
    return f"{one.paper} {one.table}"


def row_name(one: Published) -> str:
    """Method and variant."""
    return " / ".join(filter(None, (one.method, one.variant)))


def exact_value(one: Published) -> Value:
    return Value(one.printed, still=one.std == 0)


def lines_of(
    numbers: Iterable[Published],
    counts: Mapping[str, Mapping[str, int]],
    accuracies: Sequence[str],
    runs: Mapping[str, int],
) -> list[Line]:
    """The rows that have a total, a cell for at least two categories, and no category without a count.

    Args:
        counts: questions by data set and lower-case category.
        accuracies: metrics that are right answers of questions.
        runs: repetitions by paper; one where it says nothing.
    """
    groups: dict[tuple[str, str, str], list[Published]] = {}
    for one in numbers:
        if one.dataset in counts:
            column = f"{one.dataset}, {one.backbone}, {one.metric}"
            groups.setdefault((where(one), column, row_name(one)), []).append(one)
    lines = []
    for (place, column, name), group in groups.items():
        cells = [one for one in group if one.category not in OVERALL]
        totals = [one for one in group if one.category in OVERALL]
        known = counts[group[0].dataset]
        if len(cells) > 1 and len(totals) == 1 and all(one.category.lower() in known for one in cells):
            lines.append(
                Line(
                    place,
                    column,
                    name,
                    tuple(one.category for one in cells),
                    tuple(known[one.category.lower()] for one in cells),
                    tuple(exact_value(one) for one in cells),
                    exact_value(totals[0]),
                    100 if max(one.value for one in group) > 1 else 1,
                    group[0].metric in accuracies,
                    runs.get(group[0].paper, 1),
                )
            )
    return sorted(lines, key=lambda line: line.where)
