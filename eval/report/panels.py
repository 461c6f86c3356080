"""Draws one panel of a figure: lines, bars, stacked bars, a heat map, a tree, a map, a Pareto front or the waterfall of losses.

Colours are those of Okabe and Ito (2008), which colour-blind readers can tell apart; series also differ in their markers. Lines are named
at their ends where there is room. Open diamonds are published numbers.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Any

from eval.analysis.losses import Waterfall
from eval.report.counted import counted
from eval.report.points import Point, front, grouped
from eval.statistics.stats import Estimate, preferred_interval

COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#B8A800"),
    *("#882255", "#6B8E23", "#4B3F9E", "#8C5A2B", "#F0738A", "#5F6B73", "#00A5A5", "#A020C0"),
)
"""Eight of Okabe and Ito, then eight more for figures with more series."""
MARKERS = "os^DvP*X"
GREY = "#777777"
LINE = 0.082
"""Inches between two lines of the smallest print."""
FEW = 10
"""Up to this number of whole numbers, each gets a tick."""
BANDS = 4
"""Maximum number of overlapping intervals drawn as bands; more are drawn as strokes side by side, because bands would hide each other."""
PUBLISHED = "published"


@dataclass(frozen=True, slots=True)
class Sheet:
    """Drawing settings of a figure."""

    title: str
    footnote: tuple[str, ...]
    """Lines below the panels: models and data behind the numbers, and the meaning of the marks."""
    draw: str
    """One of `KINDS`."""
    x_label: str = ""
    y_label: str = ""
    across: int = 1
    """Number of panels in a row."""
    width: float = 3.3
    """Inches."""
    height: float = 1.35
    """Inches per row of panels; panels of bars are as high as they need."""
    spacing: str = "linear"
    """Horizontal axis of lines: linear, log, or even (values at equal distances)."""
    log_y: bool | tuple[str, ...] = False
    """Lines: whether the vertical axis is logarithmic, or the panels in which it is."""
    stars: bool = False
    """Lines: whether the best point of each series gets a star and its gain over the dashed line."""
    overlay: str = ""
    """Stacked bars: name of the series that is drawn as a line across them."""
    bare: bool = False
    """Whether title and footnote are left out, for a paper that prints its own caption."""


Axis = Any
"""An `Axes` of matplotlib, which is imported only for drawing."""


@dataclass(frozen=True, slots=True)
class Style:
    """Colours and markers of the series, the same in all panels."""

    names: tuple[str, ...]

    def colour(self, name: str) -> str:
        return COLOURS[self.names.index(name) % len(COLOURS)]

    def marker(self, name: str) -> str:
        place = self.names.index(name)
        return MARKERS[(place + place // len(COLOURS)) % len(MARKERS)]


def _lines(axes: Axis, sheet: Sheet, points: Sequence[Point], style: Style) -> None:
    """Draw a line per series with its intervals; a series without `x` is a dashed horizontal line; published points are diamonds.

    A point with a label (the reason why it is not comparable with the others) is drawn open and gets no tick.
    """
    from matplotlib.transforms import ScaledTranslation

    place = _positions(sheet, points)
    ends: list[tuple[float, str, str]] = []
    levels = [point for point in points if point.x == "" and point.origin != PUBLISHED]
    drawn = [point for point in points if point.origin != PUBLISHED and point.x != ""]
    spread = list(grouped((point for point in points if point.low is not None and point.x != ""), "series"))
    for name, own in grouped(drawn, "series").items():
        own = sorted(own, key=lambda point: place(point.x))
        x, y, colour = [place(point.x) for point in own], [point.y for point in own], style.colour(name)
        axes.plot(x, y, color=colour, marker=style.marker(name), markeredgewidth=0, zorder=3)
        for point in own:
            if point.label:
                open_mark = {"mfc": "white", "mec": colour, "mew": 0.7, "zorder": 4}
                axes.plot([place(point.x)], [point.y], style.marker(name), **open_mark)
        banded = [point for point in own if point.low is not None and point.high is not None]
        if banded:
            at = [place(point.x) for point in banded]
            low, high = [point.low for point in banded], [point.high for point in banded]
            if len(spread) <= BANDS:
                axes.fill_between(at, low, high, color=colour, alpha=0.13, linewidth=0)
            else:
                to_the_right = 1.6 * (spread.index(name) - (len(spread) - 1) / 2)
                aside = axes.transData + ScaledTranslation(to_the_right / 72, 0, axes.figure.dpi_scale_trans)
                axes.vlines(at, low, high, color=colour, alpha=0.6, linewidth=0.7, transform=aside)
                axes.update_datalim([*zip(at, low, strict=True), *zip(at, high, strict=True)])
        if sheet.stars:
            _star(axes, place, own, levels, above=not ends, colour=colour)
        ends.append((y[-1], name, colour))
    for point in levels:
        axes.axhline(point.y, color=GREY, linestyle=(0, (4, 2)), linewidth=0.8, zorder=2)
        ends.append((point.y, point.series, GREY))
    named = {name for _, name, _ in ends}
    for name, own in grouped((point for point in points if point.origin == PUBLISHED), "series").items():
        at = [place(point.x) if point.x != "" else axes.get_xlim()[1] for point in own]
        colour = GREY if any(level.series == name for level in levels) else style.colour(name)
        y = [point.y for point in own]
        axes.plot(at, y, "D:", color=colour, mfc="white", ms=3.0, mew=0.7, linewidth=0.6, clip_on=False, zorder=4)
        if name not in named:
            ends.append((y[-1], name, colour))
    if sheet.log_y is True or (sheet.log_y and points[0].panel in sheet.log_y):
        # Linear below the smallest value, because some costs are 0.
        axes.set_yscale("symlog", linthresh=min((point.y for point in points if point.y > 0), default=1.0))
    _ticks(axes, sheet, points, place)
    _named_ends(axes, sheet, ends)


Place = Callable[[str | float], float]
"""A function from a value to its position on the horizontal axis."""


def _positions(sheet: Sheet, points: Sequence[Point]) -> Place:
    values = list(dict.fromkeys(point.x for point in points if point.x != ""))
    numbers = all(not isinstance(value, str) for value in values)
    if sheet.spacing != "even" and numbers:
        return lambda value: float(value)
    order = sorted(values, key=float) if numbers else values
    return lambda value: float(order.index(value))


def _ticks(axes: Axis, sheet: Sheet, points: Sequence[Point], place: Place) -> None:
    values = list(dict.fromkeys(point.x for point in points if point.x != "" and not point.label))
    values = values or list(dict.fromkeys(point.x for point in points if point.x != ""))
    if sheet.spacing == "log":
        axes.set_xscale("log")
        axes.minorticks_off()
    if sheet.spacing in ("even", "log") or any(isinstance(value, str) for value in values):
        names = [_short(value) for value in values]
        crowded = sum(map(len, names)) > 10 * sheet.width / sheet.across
        slant: dict[str, Any] = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if crowded else {}
        axes.set_xticks([place(value) for value in values], names, **slant)
    else:
        whole = all(float(value).is_integer() for value in values)
        if whole and len(values) <= FEW:
            axes.set_xticks(sorted(map(float, values)))
        elif whole:
            axes.xaxis.get_major_locator().set_params(integer=True)


def _short(value: str | float) -> str:
    if isinstance(value, str):
        return value
    return f"{value:g}".removeprefix("0") if 0 < value < 1 else f"{value:g}"


def _star(axes: Axis, place: Place, own: Sequence[Point], levels: Sequence[Point], *, above: bool, colour: str) -> None:
    """Draw a star at the best point of a series, with its gain over the dashed line."""
    best = max(own, key=lambda point: point.y)
    axes.plot([place(best.x)], [best.y], "*", color=colour, ms=6.5, mec="white", mew=0.4, zorder=4)
    if levels and levels[0].y:
        left = place(best.x) <= (place(own[0].x) + place(own[-1].x)) / 2
        axes.annotate(
            f"{100 * (best.y / levels[0].y - 1):+.1f} %", (place(best.x), best.y), (0, 5 if above else -5),
            textcoords="offset points", ha="left" if left else "right", va="bottom" if above else "top", fontsize=5.5,
            color=colour,
        )  # fmt: skip


def _named_ends(axes: Axis, sheet: Sheet, ends: Sequence[tuple[float, str, str]]) -> None:
    """Write names to the right of the ends of the lines, moved apart where they would overlap."""
    axes.margins(y=0.12)
    axes.autoscale_view()
    inside = axes.transAxes.inverted()
    order = sorted(ends, key=lambda end: end[0])
    wanted = [float(inside.transform(axes.transData.transform((1.0, value)))[1]) for value, _, _ in order]
    gap = LINE / max(0.3, sheet.height - 0.42)
    style = {"textcoords": "offset points", "va": "center", "fontsize": 5.5}
    for (_, name, colour), level in zip(order, apart(wanted, gap), strict=True):
        axes.annotate(name, (1.0, level), (3, 0), "axes fraction", color=colour, **style)


def apart(wanted: Sequence[float], gap: float) -> list[float]:
    """Ascending positions, moved as little as possible so that neighbours are at least `gap` apart."""
    groups: list[tuple[float, int]] = []
    for value in wanted:
        groups.append((value, 1))
        while len(groups) > 1:
            (low, few), (high, many) = groups[-2:]
            if high - low >= gap * (few + many) / 2 - 1e-12:
                break
            groups[-2:] = [((low * few + high * many) / (few + many), few + many)]
    return [middle + gap * (place - (count - 1) / 2) for middle, count in groups for place in range(count)]


def _bars(axes: Axis, sheet: Sheet, points: Sequence[Point], style: Style) -> None:
    """Draw a horizontal bar per category and series with its interval and its value; the first category is on top."""
    categories = list(dict.fromkeys(point.x for point in points))
    levels: dict[tuple[str | float, str], float] = {}
    at, ticks = 0.0, []
    for category in categories:
        names = list(dict.fromkeys(point.series for point in points if point.x == category))
        levels |= {(category, name): at + number for number, name in enumerate(names)}
        ticks.append(at + (len(names) - 1) / 2)
        at += len(names) + 0.45
    for point in points:
        level, colour = levels[point.x, point.series], style.colour(point.series)
        if point.origin == PUBLISHED:
            axes.plot([point.y], [level], "D", mfc="white", mec="#000000", ms=3.0, mew=0.7, zorder=5)
            continue
        axes.barh(level, point.y, 0.82, color=colour, alpha=0.75, linewidth=0)
        if point.low is not None and point.high is not None:
            axes.plot([point.low, point.high], [level, level], color="#222222", linewidth=0.7, zorder=4)
    width = int(sheet.width / sheet.across * 7.5)
    axes.set_yticks(ticks, ["\n".join(textwrap.wrap(str(category), width)) for category in categories])
    axes.set_ylim(at - 0.7, -0.75)
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.02)
    axes.autoscale_view(scaley=False)
    for point in points:
        if point.origin != PUBLISHED:
            text = f"{point.y:.3f}" if abs(point.y) < 10 else f"{point.y:,.0f}"
            _write_at_edge(axes, text, levels[point.x, point.series])
    axes.xaxis.get_major_locator().set_params(nbins=4)


def _write_at_edge(axes: Axis, text: str, level: float) -> None:
    """Write the value of a bar at the right edge of the panel, where no bar hides it."""
    style = {"textcoords": "offset points", "va": "center", "fontsize": 5.2}
    axes.annotate(text, (1.0, level), (2, 0), ("axes fraction", "data"), **style)


def stack_colour(sheet: Sheet, style: Style, name: str) -> str:
    """The colour of a series; stacked parts have an order and get steps of one scale, from light to dark."""
    if sheet.draw != "stacked":
        return style.colour(name)
    import matplotlib as mpl

    names = [one for one in style.names if one != sheet.overlay]
    share = names.index(name) / max(1, len(names) - 1)
    return str(mpl.colors.to_hex(mpl.colormaps["cividis_r"](0.12 + 0.83 * share)))


def _stacked(axes: Axis, sheet: Sheet, points: Sequence[Point], style: Style) -> None:
    """Draw stacked shares; the overlay is a line across them."""
    categories = list(dict.fromkeys(point.x for point in points))
    base = dict.fromkeys(categories, 0.0)
    for name, own in grouped((point for point in points if point.origin != PUBLISHED), "series").items():
        if name == sheet.overlay:
            x, y = [categories.index(point.x) for point in own], [point.y for point in own]
            axes.plot(x, y, color="#000000", marker="o", zorder=4, markeredgecolor="white", markeredgewidth=0.4)
            continue
        colour = stack_colour(sheet, style, name)
        for point in own:
            at, start = categories.index(point.x), base[point.x]
            axes.bar(at, point.y, 0.8, bottom=start, color=colour, linewidth=0)
            base[point.x] += point.y
    names = ["–" if category == "" else _short(category) for category in categories]
    axes.set_xticks(range(len(categories)), names)
    axes.set_ylim(0, 1)


def _heatmap(axes: Axis, sheet: Sheet, points: Sequence[Point], style: Style) -> None:
    """Draw a heat map of pairs of settings with the value in each field; rows are series."""
    ours = [point for point in points if point.origin != PUBLISHED]
    columns = sorted({point.x for point in ours}, key=lambda value: (isinstance(value, str), value))
    rows = list(dict.fromkeys(point.series for point in ours))
    grid = [[float("nan")] * len(columns) for _ in rows]
    for point in ours:
        grid[rows.index(point.series)][columns.index(point.x)] = point.y
    image = axes.imshow(grid, cmap="cividis", aspect="auto", origin="lower")
    for point in ours:
        share = float(image.norm(point.y))
        where = (columns.index(point.x), rows.index(point.series))
        half = "" if point.low is None or point.high is None else f"\n±{(point.high - point.low) / 2:.3f}"
        colour = "white" if share < 0.55 else "black"
        axes.annotate(f"{point.y:.3f}{half}", where, ha="center", va="center", fontsize=5.5, color=colour)
    axes.set_xticks(range(len(columns)), [_short(value) for value in columns])
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(length=0)


def _tree(axes: Axis, sheet: Sheet, points: Sequence[Point], style: Style) -> None:
    """Draw a tree: leaves filled, inner nodes outlined, coloured by dialogue; every link to a parent is drawn."""
    import matplotlib as mpl
    from matplotlib.collections import LineCollection

    pairs = ((one, points[int(up)]) for one in points for up in one.link.split())
    links = [((float(one.x), one.y), (float(above.x), above.y)) for one, above in pairs]
    axes.add_collection(LineCollection(links, colors="#AAAAAA", linewidths=0.25, zorder=1))
    size = max(1.0, min(12.0, 260.0 / max(1, sum(point.series == "leaf" for point in points))))
    last = max((point.shade for point in points if point.shade is not None), default=1.0)
    colours, norm = mpl.colormaps["viridis"], mpl.colors.Normalize(1, max(2.0, last))
    for name, filled in (("inner", False), ("leaf", True)):
        own = [point for point in points if point.series == name and point.shade is not None]
        own_colours = [colours(norm(point.shade or 0.0)) for point in own]
        axes.scatter(
            [point.x for point in own], [point.y for point in own], size if filled else 1.6 * size,
            facecolors=own_colours if filled else "white", edgecolors=own_colours, linewidths=0.5, zorder=2,
        )  # fmt: skip
    depths = sorted({point.y for point in points})
    axes.set_yticks(depths, [f"{abs(depth):g}" for depth in depths])
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.margins(0.02, 0.1)
    bar = axes.figure.colorbar(mpl.cm.ScalarMappable(norm, colours), ax=axes, fraction=0.03, pad=0.01, aspect=14)
    bar.set_label("dialogue", fontsize=5.5)
    bar.ax.tick_params(labelsize=5, width=0.4, length=1.5)
    bar.outline.set_linewidth(0.4)


def _map(axes: Axis, sheet: Sheet, points: Sequence[Point], style: Style) -> None:
    """Draw nodes in two dimensions, with a colour and a marker per history."""
    size = max(2.0, min(12.0, 900.0 / len(points)))
    for name, own in grouped(points, "series").items():
        axes.scatter(
            [point.x for point in own], [point.y for point in own], size, color=style.colour(name),
            marker=style.marker(name), alpha=0.7, linewidths=0,
        )  # fmt: skip
    axes.set_xticks([])
    axes.set_yticks([])
    for side in ("top", "right"):
        axes.spines[side].set_visible(True)


def _pareto(axes: Axis, sheet: Sheet, points: Sequence[Point], style: Style) -> None:
    """Draw quality over cost: non-dominated rows are filled, joined and numbered; the key names them."""
    best = sorted(front(points), key=lambda point: float(point.x))
    x, y = [point.x for point in best], [point.y for point in best]
    axes.step(x, y, where="post", color=COLOURS[0], linewidth=0.8, zorder=2)
    for point in points:
        chosen = point in best
        if point.low is not None and point.high is not None:
            axes.plot([point.x, point.x], [point.low, point.high], color="#DDDDDD", linewidth=0.5, zorder=1)
        colour = COLOURS[0] if chosen else GREY
        mark = {"color": colour, "mfc": colour if chosen else "white", "ms": 3.0, "mew": 0.7, "zorder": 3}
        axes.plot([point.x], [point.y], "o", clip_on=False, **mark)
    if sheet.spacing == "log":
        _log_costs(axes, [float(point.x) for point in points], 4 if sheet.across == 1 else 3)
    else:
        axes.set_xlim(left=min(0.0, *(float(point.x) for point in points)))
    axes.margins(y=0.15)


def _log_costs(axes: Axis, costs: Sequence[float], most: int) -> None:
    """Set a logarithmic axis with at most `most` ticks above 0; linear from 0 to the smallest cost if a cost is 0."""
    paid = [cost for cost in costs if cost > 0]
    if not paid:
        return
    if len(paid) < len(costs):
        axes.set_xscale("symlog", linthresh=min(paid))
        axes.set_xlim(left=0.0)
    else:
        axes.set_xscale("log")
    ticks = round_numbers(min(paid), max(paid), most)
    free = [0.0] if len(paid) < len(costs) else []
    axes.set_xticks([*free, *ticks], [f"{tick:g}" if tick < 1000 else f"{tick / 1000:g}k" for tick in (*free, *ticks)])
    axes.minorticks_off()


def round_numbers(low: float, high: float, most: int) -> list[float]:
    """At most `most` round numbers from `low` to `high`, evenly spread on a logarithmic axis."""
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        ticks = [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]
        if len(ticks) <= most:
            return ticks or [low]
    return ticks[:: -(-len(ticks) // most)]


def labels_of_pareto(axes: Axis, points: Sequence[Point]) -> None:
    """Write the numbers of the rows on the front above their marks, moved up where two would overlap; needs the final layout."""
    inch = axes.figure.dpi_scale_trans.inverted()
    taken: list[tuple[float, float]] = []
    for point in sorted(front(points), key=lambda one: (float(one.x), -one.y)):
        x, y = inch.transform(axes.transData.transform((float(point.x), point.y)))
        level, wide = y + 0.07, 0.05 * (len(point.label) + 1)
        while any(abs(level - other) < LINE and abs(x - across) < wide for across, other in taken):
            level += LINE
        taken.append((x, level))
        axes.annotate(
            point.label, (float(point.x), point.y), (x, level), textcoords=axes.figure.dpi_scale_trans, va="center", ha="center",
            fontsize=5.0, color=COLOURS[0], fontweight="bold",
        )  # fmt: skip


# --- the waterfall of losses ------------------------------------------------------------------------------------------


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
    # Histories with equal mean differences have the interval by question alone.
    interval = preferred_interval(mean) or mean.by_question
    low, high = (None, None) if interval is None else (POINTS * interval.low, POINTS * interval.high)
    return Point("", series, name, POINTS * mean.mean, low, high, mean.n)


def fall_sheet(title: str, points: Sequence[Point], notes: tuple[str, ...]) -> Sheet:
    """The sheet of the waterfall, as high as its bars need."""
    more = "Hatched: lost; dotted: gained. Lines: 95 % intervals of each step, by history where there are five that differ."
    label = f"points of {POINTS:.0f}, mean of {counted(points[0].n, 'question')}"
    return Sheet(title, (more, *notes), "waterfall", x_label=label, height=0.5 + 0.16 * len(points))


def _waterfall(axes: Axis, sheet: Sheet, points: Sequence[Point], style: Style) -> None:
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
        _write_at_edge(axes, text, place)
    axes.set_yticks(range(len(points)), [str(point.x) for point in points])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(points) - 0.4, -0.6)
    axes.set_xlim(min(0.0, axes.get_xlim()[0]), max(POINTS, axes.get_xlim()[1]))


KINDS: Mapping[str, Callable[[Axis, Sheet, Sequence[Point], Style], None]] = {
    "lines": _lines,
    "bars": _bars,
    "stacked": _stacked,
    "heatmap": _heatmap,
    "tree": _tree,
    "map": _map,
    "pareto": _pareto,
    "waterfall": _waterfall,
}
"""The function that draws each kind of panel."""
