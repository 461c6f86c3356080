"""A table for a terminal: a block per data set, a section per metric, a line per memory; or the grid of a paper, as a first look.

Narrow (the default) fits the given width, from 80 columns on: columns shrink first, then names. Wide shows every interval and
cost and cuts nothing. Every number is formatted by the same functions as in Markdown.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, product
from os.path import commonprefix

from rich.cells import cell_len, set_cell_size
from rich.console import Group
from rich.table import Table as Grid
from rich.text import Text

from eval.analysis.costs import COST_COLUMNS, Costs, costs
from eval.judging.judge_card import MISFIT
from eval.report.cell import ABOVE_CEILING, Cell, OutcomeCell
from eval.report.counted import counted
from eval.report.paper import stars
from eval.report.published import NOT_COMPARABLE, NOT_COMPARED, brief
from eval.report.rendering import by_case, intervals, number, p_text, run_money, span
from eval.report.tables import (
    CHOSEN,
    EXPLORATORY,
    NOT_ASKED,
    UNLIKE,
    AnyCell,
    Pair,
    Row,
    Table,
    column_detects,
    corrected_text,
    correction_lines,
    estimate_of,
    family_of,
    histories,
    only_about,
    printed,
    published_cells,
    verdict_lines,
)
from eval.statistics.stats import ENOUGH_CLUSTERS, Estimate, Interval, preferred_interval

LEAST_NAME, LONGEST_STATE = 12, 14
"""Minimum cells for a name before another column shrinks, and maximum cells for a state such as `pending` in place of a score."""
NO_STAR = (EXPLORATORY, NOT_ASKED, CHOSEN, UNLIKE)
MEMORY = "memory"
NONE = "–"


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the table in one of its columns, with the values that the printed fields need."""

    row: Row
    cell: AnyCell
    pair: Pair | None
    reference: bool
    spent: Costs | None = None
    """Costs of the run; None without a run, and in all columns of a data set but the first."""
    dollars: str = ""


@dataclass(frozen=True, slots=True)
class Field:
    """A printed column."""

    header: str
    text: Callable[[Entry], str]
    right: bool = False
    """Whether it is right-aligned."""


def terminal(table: Table, width: int = 100, *, wide: bool = False) -> Group:
    """The table as a Rich renderable, with at least 80 cells a line; a wide table is as wide as it needs."""
    parts: list[Text | Grid] = [Text(table.title, style="bold"), *usable(table)]
    rows = asked_rows(table)
    for places in table.datasets.values():
        parts += _block(table, rows, places, width, wide)
    legend = [*_legend(table), *correction_lines(table)]
    legend += ["Rows that were not asked for and have no score are left out."] if len(rows) < len(table.rows) else []
    return Group(*parts, Text(""), *(Text(line, style="dim") for line in legend))


def asked_rows(table: Table) -> list[Row]:
    """The rows that the user requested, and other rows that earlier runs have scored."""
    return [row for row in table.rows if table.requests(row) or any(map(estimate_of, row.cells))]


def usable(table: Table) -> Iterator[Text]:
    """Use of the table, and the missing share."""
    if table.use:
        yield Text(f"Use: {table.use}", style="bold yellow")
    if table.missing_share:
        yield Text(f"Incomplete: {table.missing_share:.1%} of a cell's scores are missing.", style="red")


def _legend(table: Table) -> list[str]:
    lines = [
        "score: mean {95 % by case}; below five cases, or where none differ, [Wilson's on the effective number of questions], "
        "by question for a single one."
    ]
    if any(isinstance(cell, Cell) and len(cell.score_files) > 1 for row in table.rows for cell in row.cells):
        lines.append("Several builds: a score is their mean; tokens and $ are those of the first.")
    if any(isinstance(cell, Cell) and cell.counts().errored for row in table.rows for cell in row.cells):
        lines.append("errored: without a score, but in the tokens a question, often with few or none.")
    if (reference := table.reference_row) is not None and table.pairs:
        ps = "(p by case, p adjusted over the family); *: adjusted p < .05."
        lines.append(f"Δ: paired difference from {reference.title} {ps}")
        families = {family_of(table, place): table.columns[place].title for place in table.tests}
        lines += [f"{title}: {family}." for family, title in families.items()]
        reasons = {pair.untested for pair in table.pairs.values()}
        if silent := [why for why in NO_STAR if why in reasons]:
            lines.append(f"No p, no star: {', '.join(silent)}.")
    return [*lines, *table.notes, *comparability(table)]


