"""Points drawn for a column of a paper, 3.3 inches wide: the same points give the same bytes, as PDF and as PNG.

Here is the sheet: panels side by side (`panels.py` draws each), the title and the key above them, the footnote below. Names that do not
fit at what they name stand in the key, in its colour. Nothing here reads a run: `draw` sees points and a sheet, and what it draws is
what the CSV beside the figure says.
"""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.report.panels import KINDS, MARKERS, PUBLISHED, Sheet, Style, labels_of_pareto, stack_colour
from eval.report.points import Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 300
RC: Any = {
    "font.family": "DejaVu Sans", "font.size": 6.5, "axes.titlesize": 6.5, "axes.labelsize": 6.5, "xtick.labelsize": 6,
    "ytick.labelsize": 6, "axes.linewidth": 0.5, "xtick.major.width": 0.5, "ytick.major.width": 0.5, "xtick.major.size": 2,
    "ytick.major.size": 2, "lines.linewidth": 1.0, "lines.markersize": 2.6, "axes.spines.top": False,
    "axes.spines.right": False, "axes.titlepad": 3.0, "pdf.fonttype": 42, "svg.hashsalt": "figure", "path.simplify": False,
}  # fmt: skip


def draw(sheet: Sheet, points: Sequence[Point]) -> Figure:
    """The figure of these points.

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
    panels = list(dict.fromkeys(point.panel for point in points))
    style = Style(tuple(dict.fromkeys(point.series for point in points)))
    key = _key(sheet, points, style)
    across = min(sheet.across, len(panels))
    rows = -(-len(panels) // across)
    foot = [line for text in sheet.footnote for line in textwrap.wrap(text, int(sheet.width * 27))]
    title = textwrap.wrap(sheet.title, int(sheet.width * 15))
    key_lines = _broken(key, int(sheet.width * 20))
    top, bottom = 0.125 * len(title) + 0.11 * len(key_lines) + 0.05, 0.085 * len(foot) + 0.06
    heights = [
        max(_height(sheet, [point for point in points if point.panel in panels[row * across : (row + 1) * across]]))
        for row in range(rows)
    ]
    height = sum(heights) + top + bottom
    with mpl.rc_context(RC):
        engine = ConstrainedLayoutEngine()
        rect = (0.0, bottom / height, 1.0, 1.0 - (top + bottom) / height)
        engine.set(rect=rect, w_pad=0.05, h_pad=0.02, hspace=0.02, wspace=0.03)
        figure = Figure((sheet.width, height), dpi=DPI, layout=engine)
        grid = figure.add_gridspec(rows, across, height_ratios=heights)
        for place, panel in enumerate(panels):
            axes = figure.add_subplot(grid[place // across, place % across])
            KINDS[sheet.draw](axes, sheet, [point for point in points if point.panel == panel], style)
            if panel:
                axes.set_title(
                    "\n".join(textwrap.wrap(panel, int(sheet.width / across * 16), break_on_hyphens=False)), loc="left"
                )
            lowest = place + across >= len(panels)
            _labelled(axes, sheet, lowest=lowest, leftmost=place % across == 0)
        _written(figure, height, title, key_lines, foot)
        figure.draw_without_rendering()  # the layout is settled here, under these settings, not when it is saved
        figure.set_layout_engine("none")
        for axes in figure.axes:  # the solver's last digits differ from time to time, and a pixel may hang on them
            box = axes.get_position()
            axes.set_position((round(box.x0, 5), round(box.y0, 5), round(box.width, 5), round(box.height, 5)))
        if sheet.draw == "pareto":
            for axes, panel in zip(figure.axes, panels, strict=True):
                labels_of_pareto(axes, [point for point in points if point.panel == panel])
    return figure


def save(figure: Figure, stem: Path, about: str) -> list[Path]:
    """The figure as `stem`.pdf and `stem`.png; `about` goes into both files, dates and program names do not."""
    import matplotlib as mpl

    for name in ("fontTools", "matplotlib"):  # they tell every step of embedding a font
        logging.getLogger(name).setLevel(logging.WARNING)
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = [stem.with_name(f"{stem.name}.{suffix}") for suffix in ("pdf", "png")]
    known = {
        "pdf": {"Subject": about, "Creator": None, "Producer": None, "CreationDate": None, "ModDate": None},
        "png": {"Description": about, "Software": None},
    }
    with mpl.rc_context(RC):
        for file in files:
            draft = file.with_name(file.name + ".draft")
            figure.savefig(draft, format=file.suffix[1:], dpi=DPI, metadata=known[file.suffix[1:]])
            draft.replace(file)
    return files


def _height(sheet: Sheet, points: Sequence[Point]) -> list[float]:
    """Inches of each panel among the points of a row."""
    found = []
    for panel in dict.fromkeys(point.panel for point in points):
        own = [point for point in points if point.panel == panel]
        if sheet.draw == "bars":
            bars = len({(point.x, point.series) for point in own})
            found.append(0.42 + 0.115 * bars + 0.05 * len({point.x for point in own}))
        else:
            found.append(sheet.height)
    return found


def _labelled(axes: Axes, sheet: Sheet, *, lowest: bool, leftmost: bool) -> None:
    if lowest and sheet.x_label:
        axes.set_xlabel(sheet.x_label)
    if leftmost and sheet.y_label:
        axes.set_ylabel(sheet.y_label)


def _key(sheet: Sheet, points: Sequence[Point], style: Style) -> list[tuple[str, str]]:
    """Names with their colours, for what carries no name of its own."""
    names = [name for name in style.names if name and name != sheet.overlay]
    found: list[tuple[str, str]] = []
    if sheet.draw in ("bars", "stacked") and len(names) > 1:
        found = [(f"■ {name}", stack_colour(sheet, style, name)) for name in names]
    if sheet.draw == "map":
        signs = dict(zip(MARKERS, "●■▲◆▼✚★✖", strict=True))
        found = [(f"{signs[style.marker(name)]} {name}", style.colour(name)) for name in names]
    if sheet.draw == "tree":
        found = [("● unit", "#000000"), ("○ inner node", "#000000")]
    if sheet.overlay and any(point.series == sheet.overlay for point in points):
        found.append((f"–•– {sheet.overlay}", "#000000"))
    if any(point.origin == PUBLISHED for point in points):
        found.append(("◇ published", "#000000"))
    return found


def _broken(key: Sequence[tuple[str, str]], width: int) -> list[list[tuple[str, str]]]:
    """The names of the key in lines of so many characters."""
    lines: list[list[tuple[str, str]]] = []
    room = 0
    for name, colour in key:
        if len(name) + 2 > room:
            lines.append([])
            room = width
        lines[-1].append((name, colour))
        room -= len(name) + 2
    return lines


def _written(
    figure: Figure, height: float, title: Sequence[str], key: Sequence[Sequence[tuple[str, str]]], foot: Sequence[str]
) -> None:
    """Title and key above, the footnote below."""
    figure.text(0.01, 1 - 0.03 / height, "\n".join(title), va="top", fontsize=7.5, fontweight="bold", linespacing=1.15)
    renderer = figure.canvas.get_renderer() if hasattr(figure.canvas, "get_renderer") else None
    for number, line in enumerate(key):
        x = 0.01
        level = 1 - (0.125 * len(title) + 0.11 * number + 0.05) / height
        for name, colour in line:
            for part, shade, gap in zip(name.split(" ", 1), (colour, "#222222"), (0.012, 0.025), strict=True):
                text = figure.text(x, level, part, va="top", fontsize=6, color=shade)
                x = figure.transFigure.inverted().transform(text.get_window_extent(renderer))[1][0] + gap
    figure.text(0.01, 0.03 / height, "\n".join(foot), va="bottom", fontsize=4.8, color="#444444", linespacing=1.2)
