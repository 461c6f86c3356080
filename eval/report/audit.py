"""Check published tables row by row: totals must follow from their categories, and accuracies must be possible fractions.

A total should be the mean of its categories, weighted by their numbers of questions. It may be off by half of its last printed digit,
or by as much as the rounding of the cells explains; a larger gap is a mismatch. An accuracy is k right of n answers, so only few values are
possible. Everything is computed in exact fractions from the digits as printed. Single numbers are checked,
too: intervals, differences, numbers that are printed twice, and those that follow from others.

Deviation from a plain recomputation: when most totals of a table contradict its headings, every order of the question counts is tried.
The order that fits most rows is used for all checks of the table, and reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import groupby, permutations, product
from math import ceil, floor, sqrt
from typing import Literal

from eval.report.counted import counted
from eval.report.published import Published
from eval.statistics.stats import NORMAL, Interval, wilson

OVERALL = ("Overall", "Average", "All")
"""Papers' names for the column of totals."""
MOST_RUNS = 20
"""Maximum number of runs that is tried: with more, nearly every printed value is possible."""
MOST_ORDERED = 6
"""Maximum number of categories for which all orders are tried (720 orders)."""

Verdict = Literal["OK", "OK within rounding", "MISMATCH"]
Kind = Literal[
    "heading", "average", "fraction", "questions", "interval", "difference", "repetition", "relation", "claim", "evidence"
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """One inconsistency in a published table."""

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
    """Whether the paper prints a standard deviation of zero over repeated runs."""

    @property
    def exact(self) -> Fraction:
        return Fraction(self.printed)

    @property
    def half(self) -> Fraction:
        """Half of the last printed digit: the maximum rounding error of the value."""
        _, _, decimals = self.printed.partition(".")
        return Fraction(1, 2 * 10 ** len(decimals))


@dataclass(frozen=True, slots=True)
class AuditedRow:
    """One row of a table: its categories, their numbers of questions, and the total."""

    where: str
    column: str
    """Data set, models and metric: totals of the same column are comparable."""
    name: str
    categories: tuple[str, ...]
    counts: tuple[int, ...]
    cells: tuple[Value, ...]
    total: Value
    scale: int = 1
    """100 where shares are printed as percentages."""
    counted: bool = True
    """Whether a cell is a share of right answers; False for means such as F1."""
    runs: int = 1
    """Number of runs in each cell's mean, according to the paper."""

    @property
    def row(self) -> str:
        return f"{self.column} · {self.name}"


def weighted_mean(line: AuditedRow) -> Fraction:
    """The total computed from the cells, in the unit of the table."""
    weighted = sum((n * cell.exact for n, cell in zip(line.counts, line.cells, strict=True)), Fraction())
    return weighted / sum(line.counts)


def average_verdict(line: AuditedRow) -> Verdict:
    """Check whether the printed total is the weighted mean of its cells."""
    gap = abs(weighted_mean(line) - line.total.exact)
    if gap <= line.total.half:
        return "OK"
    by_cells = sum((n * cell.half for n, cell in zip(line.counts, line.cells, strict=True)), Fraction())
    return "OK within rounding" if gap <= line.total.half + by_cells / sum(line.counts) else "MISMATCH"


def feasible(value: Value, n: int, scale: int = 1) -> bool:
    """Whether some whole number of right answers out of `n` rounds to this value."""
    return ceil((value.exact - value.half) * n / scale) <= floor((value.exact + value.half) * n / scale)


def infeasible_cells(line: AuditedRow, runs: int) -> list[str]:
    """Categories whose cell is no k/n over this many runs; a cell with zero deviation must be k/n of a single run."""
    cells = zip(line.categories, line.counts, line.cells, strict=True)
    return [name for name, n, cell in cells if not feasible(cell, n if cell.still else n * runs, line.scale)]


def fewest_runs(line: AuditedRow) -> int | None:
    """The smallest number of runs that makes every cell a possible k/n; None when none up to `MOST_RUNS` does."""
    return next((runs for runs in range(1, MOST_RUNS + 1) if not infeasible_cells(line, runs)), None)


def one_question_less(line: AuditedRow) -> AuditedRow | None:
    """The row with one question less in each category whose zero-deviation cell is impossible for n but possible for n - 1.

    None when there is no such category.
    """
    counts = tuple(
        n - 1 if cell.still and not feasible(cell, n, line.scale) and feasible(cell, n - 1, line.scale) else n
        for n, cell in zip(line.counts, line.cells, strict=True)
    )
    return replace(line, counts=counts) if counts != line.counts else None


def repairs(line: AuditedRow) -> dict[str, Fraction]:
    """By category, the value that makes the printed total right if all other cells are right; impossible shares are left out."""
    missing = (line.total.exact - weighted_mean(line)) * sum(line.counts)
    cells = zip(line.categories, line.counts, line.cells, strict=True)
    values = {name: cell.exact + missing / n for name, n, cell in cells}
    return {name: value for name, value in values.items() if 0 <= value <= line.scale}


def best_order(lines: Sequence[AuditedRow]) -> tuple[int, ...]:
    """The order of the question counts under which most totals are the mean of their cells; among equally good orders the closest.

    Args:
        lines: rows of one table, with the same categories.
    """

    def fit(counts: tuple[int, ...]) -> tuple[int, Fraction]:
        tried = [replace(line, counts=counts) for line in lines]
        gaps = sum((abs(weighted_mean(line) - line.total.exact) for line in tried), Fraction())
        return _agreeing(tried), -gaps

    return max(dict.fromkeys(permutations(lines[0].counts)), key=fit)


def _agreeing(lines: Iterable[AuditedRow]) -> int:
    return sum(average_verdict(line) != "MISMATCH" for line in lines)


def reordered(lines: Sequence[AuditedRow]) -> tuple[list[AuditedRow], list[Finding]]:
    """The rows with the counts of the headings, or with another order of them where most totals contradict the headings.

    Returns:
        the rows, and a finding for every table whose order was changed.
    """
    done: list[AuditedRow] = []
    findings: list[Finding] = []
    tables = groupby(lines, key=lambda line: (line.where, line.categories, line.counts))
    for (where, categories, counts), rows in tables:
        group = list(rows)
        # The mean of equal cells is the same in any order.
        telling = [line for line in group if len({cell.exact for cell in line.cells}) > 1]
        fitting = _agreeing(telling)
        if len(telling) > 1 and 2 * fitting < len(telling) and len(counts) <= MOST_ORDERED:
            other = best_order(telling)
            moved = [replace(line, counts=other) for line in telling]
            if 2 * _agreeing(moved) > len(telling):
                printed, right = (", ".join(map("{} {}".format, categories, own)) for own in (counts, other))
                text = (
                    f"with the question counts of its headings ({printed}) {fitting} of {len(telling)} totals are "
                    f"the mean of their cells, with {right} {_agreeing(moved)}: the headings are wrong"
                )
                if telling[0].counted:
                    before, after = (
                        sum(bool(infeasible_cells(own, own.runs)) for own in each) for each in (telling, moved)
                    )
                    text += f"; rows with cells that are no k/n: {before} before, {after} after"
                findings.append(Finding("heading", where, "", text))
                group = [replace(line, counts=other) for line in group]
        done += group
    return done, findings


def audit_lines(lines: Sequence[AuditedRow]) -> list[Finding]:
    """Findings about headings, totals and fractions; rows of one table must be adjacent."""
    lines, findings = reordered(lines)
    for line in lines:
        if average_verdict(line) == "MISMATCH":
            column = [one for one in lines if (one.where, one.column) == (line.where, line.column)]
            findings.append(_mismatch(line, column))
        if line.counted:
            findings += _fractions(line)
    return findings


def _mismatch(line: AuditedRow, column: Sequence[AuditedRow]) -> Finding:
    mean = weighted_mean(line)
    parts = [f"total {line.total.printed}, its cells give {_one_digit_more(mean, line.total)}"]
    if line.counted and not infeasible_cells(line, line.runs):
        wanted = ", ".join(f"{name} {_one_digit_more(value, line.total)}" for name, value in repairs(line).items())
        parts.append(f"a single cell would mend it: {wanted}" if wanted else "no single cell would mend it")
    passed = [one.name for one in column if (one.total.exact - line.total.exact) * (one.total.exact - mean) < 0]
    if passed:
        side = "above" if mean > line.total.exact else "below"
        parts.append(f"with {_one_digit_more(mean, line.total)} it would be {side} {', '.join(passed)}")
    return Finding("average", line.where, line.row, "; ".join(parts))


def _fractions(line: AuditedRow) -> list[Finding]:
    findings = []
    if impossible := infeasible_cells(line, line.runs):
        runs = fewest_runs(line)
        fit = f"{runs} runs would fit" if runs else f"no number of runs up to {MOST_RUNS} fits"
        said = f" over {line.runs} runs" if line.runs > 1 else ""
        findings.append(Finding("fraction", line.where, line.row, f"no k/n{said}: {', '.join(impossible)}; {fit}"))
    if not feasible(line.total, n := sum(line.counts) * line.runs, line.scale):
        findings.append(Finding("fraction", line.where, line.row, f"total {line.total.printed} is no k/{n}"))
    if (fewer := one_question_less(line)) is not None:
        cells = zip(line.categories, line.cells, line.counts, fewer.counts, strict=True)
        less = ((name, cell.printed, counted(now, "question"), n) for name, cell, n, now in cells if n != now)
        counts = ", ".join(f"{name} {printed} is of {questions}, not {n}" for name, printed, questions, n in less)
        mean, asked = _one_digit_more(weighted_mean(fewer), line.total), counted(sum(fewer.counts), "question")
        text = f"{counts}; over {asked} the total is {mean}, printed {line.total.printed}"
        findings.append(Finding("questions", line.where, line.row, text))
    return findings


def _one_digit_more(value: Fraction, like: Value) -> str:
    """The value with one digit more than the printed number."""
    return f"{float(value):.{len(like.printed.partition('.')[2]) + 1}f}"


def where(one: Published) -> str:
    """Paper and table of a number."""
    return f"{one.paper} {one.table}"


def row_name(one: Published) -> str:
    """Method and variant of a number."""
    return " / ".join(filter(None, (one.method, one.variant)))


def exact_value(one: Published) -> Value:
    """A published number with its digits as printed."""
    return Value(one.printed, still=one.std == 0)


def lines_of(
    numbers: Iterable[Published],
    counts: Mapping[str, Mapping[str, int]],
    accuracies: Sequence[str],
    runs: Mapping[str, int],
) -> list[AuditedRow]:
    """The rows of published tables that have a total, at least two categories, and a count for each category.

    Args:
        counts: questions by data set and lower-case category.
        accuracies: metrics that are shares of right answers.
        runs: number of runs by paper; 1 where a paper names none.
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
            categories = tuple(one.category for one in cells)
            sizes = tuple(known[category.lower()] for category in categories)
            values, scale = tuple(map(exact_value, cells)), 100 if max(one.value for one in group) > 1 else 1
            of_paper = group[0].metric in accuracies, runs.get(group[0].paper, 1)
            start = place, column, name, categories, sizes, values
            lines.append(AuditedRow(*start, exact_value(totals[0]), scale, *of_paper))
    return sorted(lines, key=lambda line: line.where)


# --- single numbers ---------------------------------------------------------------------------------------------------


def interval_methods(value: float, low: float, high: float, n: int, half: float) -> set[str]:
    """Names of the 95 % intervals (Wald, Wilson) of a share over `n` questions that agree with the printed one.

    Args:
        half: half of the last printed digit: the share and each end may be off by it.
    """
    spread = NORMAL * sqrt(value * (1 - value) / n)
    kinds = {"Wald": Interval(value - spread, value + spread), "Wilson": wilson(value * n, n)}
    slack = 2 * half + 1e-9
    return {name for name, own in kinds.items() if abs(own.low - low) <= slack and abs(own.high - high) <= slack}


def audit_intervals(
    numbers: Iterable[Published], questions: Mapping[str, int], accuracies: Sequence[str]
) -> list[Finding]:
    """Findings about printed intervals of shares: intervals of neither known kind, and tables that mix both kinds.

    Args:
        questions: number of questions by data set.
        accuracies: metrics that are shares of right answers. The interval of another mean cannot be checked without its scores.
    """
    findings, kinds = [], dict[str, Counter[str]]()
    printed = [
        one
        for one in numbers
        if one.low is not None and one.high is not None and one.dataset in questions and one.metric in accuracies
    ]
    for one in printed:
        assert one.low is not None
        assert one.high is not None
        n, half = questions[one.dataset], float(exact_value(one).half)
        found = interval_methods(one.value, one.low, one.high, n, half)
        row = f"{one.dataset}, {one.backbone}, {one.metric} · {row_name(one)}"
        if found:
            kinds.setdefault(where(one), Counter()).update(found if len(found) == 1 else ())
            continue
        shared, of = _shares_numbers(one, printed), f"interval of {counted(n, 'question')}"
        text = f"{one.printed} [{one.low}, {one.high}] is neither a Wald nor a Wilson {of}"
        findings.append(Finding("interval", where(one), row, text + (f"; {shared}" if shared else "")))
    for place, used in kinds.items():
        if len(used) > 1:
            said = ", ".join(f"{n} only {name}" for name, n in sorted(used.items()))
            findings.append(Finding("interval", place, "", f"two kinds of interval in one table: {said}"))
    return findings


def _shares_numbers(one: Published, printed: Iterable[Published]) -> str:
    """Name rows of the same column whose value is an end of this interval, or whose interval ends in this value."""
    column = (one.table, one.dataset, one.backbone, one.metric)
    others = (each for each in printed if (each.table, each.dataset, each.backbone, each.metric) == column)
    same = (each for each in others if each.value in (one.low, one.high) or one.value in (each.low, each.high))
    found = [row_name(each) for each in same if each is not one]
    return f"its value or ends are those of {', '.join(found)}" if found else ""


def audit_differences(numbers: Sequence[Published]) -> list[Finding]:
    """Findings about printed differences (`delta_…`) that are not the difference of the two printed values.

    The row called Delta is Permuted minus Original. Elsewhere the reference is the only setting without a difference.
    """
    findings = []
    for one in numbers:
        if not one.metric.startswith("delta_"):
            continue
        metric = one.metric.removeprefix("delta_")
        same = [other for other in numbers if _setting(other) == _setting(one)]
        values = {other.variant: other for other in same if other.metric.split()[-1] == metric}
        changed = {other.variant for other in same if other.metric == one.metric}
        first, second = one.variant, next((variant for variant in values if variant not in changed), "")
        if one.variant == "Delta":
            first, second = "Permuted", "Original"
        if first not in values or second not in values:
            continue
        gap = exact_value(values[first]).exact - exact_value(values[second]).exact
        if abs(gap - exact_value(one).exact) > exact_value(one).half:
            text = f"{one.printed} printed, {values[first].printed} - {values[second].printed} = {float(gap):.4g}"
            findings.append(Finding("difference", where(one), f"{one.dataset} · {row_name(one)}", text))
    return findings


def _setting(one: Published) -> tuple[str, ...]:
    return where(one), one.dataset, one.backbone, one.method, one.category


Setting = tuple[str, str, str, str, str, str, str]
"""Paper, data set, models, method, variant, category and metric of a number, with one spelling for each."""


def audit_repetitions(numbers: Sequence[Published], setting: Callable[[Published], Setting]) -> list[Finding]:
    """Findings about settings whose number differs between two tables by more than the coarser rounding."""
    by_setting: dict[Setting, list[Published]] = {}
    for one in numbers:
        by_setting.setdefault(setting(one), []).append(one)
    findings = []
    for group in by_setting.values():
        first, tables = group[0], {where(one) for one in group}
        for other in group[1:]:
            ours, theirs = exact_value(first), exact_value(other)
            if abs(ours.exact - theirs.exact) > max(ours.half, theirs.half):
                row = f"{first.dataset}, {first.backbone}, {first.category} {first.metric} · {row_name(first)}"
                text = f"{first.printed}, but {other.printed} in {where(other)} ({row_name(other)})"
                value = other.dataset, other.metric, other.printed
                for one in numbers:  # the number may have been copied from another row of these tables
                    if one not in group and where(one) in tables and (one.dataset, one.metric, one.printed) == value:
                        text += f"; {one.printed} is also {row_name(one)} of {where(one)}"
                findings.append(Finding("repetition", where(first), row, text))
    return findings


@dataclass(frozen=True, slots=True)
class Relation:
    """One metric of a row as a function of other metrics of the same row."""

    metric: str
    of: tuple[str, ...]
    formula: Callable[..., float]
    words: str
    methods: tuple[str, ...] = ()
    """Methods that the relation holds for; empty: all."""
    rounded: bool = False
    """Whether the terms are rounded, and not counts: then their last digits may be off by a half, too."""


def audit_relations(numbers: Iterable[Published], relations: Sequence[Relation]) -> list[Finding]:
    """Findings about rows in which a printed number contradicts the numbers that it is computed from."""
    rows: dict[tuple[str, str, str, str, str], dict[str, Published]] = {}
    for one in numbers:
        rows.setdefault((where(one), one.dataset, one.backbone, one.category, row_name(one)), {})[one.metric] = one
    findings = []
    for (place, dataset, backbone, category, name), row in rows.items():
        for relation in relations:
            printed = row.get(relation.metric)
            if printed is None or not row.keys() >= {*relation.of}:
                continue
            if relation.methods and printed.method not in relation.methods:
                continue
            terms = [row[metric] for metric in relation.of]
            expected = relation.formula(*(term.value for term in terms))
            slack = float(exact_value(printed).half)
            if relation.rounded:
                halves = [float(exact_value(term).half) for term in terms]
                ends = ((term.value - half, term.value + half) for term, half in zip(terms, halves, strict=True))
                slack += max(abs(relation.formula(*corner) - expected) for corner in product(*ends))
            if abs(expected - printed.value) > slack + 1e-9:
                text = f"{relation.metric} {printed.printed}, but {relation.words} gives {expected:.5g}"
                column = f"{dataset}, {backbone}, {category}" if relation.rounded else dataset
                findings.append(Finding("relation", place, f"{column} · {name}", text))
    return findings
