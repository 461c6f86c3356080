"""The numbers that papers print, and the verdict on our numbers against them.

`results/published/*.csv` holds one line per published number: its table, its metric and setting, its value and its interval.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log10
from pathlib import Path

from eval.files.provenance import ROOT
from eval.report.equivalence import COST_MARGIN, MARGIN, NO_RUNS, Runs, Settled, settle
from eval.statistics.intervals import NORMAL
from eval.statistics.stats import Interval

ROUNDING = 1e-9
"""Tolerance for binary fractions: 0.55 - 0.50 must count as 0.05."""
FOLDER = ROOT / "results" / "published"


@dataclass(frozen=True, slots=True)
class Published:
    """One published number, in the unit in which the paper prints it; a column's `scale` turns percentages into shares."""

    paper: str
    table: str
    dataset: str
    backbone: str
    method: str
    variant: str
    category: str
    metric: str
    value: float
    low: float | None
    high: float | None
    std: float | None
    note: str
    printed: str
    """The digits as the paper prints them."""

    def scaled(self, scale: float) -> str:
        """The printed number divided by `scale`, with all its digits: 46.18 % is 0.4618."""
        if scale == 1.0:
            return self.printed
        digits = len(self.printed.partition(".")[2]) + round(log10(scale))
        return f"{self.value / scale:.{max(0, digits)}f}"

    def ends(self, scale: float) -> tuple[float | None, float | None]:
        """The ends of the printed interval divided by `scale`; None where none is printed."""
        return None if self.low is None else self.low / scale, None if self.high is None else self.high / scale


def read_published(name: str, folder: Path = FOLDER) -> tuple[Published, ...]:
    """All numbers of one table, e.g. `segtreemem_t4`.

    Raises:
        ValueError: a field that must be a number is not one.
    """
    with (folder / f"{name}.csv").open(encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(handle))
    numbers = []
    for row in rows:
        low, high, std = (float(row[name]) if row[name].strip() else None for name in ("ci_low", "ci_high", "std"))
        texts = {name: row[name] for name in ("paper", "table", "dataset", "backbone", "method", "variant", "category")}
        own = {"metric": row["metric"], "note": row["note"], "printed": row["value"]}
        numbers.append(Published(**texts, **own, value=float(row["value"]), low=low, high=high, std=std))
    return tuple(numbers)


def find(numbers: Sequence[Published], wanted: Mapping[str, str]) -> Published | None:
    """The only number whose fields equal `wanted`; None when no number matches.

    Raises:
        ValueError: several numbers match, so the reference is ambiguous.
    """
    fitting = [number for number in numbers if all(getattr(number, name) == value for name, value in wanted.items())]
    if len(fitting) > 1:
        named = [(number.method, number.variant, number.metric) for number in fitting]
        raise ValueError(f"{len(fitting)} published numbers fit {dict(wanted)}: {named}")
    return fitting[0] if fitting else None


def verdict(
    ours: float | None,
    published: Published | None,
    *,
    scale: float = 1.0,
    margin: float | None = MARGIN,
    runs: Runs = NO_RUNS,
    span: Interval | None = None,
    why_not: str = "",
    qualifier: str = "",
) -> str:
    """Meaning of the gap between our number and the published one (`eval.report.equivalence`).

    `equivalent`: the gap is significantly smaller than the margin. `differs by -3.1 [-4.2, -2.0]`: it is significantly different from 0
    (in points; costs in %). Both are given if both hold. `cannot tell: …`: neither holds; the text says what would settle it.

    Args:
        ours: our mean; None where there is none.
        scale: divisor that brings the published value into our unit (100 for percentages).
        margin: in our unit; None is 5 % of the published value.
        runs: change of our mean from run to run.
        span: range of our mean over all questions, whatever the missing scores are; None where each question has a score.
        why_not: the reason why the numbers are not comparable, such as other questions; empty when they are.
        qualifier: further differences between the two numbers, such as `prompts ours`; they follow a comparison.
    """
    if published is None:
        return "not published"
    if why_not:
        return f"{NOT_COMPARABLE}{why_not}"
    if ours is None:
        return "missing"
    printed = published.value / scale
    unit = 100.0 if margin is not None or not printed else 100.0 / abs(printed)
    near = COST_MARGIN * abs(printed) if margin is None else margin
    reach = span or Interval(ours, ours)
    digit = 10.0 ** -len(published.printed.partition(".")[2]) / scale  # the published value is rounded to this step
    settled = settle(
        ours - printed,
        Interval(reach.low - printed, reach.high - printed),
        runs,
        _their_variance(published, scale, runs),
        float(digit**2 / 12),
        near + ROUNDING,
    )
    compared = _worded(settled, unit, " %" if margin is None else "")
    return f"{compared}, {qualifier}" if qualifier else compared


NOT_COMPARABLE = "not comparable: "
EQUIVALENT, DIFFERS, OPEN = "equivalent", "differs", "cannot tell"


def brief(verdict: str) -> str:
    """The first word or words of a verdict, without numbers; any other text is returned whole."""
    return next((word for word in (EQUIVALENT, DIFFERS, OPEN) if verdict.startswith(word)), verdict)


def _worded(settled: Settled, unit: float, sign: str) -> str:
    low, high = settled.interval.low * unit, settled.interval.high * unit
    numbers = f"{settled.gap * unit:+.1f}{sign} [{low:+.1f}, {high:+.1f}]"
    if settled.differs:
        return f"{EQUIVALENT}, " * settled.equivalent + f"{DIFFERS} by {numbers}"
    if settled.equivalent:
        return EQUIVALENT
    if settled.builds is None:
        return f"{OPEN}: {numbers}, however many builds"
    needed = f"{settled.builds} builds" if settled.builds else "the missing answers"
    return f"{OPEN}: {numbers}, would need {needed}"


def _their_variance(published: Published, scale: float, runs: Runs) -> float | None:
    """The variance of the published mean over runs; None where no better value than our own is known."""
    if published.std is not None:
        return (published.std / scale) ** 2
    if published.low is None or published.high is None or runs is NO_RUNS:
        return None
    bound = ((published.high - published.low) / scale / 2 / NORMAL) ** 2
    return bound if bound < runs.variance else None
