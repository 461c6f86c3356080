"""Check single published numbers: intervals, differences, numbers that are printed twice, numbers that follow from others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import sqrt

from eval.report.audit import Finding, exact_value, row_name, where
from eval.report.counted import counted
from eval.report.published import Published
from eval.statistics.intervals import NORMAL, Interval, wilson


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
        shared = _shares_numbers(one, printed)
        text = (
            f"{one.printed} [{one.low}, {one.high}] is neither a Wald nor a Wilson interval of {counted(n, 'question')}"
        )
        findings.append(Finding("interval", where(one), row, text + (f"; {shared}" if shared else "")))
    for place, used in kinds.items():
        if len(used) > 1:
            said = ", ".join(f"{n} only {name}" for name, n in sorted(used.items()))
            findings.append(Finding("interval", place, "", f"two kinds of interval in one table: {said}"))
    return findings


def _shares_numbers(one: Published, printed: Iterable[Published]) -> str:
    """Name rows of the same column whose value is an end of this interval, or whose interval ends in this value."""
    column = (one.table, one.dataset, one.backbone, one.metric)
    found = [
        row_name(other)
        for other in printed
        if other is not one
        and (other.table, other.dataset, other.backbone, other.metric) == column
        and {other.value} & {one.low, one.high} | {one.value} & {other.low, other.high}
    ]
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
        same = [
            other
            for other in numbers
            if (where(other), other.dataset, other.backbone, other.method, other.category)
            == (where(one), one.dataset, one.backbone, one.method, one.category)
        ]
        values = {other.variant: other for other in same if other.metric.split()[-1] == metric}
        changed = {other.variant for other in same if other.metric == one.metric}
        first, second = (
            ("Permuted", "Original")
            if one.variant == "Delta"
            else (one.variant, next((variant for variant in values if variant not in changed), ""))
        )
        if first not in values or second not in values:
            continue
        gap = exact_value(values[first]).exact - exact_value(values[second]).exact
        if abs(gap - exact_value(one).exact) > exact_value(one).half:
            text = f"{one.printed} printed, {values[first].printed} - {values[second].printed} = {float(gap):.4g}"
            findings.append(Finding("difference", where(one), f"{one.dataset} · {row_name(one)}", text))
    return findings


Setting = tuple[str, str, str, str, str, str, str]
"""Paper, data set, models, method, variant, category and metric of a number, with one spelling for each."""


def audit_repetitions(numbers: Sequence[Published], setting: Callable[[Published], Setting]) -> list[Finding]:
    """Findings about settings whose number differs between two tables by more than the coarser rounding."""
    by_setting: dict[Setting, list[Published]] = {}
    for one in numbers:
        by_setting.setdefault(setting(one), []).append(one)
    findings = []
    for group in by_setting.values():
        first = group[0]
        for other in group[1:]:
            if abs(exact_value(first).exact - exact_value(other).exact) > max(
                exact_value(first).half, exact_value(other).half
            ):
                row = f"{first.dataset}, {first.backbone}, {first.category} {first.metric} · {row_name(first)}"
                text = f"{first.printed}, but {other.printed} in {where(other)} ({row_name(other)})"
                text += "".join(
                    f"; {one.printed} is also {row_name(one)} of {where(one)}"
                    for one in _namesakes(other, group, numbers)
                )
                findings.append(Finding("repetition", where(first), row, text))
    return findings


def _namesakes(value: Published, group: Sequence[Published], numbers: Iterable[Published]) -> list[Published]:
    """Other rows of the group's tables with the same value; the number may have been copied from them."""
    tables = {where(one) for one in group}
    return [
        one
        for one in numbers
        if one not in group
        and where(one) in tables
        and (one.dataset, one.metric, one.printed) == (value.dataset, value.metric, value.printed)
    ]


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


def _rounding(relation: Relation, terms: Sequence[Published], expected: float) -> float:
    """The maximum change of the result by the rounding of the terms; 0 where they are not rounded."""
    if not relation.rounded:
        return 0.0
    ends = [(term.value - float(half), term.value + float(half)) for term in terms for half in [exact_value(term).half]]
    return max(abs(relation.formula(*corner) - expected) for corner in product(*ends))


def audit_relations(numbers: Iterable[Published], relations: Sequence[Relation]) -> list[Finding]:
    """Findings about rows in which a printed number contradicts the numbers that it is computed from."""
    rows: dict[tuple[str, str, str, str, str], dict[str, Published]] = {}
    for one in numbers:
        rows.setdefault((where(one), one.dataset, one.backbone, one.category, row_name(one)), {})[one.metric] = one
    findings = []
    for (place, dataset, backbone, category, name), row in rows.items():
        for relation in relations:
            printed = row.get(relation.metric)
            if printed is None or not all(metric in row for metric in relation.of):
                continue
            if relation.methods and printed.method not in relation.methods:
                continue
            terms = [row[metric] for metric in relation.of]
            expected = relation.formula(*(term.value for term in terms))
            slack = float(exact_value(printed).half) + _rounding(relation, terms, expected) + 1e-9
            if abs(expected - printed.value) > slack:
                text = f"{relation.metric} {printed.printed}, but {relation.words} gives {expected:.5g}"
                column = f"{dataset}, {backbone}, {category}" if relation.rounded else dataset
                findings.append(Finding("relation", place, f"{column} · {name}", text))
    return findings
