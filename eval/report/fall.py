"""The loss waterfall as a figure: from a perfect score down to the memory's, a bar for each step, with intervals, in grey and hatches."""

from __future__ import annotations

from collections.abc import Sequence

from eval.analysis.losses import Waterfall
from eval.report.counted import counted
from eval.report.panels import Axis, Sheet, Style, write_at_edge
from eval.report.points import Point
from eval.statistics.stats import Estimate, preferred_interval

WHOLE, LOST = "whole", "lost"
"""Names of the series: bars that start at 0 (perfect, the score), and the steps between them."""
PERFECT, SCORE = "perfect", "score"
POINTS = 100.0
"""Points of a perfect score."""
DARK, LIGHT = "#444444", "#FFFFFF"
LOSS_HATCH, GAIN_HATCH = "////", "...."


def fall_points(fall: Waterfall) -> list[Point]:
    """The bars from top to bottom, in points: perfect, the loss of each step (negative: a gain), the score."""
    steps = [_point(step, LOST, mean) for step, mean in fall.steps.items()]
    return [Point("", WHOLE, PERFECT, POINTS, n=fall.score.n), *steps, _point(SCORE, WHOLE, fall.score)]


def _point(name: str, series: str, mean: Estimate) -> Point:
    interval = (
        preferred_interval(mean) or mean.by_question
    )  # histories with equal mean differences have the latter alone
    low, high = (None, None) if interval is None else (POINTS * interval.low, POINTS * interval.high)
    return Point("", series, name, POINTS * mean.mean, low, high, mean.n)


def fall_sheet(title: str, points: Sequence[Point], notes: tuple[str, ...]) -> Sheet:
    """The sheet of the waterfall, as high as its bars need."""
    more = "Hatched: lost; dotted: gained. Lines: 95 % intervals of each step, by history where there are five that differ."
    label = f"points of {POINTS:.0f}, mean of {counted(points[0].n, 'question')}"
    return Sheet(title, (more, *notes), "waterfall", x_label=label, height=0.5 + 0.16 * len(points))


def drawn_fall(axes: Axis, sheet: Sheet, points: Sequence[Point], style: Style) -> None:
    """Draw horizontal bars, the first on top; every step begins where the step above it ended."""
    level = POINTS
    for place, point in enumerate(points):
        whole = point.series == WHOLE
        start, end = (0.0, point.y) if whole else (level, level - point.y)
        hatch = "" if whole else LOSS_HATCH if point.y >= 0 else GAIN_HATCH
        axes.barh(
            place, abs(end - start), 0.7, left=min(start, end), color=DARK if whole else LIGHT, edgecolor="#000000",
            linewidth=0.5, hatch=hatch, zorder=2,
        )  # fmt: skip
        if point.low is not None and point.high is not None:
            ends = [start + (value if whole else -value) for value in (point.low, point.high)]
            axes.plot(ends, [place, place], color="#FFFFFF", linewidth=2.0, zorder=3)  # so that no hatch hides the line
            axes.plot(ends, [place, place], color="#000000", linewidth=0.9, marker="|", markersize=3, zorder=4)
        if place + 1 < len(points):
            axes.plot([end, end], [place, place + 1], color="#000000", linewidth=0.4, linestyle=(0, (2, 2)), zorder=1)
        level = end
        text = f"{point.y:.1f}" if whole else f"{-point.y:+.1f}"
        write_at_edge(axes, text, place)
    axes.set_yticks(range(len(points)), [str(point.x) for point in points])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(points) - 0.4, -0.6)
    axes.set_xlim(min(0.0, axes.get_xlim()[0]), max(POINTS, axes.get_xlim()[1]))
