"""A paper's table on one screen: its rows and columns as printed, our score beside the published number.

`eval.report.terminal` prints every row and metric with differences and costs; this is the first look.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from rich.cells import cell_len
from rich.console import Group
from rich.table import Table as Grid
from rich.text import Text

from eval.report.names import fitting, shortened
from eval.report.rendering import number
from eval.report.tables import Measure, Row, Table
from eval.report.terminal import (
    BRIEF,
    LONGEST_STATE,
    MEMORY,
    NONE,
    PAPER,
    SCORE,
    SIGNIFICANT,
    Entry,
    Field,
    asked_rows,
    comparability,
    usable,
)

LEAST_NAME, LONGEST_NAME = 14, 36
"""Cells for the name of a row: what must be left before a field is dropped, and the most that it takes."""
GAP = "  "


def _mean(entry: Entry) -> str:
    if isinstance(entry.cell, str) or (ours := entry.ours) is None:
        return SCORE.text(entry)
    return number(ours.mean, 1 if isinstance(entry.cell, Measure) and abs(ours.mean) >= 100 else 3)


def _star(text: str, entry: Entry) -> str:
    return text + ("*" if entry.pair is not None and entry.pair.p is not None and entry.pair.p < SIGNIFICANT else "")


OURS = Field("ours", lambda entry: _star(SCORE.text(entry), entry))
MEAN = Field("ours", lambda entry: _star(_mean(entry), entry))
FORMS = ((OURS, PAPER, BRIEF), (OURS, PAPER), (MEAN, PAPER, BRIEF), (MEAN, PAPER))
"""What a cell of the paper's table shows, from the roomiest to the tightest."""


def printed_places(table: Table) -> list[int]:
    """Numbers of the columns in which the paper prints a number; empty for a table of no paper."""
    return [
        place
        for place in range(len(table.columns))
        if any(not isinstance(row.cells[place], str) and row.cells[place].published is not None for row in table.rows)  # type: ignore[union-attr]
    ]


def paper_grid(table: Table, width: int = 100, elsewhere: str = "") -> Group:
    """The rows that the paper prints, and others that were asked for by name, in the columns with published numbers.

    Args:
        width: cells of a line; columns that do not fit follow below in further grids.
        elsewhere: a sentence about where everything is to be had.
    """
    places, rows = printed_places(table), _rows(table)
    parts: list[Text | Grid] = [Text(fitting(table.title, width), style="bold"), *usable(table)]
    form, groups = _fit(table, rows, places, width)
    for group in groups:
        parts += [Text(""), _grid(table, rows, group, form, width)]
    lines = [*_states(rows, places, width), *_legend(table, form)]
    left = len(table.rows) - len(rows), len(table.columns) - len(places)
    if any(left):
        kinds = [
            f"{count} {name}{'s' if count > 1 else ''}"
            for count, name in zip(left, ("row", "metric"), strict=True)
            if count
        ]
        lines.append(f"Not shown: {' and '.join(kinds)} that the paper does not print. {elsewhere}".strip())
    elif elsewhere:
        lines.append(elsewhere)
    return Group(*parts, Text(""), *(Text(line, style="dim") for line in lines))


def _rows(table: Table) -> list[Row]:
    """The rows above the rule, and of those below it the ones that were asked for by name."""
    ruled = next((place for place, row in enumerate(table.rows) if row.ruled), len(table.rows))
    printed = {row.name for row in table.rows[:ruled]}
    return [row for row in asked_rows(table) if row.name in printed or row.name in (table.wanted or ())]


def _entry(table: Table, row: Row, place: int) -> Entry:
    return Entry(row, row.cells[place], table.pairs.get((row.name, place)), row.name == table.reference, None, "")


def _texts(table: Table, rows: Sequence[Row], place: int, form: Sequence[Field]) -> list[list[str]]:
    """The fields of each row in one column; a state stands in the place of the score."""
    return [[field.text(_entry(table, row, place)) for field in form] for row in rows]


def _widths(table: Table, rows: Sequence[Row], place: int, form: Sequence[Field]) -> list[int]:
    texts = _texts(table, rows, place, form)
    return [max([cell_len(field.header), *(cell_len(line[at]) for line in texts)]) for at, field in enumerate(form)]


