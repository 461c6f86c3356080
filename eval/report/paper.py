"""A table as LaTeX with booktabs, with the same numbers as Markdown and CSV.

`latex` puts everything into one `table`. `paper_table` is for papers: with siunitx, one `table` for each column group.

Significance marks are those of the paired test by case against the table's reference row, adjusted over the table's family
(`eval.statistics.families`); exploratory metrics and fewer than five histories have none. The caption holds all that a reader
needs to judge a number.

Characters that pdfTeX's default encodings cannot set are written as `[U+4E2D]`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from re import sub

from eval.report.cell import Cell
from eval.report.counted import counted
from eval.report.rendering import number, span
from eval.report.tables import (
    CELLS,
    NO_INTERVAL,
    AnyCell,
    Pair,
    Row,
    Table,
    detectable_lines,
    estimate_of,
    how_tested,
    printed,
    verdict_lines,
)
from eval.statistics.stats import preferred_interval

WIDEST = 3
"""Maximum number of metrics in one table; more go into a further table, because a page has room for nine columns of numbers."""
MARKS = ((0.001, "***"), (0.01, "**"), (0.05, "*"))
ESCAPES: Mapping[str, str] = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "–": "--",
    "—": "---",
    "…": r"\dots{}",
    "’": "'",
    "‘": "`",
    "“": "``",
    "”": "''",
    "·": r"\textperiodcentered{}",
    "±": r"\ensuremath{\pm}",
    "×": r"\ensuremath{\times}",
    "→": r"\ensuremath{\rightarrow}",
    "≤": r"\ensuremath{\le}",
    "≥": r"\ensuremath{\ge}",
    "Δ": r"\ensuremath{\Delta}",
    "α": r"\ensuremath{\alpha}",
    "β": r"\ensuremath{\beta}",
    "λ": r"\ensuremath{\lambda}",
    "θ": r"\ensuremath{\theta}",
    "τ": r"\ensuremath{\tau}",
    "†": r"\textdagger{}",
    "‡": r"\textdaggerdbl{}",
}
SHORT_CELLS = (
    "Cells: mean [95 % by case; below five cases, or where none differ, Wilson's on the effective number of questions; by question for a "
    "single one] (published number)"
)
"""What a cell of `latex` holds, in place of `CELLS`."""
KEPT = ("SUBSET", "STAND-IN", "OTHER MODEL", "Models:", "Stopped")
"""Beginnings of the lines of a table's own caption that a paper's caption repeats."""
PREAMBLE = (
    r"\usepackage[T1]{fontenc}",
    r"\usepackage[utf8]{inputenc}",
    r"\usepackage{booktabs}",
    r"\usepackage{siunitx}",
    r"\usepackage{graphicx}",
)
"""Packages that a document needs for the table."""

FITTED = (
    r"\ifdim\dimexpr\ht0+\dp0\relax>0.8\textheight \sbox0{\resizebox*{!}{0.8\textheight}{\usebox0}}\fi",
    r"\ifdim\wd0>\linewidth \sbox0{\resizebox{\linewidth}{!}{\usebox0}}\fi",
    r"\usebox0",
)
"""TeX code that prints box 0, smaller where it would not fit the page. (adjustbox does this too; its Debian package is 155 MB.)"""


def escaped(text: str) -> str:
    """Escape a text so that TeX prints it literally."""
    parts = []
    for character in unicodedata.normalize("NFC", text):
        letter = "¡" <= character <= "ſ" and unicodedata.category(character)[0] == "L"
        plain = character if " " <= character <= "~" or letter else f"[U+{ord(character):04X}]"
        parts.append(ESCAPES.get(character, " " if character.isspace() else plain))
    return "".join(parts)


def latex(table: Table) -> str:
    """The scores as one table: our mean, its interval by case or the cautious one, published number and verdict in small print. The
    caption counts the unscored answers.
    """
    lines = [r"\begin{table}", r"\centering", r"\small"]
    lines += [rf"\begin{{tabular}}{{l{'c' * len(table.columns)}}}", r"\toprule"]
    header = ["Memory", *(f"{column.title} {column.metric}" for column in table.columns)]
    lines += [" & ".join(map(escaped, header)) + r" \\", r"\midrule"]
    for row in table.rows:
        lines += [r"\midrule"] if row.ruled else []
        cells = [escaped(row.title)]
        for cell in row.cells:
            ours = estimate_of(cell)
            if isinstance(cell, str) or ours is None:
                cells.append(escaped(cell) if isinstance(cell, str) else "--")
                continue
            interval = span(preferred_interval(ours))
            small = [rf"{{\tiny {interval}}}"] if interval else []
            if (number := cell.published) is not None:
                said = "" if number.why_not else f"; {escaped(cell.verdict())}"
                small.append(rf"{{\tiny ({number.printed}{said})}}")
            cells.append(" ".join([f"{ours.mean:.3f}", *small]))
        lines.append(" & ".join(cells) + r" \\")
    scored = [cell for row in table.rows for cell in row.cells if isinstance(cell, Cell) and cell.estimate()]
    outcomes = [_outcomes(scored)] if scored else []
    said = " ".join([f"{table.title}.", *table.caption, *outcomes, *verdict_lines(table)])
    caption = escaped(said.replace(f"{CELLS}{NO_INTERVAL}", f"{SHORT_CELLS}.").replace(CELLS, SHORT_CELLS))
    lines += [r"\bottomrule", r"\end{tabular}", rf"\caption{{{caption}}}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def paper_table(table: Table) -> str:
    """The tables of all data sets, one after the other; a data set with many metrics has several."""
    preamble = "\n".join(f"%   {line}" for line in PREAMBLE)
    parts = [f"% {escaped(table.name)}. Needs in the preamble:\n{preamble}"]
    panels = [
        (title, places[start : start + WIDEST])
        for (_, title), places in table.datasets.items()
        for start in range(0, len(places), WIDEST)
    ]
    label = "".join(character if character.isascii() and character.isalnum() else "-" for character in table.name)
    for place, (title, places) in enumerate(panels, 1):
        parts.append(_group(table, places, title, f"tab:{label}-{place}"))
    return "\n\n".join(parts) + "\n"


def standalone(table: Table) -> str:
    """A complete document with the tables, ready to compile."""
    head = [r"\documentclass[10pt,a4paper]{article}", r"\usepackage[margin=18mm]{geometry}", *PREAMBLE]
    return "\n".join([*head, r"\begin{document}", paper_table(table), r"\end{document}"]) + "\n"


def _group(table: Table, places: Sequence[int], title: str, label: str) -> str:
    # A row with neither our nor a paper's number in the group is left out; the caption counts such rows.
    own = ((row, [row.cells[place] for place in places]) for row in table.rows)
    rows = [row for row, cells in own if any(estimate_of(cell) or printed(cell) for cell in cells)]
    compared = [place for place in places if any(printed(row.cells[place]) for row in rows)]
    shapes = "".join(_columns([row.cells[place] for row in rows], place in compared) for place in places)
    lines = [r"\begin{table}[p]", r"\centering", r"\small", r"\sbox0{%"]
    lines += [rf"\begin{{tabular}}{{l{shapes}}}", r"\toprule"]
    lines += [_heads(table, places, compared), r"\midrule"]
    for position, row in enumerate(rows):
        if row.ruled and position:
            lines.append(r"\midrule")
        cells = [_cell(row.cells[place], table.pairs.get((row.name, place)), place in compared) for place in places]
        name = escaped(row.title) + (r"\textsuperscript{\dag}" if row.name == table.reference else "")
        lines.append(" & ".join([name, *cells]) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}}%", *FITTED]
    lines += [rf"\caption{{{_caption(table, rows, places, title)}}}", rf"\label{{{label}}}", r"\end{table}"]
    return "\n".join(lines)


def _columns(cells: Sequence[AnyCell], compared: bool) -> str:
    """Columns for mean with marks, interval and, where a paper prints the column, the paper's number."""
    whole = max((len(str(int(abs(ours.mean)))) for cell in cells if (ours := estimate_of(cell)) is not None), default=1)
    higher = r"\ddag" if any(map(_too_high, cells)) else ""
    shape = rf"S[table-format=-{whole}.3, table-align-text-after=false, table-space-text-post={{\textsuperscript{{***{higher}}}}}]@{{\,}}l"
    return shape + ("c" if compared else "")