def comparability(table: Table) -> list[str]:
    """Meaning of the verdicts, and the reasons why numbers are not comparable with the published ones."""
    reasons = {number.why_not for _, number in published_cells(table)} - {""}
    lines = [f"n/c: not comparable with the published number ({', '.join(sorted(reasons))})."] if reasons else []
    return [*verdict_lines(table), *lines]


def _block(table: Table, rows: Sequence[Row], places: Sequence[int], width: int, wide: bool) -> Iterator[Text | Grid]:
    """The columns of one data set, a section each."""
    first = table.columns[places[0]]
    widest = max((table.columns[place] for place in places), key=lambda column: len(column.questions))
    questions, count = widest.questions, histories(widest)
    size = f" · {counted(len(questions), 'question')} in {counted(count, 'history')}" if questions else ""
    heading = fitting(f"{first.title}{size}", width - 3)
    yield Text(f"\n{heading} {'─' * (width - 1 - cell_len(heading))}", style="bold")
    states = {row.cells[place] if isinstance(row.cells[place], str) else None for row in rows for place in places}
    if len(states) == 1 and (state := states.pop()) is not None:
        yield Text(str(state))
        return
    spent: dict[str, tuple[Costs, str]] = {}
    for row in rows:
        if (folder := row.runs.get(first.dataset)) is not None:
            sums = costs(folder)
            spent[row.name] = sums, NONE if sums.missing else run_money(folder, table.prices)
    sections = {place: _entries(table, rows, place, spent if place == places[0] else {}) for place in places}
    layout = _layout(rows, list(sections.values()), width, wide)
    header = _grid(layout)
    header.add_row(*map(Text, (MEMORY, *(field.header for field in layout.fields))), style="bold")
    yield header
    for place, entries in sections.items():
        yield _title(table, place, width)
        if all(isinstance(entry.cell, str) for entry in entries):  # facts in words, or nothing at all
            yield from (Text(f"  {layout.names[entry.row.name]}: {entry.cell}") for entry in entries)
            continue
        yield _section(entries, layout)
        yield from _notes(entries, layout.names, width)


def _entries(
    table: Table, rows: Sequence[Row], place: int, spent: Mapping[str, tuple[Costs, str]] | None = None
) -> list[Entry]:
    """The rows in a column, with the costs and dollars of their runs."""
    own = ((row, table.pairs.get((row.name, place)), (spent or {}).get(row.name, ())) for row in rows)
    return [Entry(row, row.cells[place], pair, row.name == table.reference, *paid) for row, pair, paid in own]


def _title(table: Table, place: int, width: int) -> Text:
    """The metric, and the detectable difference of its pairs."""
    count = histories(table.columns[place])
    told = ""
    if any(where == place for _, where in table.pairs):
        if count < ENOUGH_CLUSTERS:
            told = f" · Δ {only_about(count)}"
        elif place not in table.primary:
            told = f" · {EXPLORATORY}"
        elif place in table.tests and (least := column_detects(table, place)) <= 1:
            told = f" · detects differences from {least:.3f}"
    return Text(fitting(table.columns[place].metric, width - cell_len(told)) + told, style="italic")


# --- the text of one field ------------------------------------------------------------------------------------------------


def _score(entry: Entry, *, bare: bool = False) -> str:
    """Our number, with its interval unless `bare`; a short state in its place."""
    if isinstance(entry.cell, str):
        return entry.cell if cell_len(entry.cell) <= LONGEST_STATE else "see below"
    if (ours := estimate_of(entry.cell)) is None:
        return NONE
    digits, interval = entry.cell.digits, None if bare else preferred_interval(ours)
    return f"{number(ours.mean, digits)} {brief_span(interval, digits, '{}' if ours.by_case else '[]')}".strip()


def brief_span(interval: Interval | None, digits: int = 3, brackets: str = "[]") -> str:
    """An interval with both ends, because it may be asymmetric; `.431` for 0.431."""
    return re.sub(r"\b0\.", ".", span(interval, brackets, digits))


def _gap(entry: Entry, *ps: Callable[[Pair], float | None]) -> str:
    """The difference from the reference, followed by its p values where it is tested."""
    if entry.pair is None:
        return "reference" if entry.reference and isinstance(entry.cell, Cell) else ""
    shown = [p_text(p(entry.pair)).replace("<0.", "<.") for p in ps] if entry.pair.p is not None else []
    return f"{entry.pair.difference.mean:+.3f}{stars(entry.pair)[:1]}" + (f" ({', '.join(shown)})" if shown else "")