def _fit(
    table: Table, rows: Sequence[Row], places: Sequence[int], width: int
) -> tuple[tuple[Field, ...], list[list[int]]]:
    """The roomiest form in which all columns stand side by side; with too many columns, the tightest in several grids."""
    names = max([LEAST_NAME, *(min(LONGEST_NAME, cell_len(row.title)) for row in rows)])
    for name in (names, LEAST_NAME):
        for form in FORMS:
            if name + sum(_span(table, rows, place, form) for place in places) <= width:
                return form, [list(places)]
    form, groups, room = FORMS[-1], [[]], width - LEAST_NAME  # type: ignore[var-annotated]
    for place in places:
        needed = _span(table, rows, place, form)
        if groups[-1] and room < needed:
            groups.append([])
            room = width - LEAST_NAME
        groups[-1].append(place)
        room -= needed
    return form, groups


def _span(table: Table, rows: Sequence[Row], place: int, form: Sequence[Field]) -> int:
    return sum(len(GAP) + each for each in _widths(table, rows, place, form))


def _grid(table: Table, rows: Sequence[Row], places: Sequence[int], form: Sequence[Field], width: int) -> Text:
    """One line a row; above them the data set and the metric over the columns that belong to them."""
    widths = {place: _widths(table, rows, place, form) for place in places}
    spans = {place: sum(widths[place]) + len(GAP) * (len(form) - 1) for place in places}
    room = max(LEAST_NAME, width - sum(len(GAP) + span for span in spans.values()))
    names = shortened([row.title for row in rows], min(room, LONGEST_NAME))
    name = max(map(cell_len, [MEMORY, *names]))
    metrics = [_padded(fitting(table.columns[place].metric, spans[place]), spans[place]) for place in places]
    lines = [Text(_line("", name, heads), style="bold") for heads in (_data_sets(table, spans), metrics)]
    heads = [
        GAP.join(_padded(field.header, size) for field, size in zip(form, widths[place], strict=True))
        for place in places
    ]
    lines.append(Text(_line(MEMORY, name, heads), style="dim"))
    texts = {place: _texts(table, rows, place, form) for place in places}
    for at, (row, short) in enumerate(zip(rows, names, strict=True)):
        cells = [
            GAP.join(_padded(text, size) for text, size in zip(texts[place][at], widths[place], strict=True))
            for place in places
        ]
        lines.append(Text(_line(short, name, cells), style="" if row.name != table.reference else "italic"))
    return Text("\n").join(lines)


def _data_sets(table: Table, spans: Mapping[int, int]) -> list[str]:
    """The title of each data set over the columns that belong to it; `spans` has the width of each column."""
    cells = []
    for title, places in groupby(spans, lambda place: table.columns[place].title):
        sizes = [spans[place] for place in places]
        width = sum(sizes) + len(GAP) * (len(sizes) - 1)
        cells.append(_padded(fitting(title, width), width))
    return cells


def _line(name: str, width: int, cells: Sequence[str]) -> str:
    return GAP.join([_padded(name, width), *cells]).rstrip()


def _padded(text: str, width: int) -> str:
    return text + " " * (width - cell_len(text))


def _states(rows: Sequence[Row], places: Sequence[int], width: int) -> list[str]:
    """Each state that is too long for its cell, such as missing data with the command that gets it, once."""
    states = [cell for place in places for row in rows if isinstance(cell := row.cells[place], str)]
    return [fitting(state, width) for state in dict.fromkeys(states) if cell_len(state) > LONGEST_STATE]


def _legend(table: Table, form: Sequence[Field]) -> list[str]:
    interval = " {95 % by case} or [by question] below five cases" if OURS in form else ""
    lines = [f"ours: mean{interval}; paper: the published number; {NONE}: no score."]
    reference = next((row.title for row in table.rows if row.name == table.reference), None)
    if any(pair.p is not None for pair in table.pairs.values()):
        lines.append(f"*: differs from {reference} (adjusted p < .05).")
    if BRIEF in form or _verdicts(table) != {"n/c"}:
        return [*lines, *comparability(table)]
    return [*lines, *(line.replace("n/c: not", "None is") for line in comparability(table))]


def _verdicts(table: Table) -> set[str]:
    cells = [BRIEF.text(_entry(table, row, place)) for row in table.rows for place in printed_places(table)]
    return set(cells) - {""}
