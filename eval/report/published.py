"""The papers' own numbers, and the verdict on ours beside them.

`results/published/*.csv` holds one line a printed number: where it stands, what it measures, its value and interval.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log10
from pathlib import Path

from eval.provenance import ROOT
from eval.stats import ENOUGH_CLUSTERS, Estimate, Interval

ROUNDING = 1e-9
"""Of binary fractions: 0.55 is 0.05 from 0.50."""
FOLDER = ROOT / "results" / "published"


@dataclass(frozen=True, slots=True)
class Published:
    """One printed number; shares in [0, 1] as far as `scale` says so, other quantities as printed."""

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
    """As it stands in the paper."""

    def scaled(self, scale: float) -> str:
        """As it stands in the paper but in our unit, with all its digits: 46.18 of a percentage is 0.4618."""
        if scale == 1.0:
            return self.printed
        digits = len(self.printed.partition(".")[2]) + round(log10(scale))
        return f"{self.value / scale:.{max(0, digits)}f}"


def read_published(name: str, folder: Path = FOLDER) -> tuple[Published, ...]:
    """All numbers of one table, e.g. `segtreemem_t4`.

    Raises:
        ValueError: a line that is not a number where one must be.
    """
    with (folder / f"{name}.csv").open(encoding="utf-8", newline="") as handle:
        return tuple(_published(row) for row in csv.DictReader(handle))


def find(numbers: Sequence[Published], wanted: Mapping[str, str]) -> Published | None:
    """The one number whose fields equal `wanted`; None when there is none.

    Raises:
        ValueError: several fit, so the reference is ambiguous.
    """
    found = [one for one in numbers if all(getattr(one, name) == value for name, value in wanted.items())]
    if len(found) > 1:
        raise ValueError(
            f"{len(found)} published numbers fit {dict(wanted)}: {[(one.method, one.variant, one.metric) for one in found]}"
        )
    return found[0] if found else None


def verdict(
    ours: Estimate | None,
    published: Published | None,
    *,
    scale: float = 1.0,
    tolerance: float = 0.02,
    why_not: str = "",
) -> str:
    """What the difference between our number and the printed one means.

    OK: within the interval of the difference, which has both intervals' reach towards the other number (Zou and Donner 2008): ours by case
    from five cases on, else by question; theirs where printed.
    close: at most `tolerance` beyond it (2 points; for costs 5 % of the value). off: more, on either side.

    Args:
        scale: what the printed value is divided by to be in our unit (100 for percentages).
        why_not: when given, the numbers are not comparable, for this reason.
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
        _reach(_interval(ours), ours.mean, printed) ** 2 + _reach(_printed(published, scale), printed, ours.mean) ** 2
    ) ** 0.5
    if gap <= half + ROUNDING:
        return "OK"
    return "close" if gap <= half + tolerance + ROUNDING else "off"


def _interval(ours: Estimate) -> Interval | None:
    return ours.by_case if ours.clusters >= ENOUGH_CLUSTERS and ours.by_case is not None else ours.by_question


def _printed(published: Published, scale: float) -> Interval | None:
    if published.low is None or published.high is None:
        return None
    return Interval(published.low / scale, published.high / scale)


def _reach(interval: Interval | None, value: float, other: float) -> float:
    """How far an interval extends from its value towards another one; 0 where there is none."""
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