def _verdict(entry: Entry) -> str:
    if isinstance(entry.cell, str) or entry.cell.published is None:
        return ""
    return entry.cell.verdict().replace(NOT_COMPARABLE, f"{NOT_COMPARED} ")


def _cost(entry: Entry, name: str, digits: int = 0) -> str:
    return "" if entry.spent is None else number(getattr(entry.spent, name), digits)


def _corrected(entry: Entry, *, whole: bool = False) -> str:
    """The corrected score, with its range by kind of probe if `whole`; a mark where there is none."""
    fixed = entry.cell.corrected() if isinstance(entry.cell, Cell) else None
    if fixed is None:
        return ""
    if whole:
        return corrected_text(fixed).removeprefix("corrected ")
    if isinstance(fixed, str):
        return "no fit" if fixed.endswith(MISFIT) else NONE
    return f"{number(fixed.mean)} {brief_span(fixed.interval)}"


def _ends(entry: Entry, text: Callable[[Estimate, int], str]) -> str:
    ours = estimate_of(entry.cell)
    return "" if ours is None or isinstance(entry.cell, str) else text(ours, entry.cell.digits)


def _counts(entry: Entry) -> str:
    return str(entry.cell.counts()) if isinstance(entry.cell, Cell) and not isinstance(entry.cell, OutcomeCell) else ""


def _gap_spans(entry: Entry) -> str:
    if entry.pair is None:
        return ""
    bounds = entry.pair.bounds
    possible = "" if bounds is None else f"could be {bounds.low:+.3f} to {bounds.high:+.3f}"
    untested = entry.pair.untested if entry.pair.untested in (NOT_ASKED, CHOSEN, UNLIKE) else ""
    return ", ".join(filter(None, (intervals(entry.pair.difference), possible, untested)))


CORRECTED = Field("corrected", _corrected)
OUTCOMES = Field("right/wrong/n/a", lambda entry: entry.cell.split() if isinstance(entry.cell, OutcomeCell) else "")
SCORE = Field("score", _score)
PS = Field("Δ (p, adjusted)", lambda entry: _gap(entry, lambda pair: pair.difference.p_by_case, lambda pair: pair.p))
ADJUSTED = Field("Δ (adj. p)", lambda entry: _gap(entry, lambda pair: pair.p))
PUBLISHED, PAPER = (Field(header, lambda entry: printed(entry.cell), right=True) for header in ("published", "paper"))
VERDICT = Field("verdict", _verdict)
BRIEF = Field("verdict", lambda entry: brief(_verdict(entry)))
TOKENS, TOKENS_Q, TOK_Q = (
    Field(header, partial(_cost, name="inference_tokens"), right=True)
    for header in ("tokens/question", "tokens/q", "tok/q")
)
DOLLARS = Field("$", lambda entry: entry.dollars, right=True)
NARROW = (
    (2, (SCORE, OUTCOMES, CORRECTED, PS, PUBLISHED, VERDICT, TOKENS, DOLLARS)),
    (2, (SCORE, OUTCOMES, CORRECTED, PS, PUBLISHED, VERDICT, TOKENS_Q, DOLLARS)),
    (2, (SCORE, OUTCOMES, CORRECTED, ADJUSTED, PUBLISHED, BRIEF, TOKENS_Q, DOLLARS)),
    (1, (SCORE, OUTCOMES, CORRECTED, ADJUSTED, PAPER, BRIEF, TOK_Q, DOLLARS)),
)
"""Spaces between columns, and the columns next to the name, from the widest to the narrowest."""
TIGHT = (1, (SCORE, OUTCOMES, CORRECTED, ADJUSTED, PAPER, BRIEF))
"""The narrowest layout of a table with corrected scores, which take the room of the costs."""
WIDE = (
    SCORE,
    Field("corrected [95 %]", partial(_corrected, whole=True)),
    Field("{by case}", lambda entry: _ends(entry, by_case)),
    Field("[by question]", lambda entry: _ends(entry, lambda ours, digits: span(ours.by_question, digits=digits))),
    Field("scored/un/err/left", _counts),
    OUTCOMES,
    PS,
    Field("Δ {by case} [by question]", _gap_spans),
    PUBLISHED,
    VERDICT,
    TOKENS,
    *(
        Field(each.short, partial(_cost, name=each.name, digits=min(each.digits, 3)), right=True)
        for each in COST_COLUMNS
        if each.short
    ),
    DOLLARS,
)


