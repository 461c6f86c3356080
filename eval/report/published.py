"""The numbers that papers print, and the verdict on ours beside them.

`results/published/*.csv` holds one line per published number: its table, what it measures, its value and its interval.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log10
from pathlib import Path

from eval.provenance import ROOT
from eval.stats import Estimate, Interval, preferred_interval

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


def read_published(name: str, folder: Path = FOLDER) -> tuple[Published, ...]:
    """All numbers of one table, e.g. `segtreemem_t4`.

    Raises:
        ValueError: a field that must be a number is not one.
    """
    with (folder / f"{name}.csv").open(encoding="utf-8", newline="") as handle:
        return tuple(_published(row) for row in csv.DictReader(handle))


def find(numbers: Sequence[Published], wanted: Mapping[str, str]) -> Published | None:
    """The only number whose fields equal `wanted`; None when no number does.

    Raises:
        ValueError: several numbers do, so the reference is ambiguous.
    """
    fitting = [number for number in numbers if all(getattr(number, name) == value for name, value in wanted.items())]
    if len(fitting) > 1:
        named = [(number.method, number.variant, number.metric) for number in fitting]
        raise ValueError(f"{len(fitting)} published numbers fit {dict(wanted)}: {named}")
    return fitting[0] if fitting else None


def verdict(
    ours: Estimate | None,
    published: Published | None,
    *,
    scale: float = 1.0,
    tolerance: float = 0.02,
    why_not: str = "",
) -> str:
    """What the difference between our number and the published one means.

    OK: the difference lies within its interval, which combines how far each number's own interval reaches towards the other number
    (Zou and Donner 2008). Ours is `preferred_interval`; theirs counts where it is printed.
    close: at most `tolerance` outside that interval. off: further, on either side.

    Args:
        scale: divisor that brings the published value into our unit (100 for percentages).
        tolerance: in our unit; 0.02 is 2 points.
        why_not: the reason why the numbers are not comparable; empty when they are.
    """
    if published is None:
        return "not published"
    if why_not:
        return f"not comparable: {why_not}"
    if ours is None:
        return "missing"
    printed = published.value / scale
    gap = abs(ours.mean - printed)
    half = (
        _reach(preferred_interval(ours), ours.mean, printed) ** 2
        + _reach(_printed(published, scale), printed, ours.mean) ** 2
    ) ** 0.5
    if gap <= half + ROUNDING:
        return "OK"
    return "close" if gap <= half + tolerance + ROUNDING else "off"


def qualified(verdict: str, qualifier: str) -> str:
    """The verdict, followed by what else differs between the two numbers; a verdict that compares nothing stays as it is.

    Args:
        qualifier: such as `prompts ours`; empty where nothing else differs.
    """
    compares = verdict not in ("missing", "not published") and not verdict.startswith("not comparable")
    return f"{verdict}, {qualifier}" if qualifier and compares else verdict


def _printed(published: Published, scale: float) -> Interval | None:
    if published.low is None or published.high is None:
        return None
    return Interval(published.low / scale, published.high / scale)


def _reach(interval: Interval | None, value: float, other: float) -> float:
    """How far an interval reaches from its value towards another value; 0 without an interval."""
    if interval is None:
        return 0.0
    return max(0.0, interval.high - value if other > value else value - interval.low)


def _published(row: Mapping[str, str]) -> Published:
    return Published(
        paper=row["paper"],
        table=row["table"],
        dataset=row["dataset"],
        backbone=row["backbone"],
        method=row["method"],
        variant=row["variant"],
        category=row["category"],
        metric=row["metric"],
        value=float(row["value"]),
        low=_number(row["ci_low"]),
        high=_number(row["ci_high"]),
        std=_number(row["std"]),
        note=row["note"],
        printed=row["value"],
    )


def _number(text: str) -> float | None:
    return float(text) if text.strip() else None
