"""A paper's table on one screen: its rows and columns as printed, our score next to the published number.

`eval.report.terminal` prints every row and metric with differences and costs; this is the first look.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby

from rich.cells import cell_len
from rich.console import Group
from rich.table import Table as Grid
from rich.text import Text

from eval.report.counted import counted
from eval.report.rendering import number
from eval.report.tables import Row, Table, estimate_of, printed
from eval.report.terminal import (
    BRIEF,
    LONGEST_STATE,
    MEMORY,
    NONE,
    PAPER,
    SCORE,
    Entry,
    Field,
    asked_rows,
    comparability,
    fitting,
    headings,
    shortened,
    usable,
)

LEAST_NAME, LONGEST_NAME = 14, 36
"""Width of a row's name in cells: the minimum before a field is dropped, and the maximum."""
GAP = "  "


def _mean(entry: Entry) -> str:
    if isinstance(entry.cell, str) or (ours := estimate_of(entry.cell)) is None:
        return SCORE.text(entry)
    return number(ours.mean, entry.cell.digits)


OURS = Field("ours", lambda entry: SCORE.text(entry) + entry.star)
MEAN = Field("ours", lambda entry: _mean(entry) + entry.star)
FORMS = ((OURS, PAPER, BRIEF), (OURS, PAPER), (MEAN, PAPER, BRIEF), (MEAN, PAPER))
"""Forms of a cell of the paper's table, from the widest to the narrowest."""


def printed_places(table: Table) -> list[int]:
    """Numbers of the columns in which the paper prints a number; empty for a table of no paper."""
    return [place for place in range(len(table.columns)) if any(printed(row.cells[place]) for row in table.rows)]


def paper_grid(table: Table, width: int = 100, elsewhere: str = "") -> Group:
    """Print the paper's rows, and others that were requested by name, in the columns with published numbers.

    Args:
        width: cells of a line; columns that do not fit follow below in further grids.
        elsewhere: a sentence that names the place of the full table.
    """
    places = printed_places(table)
    ruled = next((place for place, row in enumerate(table.rows) if row.ruled), len(table.rows))
    above = {row.name for row in table.rows[:ruled]}
    rows = [row for row in asked_rows(table) if row.name in above or row.name in (table.wanted or ())]
    entries = {place: [Entry.of(table, row, place) for row in rows] for place in places}
    parts: list[Text | Grid] = [Text(fitting(table.title, width), style="bold"), *usable(table)]
    form, groups = _fit(entries, [row.title for row in rows], width)
    for group in groups:
        parts += [Text(""), _grid(table, rows, {place: entries[place] for place in group}, form, width)]
    # A state that is too long for its cell, such as missing data with the command that gets it, is printed once below the grid.
    states = dict.fromkeys(each.cell for own in entries.values() for each in own if isinstance(each.cell, str))
    lines = [fitting(state, width) for state in states if cell_len(state) > LONGEST_STATE]
    lines += _legend(table, form)
    lines += filter(None, [f"{_left_out(table, rows, places, above)} {elsewhere}".strip()])
    return Group(*parts, Text(""), *(Text(line, style="dim") for line in lines))


def _widths(entries: Sequence[Entry], form: Sequence[Field]) -> list[int]:
    return [max([cell_len(field.header), *(cell_len(field.text(each)) for each in entries)]) for field in form]


def _fit(
    entries: Mapping[int, Sequence[Entry]], titles: Sequence[str], width: int
) -> tuple[tuple[Field, ...], list[list[int]]]:
    """The widest form in which all columns fit side by side; with too many columns, the narrowest form in several grids."""
    sizes = {
        form: {place: sum(len(GAP) + each for each in _widths(own, form)) for place, own in entries.items()}
        for form in FORMS
    }
    for name in (max([LEAST_NAME, *(min(LONGEST_NAME, cell_len(title)) for title in titles)]), LEAST_NAME):
        for form, spans in sizes.items():
            if name + sum(spans.values()) <= width:
                return form, [list(entries)]
    groups: list[list[int]] = [[]]
    room = width - LEAST_NAME
    for place, span in sizes[FORMS[-1]].items():
        if groups[-1] and room < span:
            groups.append([])
            room = width - LEAST_NAME
        groups[-1].append(place)
        room -= span
    return FORMS[-1], groups


def _grid(
    table: Table, rows: Sequence[Row], entries: Mapping[int, Sequence[Entry]], form: Sequence[Field], width: int
) -> Text:
    """One line per row; above them a header of data sets and metrics."""
    widths = {place: _widths(own, form) for place, own in entries.items()}
    spans = {place: sum(own) + len(GAP) * (len(form) - 1) for place, own in widths.items()}
    room = max(LEAST_NAME, width - sum(len(GAP) + span for span in spans.values()))
    names = shortened([row.title for row in rows], min(room, LONGEST_NAME))
    name = max(map(cell_len, [MEMORY, *names]))

    def line(first: str, cells: Iterable[tuple[str, int]], style: str) -> Text:
        padded = (text + " " * (size - cell_len(text)) for text, size in ((first, name), *cells))
        return Text(GAP.join(padded).rstrip(), style=style)

    titles = []
    for title, places in groupby(spans, lambda place: table.columns[place].title):
        sizes = [spans[place] for place in places]
        span = sum(sizes) + len(GAP) * (len(sizes) - 1)
        titles.append((fitting(title, span), span))
    sizes = list(spans.values())
    metrics = list(zip(headings([table.columns[place].metric for place in spans], sizes), sizes, strict=True))
    lines = [line("", titles, "bold"), line("", metrics, "bold")]
    heads = [pair for own in widths.values() for pair in zip((field.header for field in form), own, strict=True)]
    lines.append(line(MEMORY, heads, "dim"))
    for at, (row, short) in enumerate(zip(rows, names, strict=True)):
        texts = [
            (field.text(own[at]), size)
            for place, own in entries.items()
            for field, size in zip(form, widths[place], strict=True)
        ]
        lines.append(line(short, texts, "italic" if row.name == table.reference else ""))
    return Text("\n").join(lines)


def _left_out(table: Table, rows: Sequence[Row], places: Sequence[int], above: Collection[str]) -> str:
    """The rows and columns that the grid leaves out, by reason; empty if it shows all.

    Args:
        above: names of the table's rows that the paper prints.
    """
    unasked = len(above) - sum(row.name in above for row in rows)
    left = len(table.rows) - len(rows) - unasked, len(table.columns) - len(places)
    kinds = " and ".join(counted(count, name) for count, name in zip(left, ("row", "metric"), strict=True) if count)
    parts = [f"{counted(unasked, 'row')} that nobody asked for"] if unasked else []
    parts += [f"{kinds} that the paper does not print"] if kinds else []
    return f"Not shown: {'; '.join(parts)}." if parts else ""


def _legend(table: Table, form: Sequence[Field]) -> list[str]:
    interval = (
        " {95 % by case}, below five cases or where none differ [Wilson's on the effective number of questions], "
        "by question for a single one"
        if OURS in form
        else ""
    )
    lines = [f"ours: mean{interval}; paper: the published number; {NONE}: no score."]
    if (reference := table.reference_row) is not None and any(pair.p is not None for pair in table.pairs.values()):
        lines.append(f"*: differs from {reference.title} (adjusted p < .05).")
    verdicts = {BRIEF.text(Entry.of(table, row, place)) for row in table.rows for place in printed_places(table)} - {""}
    if BRIEF in form or verdicts != {"n/c"}:
        return [*lines, *comparability(table)]
    return [*lines, *(line.replace("n/c: not", "None is") for line in comparability(table))]