# --- the layout of a block ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Layout:
    """Columns of a block with their widths, and the shortened names."""

    gap: int
    fields: tuple[Field, ...]
    widths: tuple[int, ...]
    """Widths of the fields, without the name."""
    names: Mapping[str, str]
    """Printed name by the row's name."""


def _layout(rows: Sequence[Row], sections: Sequence[Sequence[Entry]], width: int, wide: bool) -> Layout:
    """The widest layout whose names have room; columns without a text in any section are left out."""
    titles = [row.title for row in rows]
    longest = max(map(cell_len, [MEMORY, *titles]))
    entries = [entry for section in sections for entry in section]
    narrow = (*NARROW, TIGHT) if any(map(CORRECTED.text, entries)) else NARROW
    for level, (gap, candidates) in enumerate(((2, WIDE),) if wide else narrow):
        texts = {field: [field.text(entry) for entry in entries] for field in candidates}
        fields = tuple(field for field in candidates if any(texts[field]))
        widths = tuple(max(map(cell_len, [field.header, *texts[field]])) for field in fields)
        room = longest if wide else width - sum(widths) - gap * len(widths)
        if room >= min(longest, LEAST_NAME + 2) or level == len(narrow) - 1:
            break
    names = shortened(titles, max(8, min(longest, room)))
    return Layout(gap, fields, widths, dict(zip((row.name for row in rows), names, strict=True)))


def _section(entries: Sequence[Entry], layout: Layout) -> Grid:
    """The lines of one metric; a rule is above the rows that the paper does not print."""
    grid = _grid(layout)
    for entry in entries:
        if entry.row.ruled:
            grid.add_row(Text("─" * 3, style="dim"))
        texts = (layout.names[entry.row.name], *(field.text(entry) for field in layout.fields))
        grid.add_row(*map(Text, texts))
    return grid


def _grid(layout: Layout) -> Grid:
    grid = Grid(box=None, show_header=False, padding=(0, layout.gap, 0, 0), pad_edge=False)
    grid.add_column(width=max(map(cell_len, (MEMORY, *layout.names.values()))), no_wrap=True)
    for field, width in zip(layout.fields, layout.widths, strict=True):
        grid.add_column(width=width, no_wrap=True, justify="right" if field.right else "left")
    return grid


def _notes(entries: Sequence[Entry], names: Mapping[str, str], width: int) -> Iterator[Text]:
    """A line for each cell with failures or above its ceiling, and for each state that did not fit into its column."""
    for entry in entries:
        name = names[entry.row.name]
        if isinstance(entry.cell, str):
            if cell_len(entry.cell) > LONGEST_STATE:
                yield Text(f"  {name}: {entry.cell}")
        elif isinstance(entry.cell, Cell) and (failures := _failures(entry.cell)):
            yield Text(fitting(f"  {name}: {failures}", width), style="red")
        if isinstance(entry.cell, Cell) and entry.cell.above_ceiling():
            yield Text(fitting(f"  {name}: {ABOVE_CEILING} {number(entry.cell.ceiling())}", width), style="red")


def _failures(cell: Cell) -> str:
    """Counts of unscored, aborted, cut and empty answers, and bounds of the mean; empty where nothing failed."""
    if isinstance(cell, OutcomeCell):
        return cell.failures()
    counts = cell.counts()
    named = {"unscored": counts.unscored, "errored": counts.errored, "not reached": counts.not_reached}
    named |= {"aborted": counts.aborted, "cut": counts.cut, "empty": counts.empty}
    parts = ", ".join(f"{count} {name}" for name, count in named.items() if count)
    bounds = cell.bounds() if cell.missing_share() else None
    possible = "" if bounds is None else f"could be {bounds.low:.3f}–{bounds.high:.3f}"
    failed = f"{parts} of {counts.questions}" if parts else ""
    return "; ".join(filter(None, (failed, cell.unscored_draws(), possible)))


# --- names cut to a width, kept different from each other ---------------------------------------------------------------

DOTS = "…"


def shortened(names: Sequence[str], width: int) -> list[str]:
    """Shorten names to at most `width` cells, at least 8; names that differ stay different.

    A long name is cut at its end. Names that would then be equal are cut in their middle, and numbered if that is not enough.
    """
    short = {name: fitting(name, width) for name in names}
    short |= {name: _middle(name, width) for name in _alike(short)}
    alike = _alike(short)
    for place, name in enumerate(short, 1):
        if name in alike:
            short[name] = _head(name, width - cell_len(f"{DOTS}{place}")) + f"{DOTS}{place}"
    return [short[name] for name in names]