def _heads(table: Table, places: Sequence[int], compared: Sequence[int]) -> str:
    metrics, below, rules, at = ["Memory"], [""], [], 2
    for place in places:
        wide = 3 if place in compared else 2
        metrics.append(rf"\multicolumn{{{wide}}}{{c}}{{{escaped(table.columns[place].metric)}}}")
        below += ["{mean}", r"\multicolumn{1}{c}{95\,\%}", *(["published"] if wide == 3 else [])]
        rules.append(rf"\cmidrule(lr){{{at}-{at + wide - 1}}}")
        at += wide
    return " & ".join(metrics) + " \\\\\n" + "".join(rules) + "\n" + " & ".join(below) + r" \\"


def _cell(cell: AnyCell, pair: Pair | None, compared: bool) -> str:
    ours, parts = estimate_of(cell), ["{--}", ""]
    if not isinstance(cell, str) and ours is not None:
        interval = span(preferred_interval(ours), digits=cell.digits)
        signs = stars(pair) + (r"\ddag" if _too_high(cell) else "")
        mark = rf"\textsuperscript{{{signs}}}" if signs else ""
        parts = [f"{ours.mean:.{cell.digits}f}{mark}", rf"{{\scriptsize {interval}}}" if interval else ""]
    if compared:
        parts.append(printed(cell) or "--")
    return " & ".join(parts)


