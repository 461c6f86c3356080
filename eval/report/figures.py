"""Figures for one column of a paper, 3.3 inches wide: the same points give the same bytes, as PDF and as PNG.

This module lays out the sheet: title and key above, panels side by side (`panels.py` draws each), footnote below. Series without a
label in the panel are named in the key, in their colour. `draw` takes points and a sheet, never a run: a figure shows exactly the values of
the CSV file next to it.
"""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from eval.report.panels import COLOURS, KINDS, MARKERS, PUBLISHED, Sheet, Style, labels_of_pareto, stack_colour
from eval.report.points import Point, front, grouped
from memsys.jsons import changed, fields_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Words = TypeVar("Words", Sheet, Point)
DPI = 300
RC: Any = {
    "font.family": "DejaVu Sans", "font.size": 6.5, "axes.titlesize": 6.5, "axes.labelsize": 6.5, "xtick.labelsize": 6,
    "ytick.labelsize": 6, "axes.linewidth": 0.5, "xtick.major.width": 0.5, "ytick.major.width": 0.5, "xtick.major.size": 2,
    "ytick.major.size": 2, "lines.linewidth": 1.0, "lines.markersize": 2.6, "axes.spines.top": False,
    "axes.spines.right": False, "axes.titlepad": 3.0, "pdf.fonttype": 42, "svg.hashsalt": "figure", "path.simplify": False,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Layout:
    """Lines of text around the panels, and the height of each part, in inches."""

    title: Sequence[str]
    key: Sequence[Sequence[tuple[str, str]]]
    footnote: Sequence[str]
    across: int
    """Number of panels in a row."""
    heights: Sequence[float]
    """Height of each row of panels."""

    @property
    def above(self) -> float:
        return 0.125 * len(self.title) + 0.11 * len(self.key) + 0.05

    @property
    def below(self) -> float:
        return 0.085 * len(self.footnote) + 0.06

    @property
    def height(self) -> float:
        return sum(self.heights) + self.above + self.below


def draw(sheet: Sheet, points: Sequence[Point]) -> Figure:
    """Draw the figure of these points.

    Raises:
        ValueError: there are no points, or `draw` names no kind.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    if not points:
        raise ValueError(f"{sheet.title}: nothing to draw")
    if sheet.draw not in KINDS:
        raise ValueError(f"draw must be one of {', '.join(KINDS)}, found {sheet.draw!r}")
    points, silent = without_silent_panels(sheet, points)
    if silent:
        sheet = replace(sheet, footnote=(*sheet.footnote, f"0 throughout, and not drawn: {'; '.join(silent)}."))
    sheet, points = _literal(sheet), [_literal(point) for point in points]
    panels = grouped(points, "panel")
    style = Style(tuple(dict.fromkeys(point.series for point in points)))
    layout = _layout(sheet, points, style)
    with mpl.rc_context(RC):
        engine = ConstrainedLayoutEngine()
        panels_share = 1.0 - (layout.above + layout.below) / layout.height
        rect = (0.0, layout.below / layout.height, 1.0, panels_share)
        engine.set(rect=rect, w_pad=0.05, h_pad=0.02, hspace=0.02, wspace=0.03)
        figure = Figure((sheet.width, layout.height), dpi=DPI, layout=engine)
        _draw_panels(figure, sheet, panels, style, layout)
        _write_around(figure, layout)
        _settle(figure)
        if sheet.draw == "pareto":
            for axes, own in zip(figure.axes, panels.values(), strict=True):
                labels_of_pareto(axes, own)
    return figure


def _literal(words: Words) -> Words:
    """A sheet or a point whose texts are drawn as they are: between two dollar signs matplotlib reads a formula."""
    return replace(words, **changed(fields_of(words), lambda text: text.replace("$", r"\$")))


def without_silent_panels(sheet: Sheet, points: Sequence[Point]) -> tuple[Sequence[Point], list[str]]:
    """Leave out panels whose lines or bars are 0 throughout, unless all are; return the remaining points and the names of these panels."""
    panels, measured = grouped(points, "panel"), sheet.draw in ("lines", "bars")
    silent = [name for name, own in panels.items() if measured and not any(point.y for point in own)]
    if len(silent) == len(panels):
        return points, []
    return [point for point in points if point.panel not in silent], silent


def _layout(sheet: Sheet, points: Sequence[Point], style: Style) -> _Layout:
    panels = list(grouped(points, "panel").values())
    sheet = replace(sheet, title="", footnote=()) if sheet.bare else sheet
    across = min(sheet.across, len(panels))
    rows = [panels[start : start + across] for start in range(0, len(panels), across)]
    return _Layout(
        textwrap.wrap(sheet.title, int(sheet.width * 15)),
        _broken(_key(sheet, points, style), int(sheet.width * 20)),
        [line for text in sheet.footnote for line in textwrap.wrap(text, int(sheet.width * 27))],
        across,
        [max(_panel_height(sheet, own) for own in row) for row in rows],
    )


def _draw_panels(
    figure: Figure, sheet: Sheet, panels: Mapping[str, Sequence[Point]], style: Style, layout: _Layout
) -> None:
    across = layout.across
    grid = figure.add_gridspec(len(layout.heights), across, height_ratios=layout.heights)
    for place, (panel, own) in enumerate(panels.items()):
        axes = figure.add_subplot(grid[place // across, place % across])
        KINDS[sheet.draw](axes, sheet, own, style)
        if panel:
            lines = textwrap.wrap(panel, int(sheet.width / across * 14), break_on_hyphens=False)
            axes.set_title("\n".join(lines), loc="left")
        lowest = place + across >= len(panels)
        if lowest and sheet.x_label:
            axes.set_xlabel(sheet.x_label)
        if place % across == 0 and sheet.y_label:
            axes.set_ylabel(sheet.y_label)


def _settle(figure: Figure) -> None:
    """Fix the layout now, under the current settings; saving must not move anything."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:  # rounded, because the solver's last digits vary and may move a pixel
        box = axes.get_position()
        axes.set_position((round(box.x0, 5), round(box.y0, 5), round(box.width, 5), round(box.height, 5)))


def save(figure: Figure, stem: Path, about: str, suffixes: Sequence[str] = ("pdf", "png")) -> list[Path]:
    """Save the figure as `stem`.pdf and `stem`.png; returns both paths.

    Args:
        about: a description, kept in the files' metadata. Dates and program names are left out, so that equal figures have equal bytes.
        suffixes: kinds of files, also svg.
    """
    import matplotlib as mpl

    for name in ("fontTools", "matplotlib"):  # they log every step of embedding a font
        logging.getLogger(name).setLevel(logging.WARNING)
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = [stem.with_name(f"{stem.name}.{suffix}") for suffix in suffixes]
    known = {
        "pdf": {"Subject": about, "Creator": None, "Producer": None, "CreationDate": None, "ModDate": None},
        "png": {"Description": about, "Software": None},
        "svg": {"Description": about, "Creator": None, "Date": None},
    }
    with mpl.rc_context(RC):
        for file in files:
            draft = file.with_name(file.name + ".draft")
            figure.savefig(draft, format=file.suffix[1:], dpi=DPI, metadata=known[file.suffix[1:]])
            draft.replace(file)
    return files


def _panel_height(sheet: Sheet, points: Sequence[Point]) -> float:
    """Height of a panel in inches; it grows with the number of bars."""
    if sheet.draw != "bars":
        return sheet.height
    bars = len({(point.x, point.series) for point in points})
    return 0.42 + 0.115 * bars + 0.05 * len({point.x for point in points})


def _key(sheet: Sheet, points: Sequence[Point], style: Style) -> list[tuple[str, str]]:
    """Names and colours of the series that are not labelled in the panel."""
    names = [name for name in style.names if name and name != sheet.overlay]
    entries: list[tuple[str, str]] = []
    if sheet.draw == "pareto":
        best = {(point.label, point.series) for own in grouped(points, "panel").values() for point in front(own)}
        order = sorted(best, key=lambda each: (len(each[0]), each))
        entries = [(f"{label} {name}", COLOURS[0]) for label, name in order]
    if sheet.draw in ("bars", "stacked") and len(names) > 1:
        entries = [(f"■ {name}", stack_colour(sheet, style, name)) for name in names]
    if sheet.draw == "map":
        signs = dict(zip(MARKERS, "●■▲◆▼✚★✖", strict=True))
        entries = [(f"{signs[style.marker(name)]} {name}", style.colour(name)) for name in names]
    if sheet.draw == "tree":
        entries = [("● unit", "#000000"), ("○ inner node", "#000000")]
    if sheet.overlay and any(point.series == sheet.overlay for point in points):
        entries.append((f"–•– {sheet.overlay}", "#000000"))
    if any(point.origin == PUBLISHED for point in points):
        entries.append(("◇ published", "#000000"))
    return entries


def _broken(key: Sequence[tuple[str, str]], width: int) -> list[list[tuple[str, str]]]:
    """The key broken into lines of at most `width` characters."""
    lines: list[list[tuple[str, str]]] = []
    room = 0
    for name, colour in key:
        if len(name) + 2 > room:
            lines.append([])
            room = width
        lines[-1].append((name, colour))
        room -= len(name) + 2
    return lines


def _write_around(figure: Figure, layout: _Layout) -> None:
    """Write title and key above the panels, the footnote below."""
    title, height = layout.title, layout.height
    figure.text(0.01, 1 - 0.03 / height, "\n".join(title), va="top", fontsize=7.5, fontweight="bold", linespacing=1.15)
    renderer = figure.canvas.get_renderer() if hasattr(figure.canvas, "get_renderer") else None
    for number, line in enumerate(layout.key):
        x = 0.01
        level = 1 - (0.125 * len(title) + 0.11 * number + 0.05) / height
        for name, colour in line:
            for part, shade, gap in zip(name.split(" ", 1), (colour, "#222222"), (0.012, 0.025), strict=True):
                text = figure.text(x, level, part, va="top", fontsize=6, color=shade)
                x = figure.transFigure.inverted().transform(text.get_window_extent(renderer))[1][0] + gap
    style: Any = {"va": "bottom", "fontsize": 4.8, "color": "#444444", "linespacing": 1.2}
    figure.text(0.01, 0.03 / height, "\n".join(layout.footnote), **style)