def fitting(text: str, width: int) -> str:
    """The text, cut at its end to `width` cells."""
    return text if cell_len(text) <= width else _head(text, width - 1) + DOTS


def headings(texts: Sequence[str], widths: Sequence[int]) -> list[tuple[str, str]]:
    """Cut each text to its width. A text that is cut and ends with a category is split before it. Texts that differ and would become
    equal are split after the words that begin them all.

    Returns:
        The common beginning, empty for a text that is not split, and the text or the rest of it, cut to the width.
    """
    results = [("", fitting(text, width)) for text, width in zip(texts, widths, strict=True)]
    owners: dict[str, set[str]] = {}
    for text, (_, short) in zip(texts, results, strict=True):
        owners.setdefault(short, set()).add(text)
    for place, (text, (_, short)) in enumerate(zip(texts, results, strict=True)):
        if len(owners[short]) > 1:
            shared = commonprefix(sorted(owners[short]))  # noqa: RUF071  characters are wanted
            start = shared.rfind(" ") + 1 or len(shared)
            results[place] = text[:start].rstrip(", "), fitting(text[start:], widths[place])
        elif short != text:
            metric, _, category = text.rpartition(", ")
            if metric and ")" not in category:  # the comma is not within parentheses
                results[place] = metric, fitting(category, widths[place])
    return results


def _alike(short: Mapping[str, str]) -> list[str]:
    """Names that share their short form with another name."""
    owners = Counter(short.values())
    return [name for name, own in short.items() if owners[own] > 1]