def stars(pair: Pair | None) -> str:
    """The marks of a comparison with the reference; empty where it is not significant, or was not tested."""
    adjusted = None if pair is None else pair.p
    return next((mark for limit, mark in MARKS if adjusted is not None and adjusted < limit), "")


def _too_high(cell: AnyCell) -> bool:
    """Whether a score is above its ceiling."""
    return isinstance(cell, Cell) and cell.above_ceiling()


def _caption(table: Table, rows: Sequence[Row], places: Sequence[int], title: str) -> str:
    cells = [cell for row in rows for place in places if isinstance(cell := row.cells[place], Cell) and cell.estimate()]
    questions = sorted({len(table.columns[place].questions) for place in places} - {0})
    sizes = " and ".join(map(str, questions))
    cases = len({asked.cluster for place in places for asked in table.columns[place].questions})
    lines = [f"{table.title}: {title}.", *(line for line in table.caption if line.startswith(KEPT))]
    lines += [line for line in table.caption if line.startswith(f"{title}: ")]
    lines += [sub(r"; from \S+(?=;)", "", line) for line in table.caption if line.startswith("Imported: ")]
    lines.append(
        f"n = {sizes} question{'' if questions == [1] else 's'} in {counted(cases, 'history')}; means with 95 % intervals, "
        "by history; below five histories, or where none differ, Wilson's on the effective number of questions (one history: by question)."
        if questions
        else "Counts and costs; their means have 95 % intervals, by history, below five histories by value."
    )
    lines += _tested(table, places)
    lines += [_outcomes(cells)] if questions else []
    if silent := len(table.rows) - len(rows):
        lines.append(f"Left out: {counted(silent, 'row')} without a number.")
    reasons = sorted({cell.published.why_not for cell in cells if cell.published is not None} - {""})
    marked = [
        f"{row.title}, {table.columns[place].metric}: {number(cell.ceiling())}"
        for row in rows
        for place in places
        if isinstance(cell := row.cells[place], Cell) and cell.above_ceiling()
    ]
    why = "the score of a perfect memory, because some gold answers are known to be wrong"
    lines += [f"‡ above its ceiling, {why} ({'; '.join(marked)})."] if marked else []
    if reasons:
        lines.append(f"Published numbers are not comparable with ours: {', '.join(reasons)}.")
    lines += [line for line in detectable_lines(table) if f" of {title} at " in line]
    lines += verdict_lines(table, places)
    return escaped(" ".join(lines))


def _tested(table: Table, places: Sequence[int]) -> list[str]:
    """The test behind the marks of these columns of one data set."""
    said = {table.columns[place].metric: " ".join(how_tested(table, place)) for place in places}
    lines = [f"{metric}: {text}" for metric, text in said.items() if text]
    if (reference := table.reference_row) is not None and any(place in table.tests for place in places):
        lines.insert(0, f"* p < .05, ** p < .01, *** p < .001 against {reference.title} (†).")
    return lines


def _outcomes(cells: Sequence[Cell]) -> str:
    """Counts of unscored answers by reason, over all cells that have a number."""
    counts = [cell.counts() for cell in cells]
    if not counts:
        return "No cell has a number of ours."
    kinds = ("unscored", "errored", "not_reached", "cut", "empty")
    total = {name: sum(getattr(count, name) for count in counts) for name in kinds}
    builds = sum(bool(cell.unscored_draws()) for cell in cells)
    if not any(total.values()) and not builds:
        return "Every answer of every row was scored."
    worst = max(cell.missing_share() for cell in cells)
    return (
        f"Over all cells {counted(total['errored'], 'error')}, {counted(total['unscored'], 'answer')} without a verdict, "
        f"{total['not_reached']} not reached, "
        f"{total['cut']} cut at the token limit, {total['empty']} empty and scored 0; at most {worst:.1%} of a cell is not scored, "
        "and none of it counts as wrong."
        f"{' Some builds or repeats lack scores that others have.' if builds else ''}"
    )