def _middle(name: str, width: int) -> str:
    if cell_len(name) <= width:
        return name
    tail = _head(name[::-1], (width - 1) // 2)[::-1]
    return _head(name, width - 1 - cell_len(tail)) + DOTS + tail


def _head(name: str, width: int) -> str:
    while cell_len(name) > width:
        name = name[:-1]
    return name


# --- a paper's table on one screen: its rows and columns as printed, our score next to the published number -------------


LEAST_TITLE, LONGEST_TITLE = 14, 36
"""Width of a row's name in cells: the minimum before a field is dropped, and the maximum."""
GAP = "  "


OURS = Field("ours", lambda entry: SCORE.text(entry) + stars(entry.pair)[:1])
MEAN = Field("ours", lambda entry: _score(entry, bare=True) + stars(entry.pair)[:1])
FORMS = ((OURS, PAPER, BRIEF), (OURS, PAPER), (MEAN, PAPER, BRIEF), (MEAN, PAPER))
"""Forms of a cell of the paper's table, from the widest to the narrowest."""
Blocks = Mapping[int, Sequence[str]]
"""Lines of equal width by number of a column of the table: the headers of its fields, then a line for each row."""


def printed_places(table: Table) -> list[int]:
    """Numbers of the columns in which the paper prints a number; empty for a table of no paper."""
    return [place for place in range(len(table.columns)) if any(printed(row.cells[place]) for row in table.rows)]


def paper_grid(table: Table, width: int = 100, elsewhere: str = "") -> Group:
    """Print the paper's rows, and others that were requested by name, in the columns with published numbers.

    Columns that do not fit into `width` cells follow below in further grids; the sentence `elsewhere` names the place of the full table.
    """
    places = printed_places(table)
    ruled = next((place for place, row in enumerate(table.rows) if row.ruled), len(table.rows))
    above = {row.name for row in table.rows[:ruled]}
    rows = [row for row in asked_rows(table) if row.name in above or row.name in (table.wanted or ())]
    entries = {place: _entries(table, rows, place) for place in places}
    parts: list[Text | Grid] = [Text(fitting(table.title, width), style="bold"), *usable(table)]
    form, groups = _fit(entries, [row.title for row in rows], width)
    spans = {place: cell_len(block[0]) for blocks in groups for place, block in blocks.items()}
    metrics = headings([table.columns[place].metric for place in spans], list(spans.values()))
    for blocks in groups:
        parts += [Text(""), _side_by_side(table, rows, blocks, width, dict(zip(spans, metrics, strict=True)))]
    # A state that is too long for its cell, such as missing data with the command that gets it, is printed once below the grid.
    states = dict.fromkeys(each.cell for own in entries.values() for each in own if isinstance(each.cell, str))
    lines = [fitting(state, width) for state in states if cell_len(state) > LONGEST_STATE]
    interval = (
        " {95 % by case}, below five cases or where none differ [Wilson's on the effective number of questions], "
        "by question for a single one"
    )
    lines += [f"ours: mean{interval if OURS in form else ''}; paper: the published number; {NONE}: no score."]
    compared = any(each.pair is not None and each.pair.p is not None for own in entries.values() for each in own)
    if (reference := table.reference_row) is not None and compared:
        lines.append(f"*: differs from {reference.title} (adjusted p < .05).")
    abbreviated = BRIEF in form or not all(number.why_not for _, number in published_cells(table))
    lines += [line if abbreviated else line.replace("n/c: not", "None is") for line in comparability(table)]
    unasked = len(above) - sum(row.name in above for row in rows)
    left = len(table.rows) - len(rows) - unasked, len(table.columns) - len(places)
    kinds = " and ".join(counted(count, name) for count, name in zip(left, ("row", "metric"), strict=True) if count)
    why = [f"{counted(unasked, 'row')} that nobody asked for"] if unasked else []
    why += [f"{kinds} that the paper does not print"] if kinds else []
    lines += filter(None, [f"Not shown: {'; '.join(why)}. {elsewhere}".strip() if why else elsewhere])
    return Group(*parts, Text(""), *(Text(line, style="dim") for line in lines))


def _fit(
    entries: Mapping[int, Sequence[Entry]], titles: Sequence[str], width: int
) -> tuple[tuple[Field, ...], list[Blocks]]:
    """The widest form in which all columns fit side by side; with too many columns, the narrowest form in several grids."""
    columns = {
        (field, place): _padded([field.header, *map(field.text, own)])
        for field in (OURS, MEAN, PAPER, BRIEF)
        for place, own in entries.items()
    }
    longest = max([LEAST_TITLE, *(min(LONGEST_TITLE, cell_len(title)) for title in titles)])
    for name, form in product((longest, LEAST_TITLE), FORMS):
        lines = {place: list(zip(*(columns[field, place] for field in form), strict=True)) for place in entries}
        blocks = {place: [GAP.join(line) for line in own] for place, own in lines.items()}
        if name + sum(len(GAP) + cell_len(block[0]) for block in blocks.values()) <= width:
            return form, [blocks]
    groups: list[dict[int, Sequence[str]]] = [{}]
    room = width - LEAST_TITLE
    for place, block in blocks.items():
        size = len(GAP) + cell_len(block[0])
        if groups[-1] and room < size:
            groups.append({})
            room = width - LEAST_TITLE
        groups[-1][place] = block
        room -= size
    return form, list(groups)


def _padded(texts: Sequence[str]) -> list[str]:
    """The texts with spaces behind them, all as wide as the widest."""
    width = max(map(cell_len, texts))
    return [set_cell_size(text, width) for text in texts]


def _side_by_side(
    table: Table, rows: Sequence[Row], blocks: Blocks, width: int, metrics: Mapping[int, tuple[str, str]]
) -> Text:
    """One line per row; above them a header of data sets and metrics, with categories on a line of their own (`headings`)."""
    spans = {place: cell_len(block[0]) for place, block in blocks.items()}
    room = max(LEAST_TITLE, width - sum(len(GAP) + size for size in spans.values()))
    names = _padded([MEMORY, *shortened([row.title for row in rows], min(room, LONGEST_TITLE))])
    heads = [
        _spanning(spans, [(table.columns[place].title,) for place in spans]),
        _spanning(spans, [(table.columns[place].title, metrics[place][0]) for place in spans]),
        [set_cell_size(metrics[place][1], size) for place, size in spans.items()],
    ]
    heads = [head for head in heads if any(map(str.strip, head))]
    styles = ["dim", *("italic" if row.name == table.reference else "" for row in rows)]
    lines = [Text(GAP.join([" " * cell_len(names[0]), *head]).rstrip(), style="bold") for head in heads]
    for style, *parts in zip(styles, names, *blocks.values(), strict=True):
        lines.append(Text(GAP.join(parts).rstrip(), style=style))
    return Text("\n").join(lines)


def _spanning(spans: Mapping[int, int], titles: Sequence[tuple[str, ...]]) -> list[str]:
    """The last title of each column, equal neighbours as one, cut or padded to the width of their columns."""
    texts = []
    for (*_, title), group in groupby(zip(titles, spans.values(), strict=True), lambda each: each[0]):
        sizes = [size for _, size in group]
        room = sum(sizes) + len(GAP) * (len(sizes) - 1)
        texts.append(set_cell_size(fitting(title, room), room))
    return texts
