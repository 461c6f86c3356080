"""A complete table as Markdown, JSON and CSV, and the formatting of its numbers that all writers share.

The Markdown is for reading, the CSV for further work. The JSON says where each number comes from, so that the HTML report can link a cell
to its answers and compute it again. Its paths are relative to the results folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from eval.analysis.costs import COST_COLUMNS, RECORDED_COSTS, Costs, PhaseCost, Price, costs, dollars, phases
from eval.files.imported import NOT_RECORDED
from eval.files.run_folder import metric_of
from eval.judging.judge_card import Corrected
from eval.judging.score_files import read_evidence
from eval.report.cell import ABOVE_CEILING, ALL, ANSWERABLE, Cell, OutcomeCell, categories
from eval.report.counted import counted
from eval.report.tables import (
    CORRECTED,
    AnyCell,
    Measure,
    Pair,
    Table,
    corrected_text,
    correction_lines,
    estimate_of,
    how_tested,
)
from eval.statistics.stats import ENOUGH_CLUSTERS, Estimate, Interval, by_question
from memsys.inert import csv_text, visible

_MARKS = re.compile(r"\\[!-/:-@\[-`{-~]|\||<(?=[A-Za-z/!?])|(?<=\])\(")
"""In Markdown: a mark that is escaped already, the end of a cell, the beginning of an HTML tag or comment, the address of a link."""
_ESCAPES = {"|": r"\|", "<": "&lt;", "(": r"\("}


def number(value: float | None, digits: int = 3) -> str:
    """A number as text; `–` for None."""
    return "–" if value is None else f"{value:z.{digits}f}"


def span(interval: Interval | None, brackets: Sequence[str] = "[]", digits: int = 3) -> str:
    """An interval as text; empty for None."""
    if interval is None:
        return ""
    return f"{brackets[0]}{interval.low:.{digits}f}, {interval.high:.{digits}f}{brackets[1]}"


def by_case(ours: Estimate, digits: int = 3) -> str:
    """The interval by case as text, or the reason why there is none: `{3 cases}` below five, `{no spread}` when their means are equal.

    The cautious interval of a score follows the reason: `{3 cases: 0.131, 0.621}`.
    """
    if ours.by_case is not None:
        return span(ours.by_case, "{}", digits)
    if ours.clusters < 1:  # a single number for a whole run
        return ""
    why = counted(ours.clusters, "case") if ours.clusters < ENOUGH_CLUSTERS else "no spread"
    return f"{{{why}}}" if ours.cautious is None else span(ours.cautious, (f"{{{why}: ", "}"), digits)


def intervals(ours: Estimate, digits: int = 3) -> str:
    """Both intervals as text: {by case}, or the cautious one, comes first, because questions about one history are correlated."""
    question, case = span(ours.by_question, digits=digits), by_case(ours, digits)
    return " ".join(filter(None, (case, question) if "," in case else (question, case)))


def shown(cell: AnyCell, category: str = ALL, *, published: bool = True) -> str:
    """A cell as text: mean ± spread {by case} [by question] · scored/unscored/errored/not reached · published · verdict.

    Where the metric names outcomes: right/wrong/not applicable · the wrong outcomes by name.
    """
    if isinstance(cell, str):
        return cell
    ours = estimate_of(cell, category)
    between = None if isinstance(cell, Measure) else cell.spread(category)
    spread = "" if between is None else f" ± {between:.3f}"
    parts = ["–" if ours is None else f"{ours.mean:.{cell.digits}f}{spread} {intervals(ours, cell.digits)}".strip()]
    if isinstance(cell, Cell):
        if cell.above_ceiling(category):
            parts.append(f"{ABOVE_CEILING} {number(cell.ceiling(category))}")
        if (fixed := cell.corrected(category)) is not None:
            parts.append(corrected_text(fixed))
        counts = cell.counts(category)
        if isinstance(cell, OutcomeCell):
            parts += filter(None, (cell.split(category), cell.failures(category)))
        else:
            parts.append(str(counts))
        parts += [f"{getattr(counts, name)} {name}" for name in ("aborted", "cut", "empty") if getattr(counts, name)]
        if cell.missing_share(category) and (bounds := cell.bounds(category)) is not None:
            parts.append(f"could be {bounds.low:.3f}–{bounds.high:.3f}")
        parts += filter(None, [cell.unscored_draws(category)])
    if published and cell.published is not None:
        parts += [cell.published.printed, cell.verdict()]
    return " · ".join(parts)


def about_scored(cell: Cell) -> str:
    """The questions, and the answers or verdicts of several, that a mean lacks, as sentences; empty if none."""
    counts = cell.counts()
    lacking = f"{counts.unscored} unscored, {counts.errored} errored, {counts.not_reached} not reached"
    said = []
    if counts.scored < counts.questions:
        said.append(f"Scored: {counts.scored} of {counted(counts.questions, 'question')}; {lacking}.")
    if draws := cell.unscored_draws():
        said.append(f"{draws}.")
    return " ".join(said)


def about_mean(cell: Cell) -> str:
    """What a mean without a table weighs equally, unless questions, and what it lacks (`about_scored`)."""
    unit = cell.column.aggregate
    weighs = f"Means are those of tables: of {unit} means, each of which weighs the same." if unit != "question" else ""
    return " ".join(filter(None, (weighs, about_scored(cell))))


def markdown(table: Table) -> str:
    """The whole table in Markdown."""
    header = ["Memory", *(column.heading for column in table.columns)]
    rows: list[list[str]] = []
    for row in table.rows:
        rows += [["—"] * len(header)] if row.ruled else []
        rows.append([row.title, *(shown(cell) for cell in row.cells)])
    lines = (f"- {cell_text(line)}" for line in table.lines)
    parts = [f"# {cell_text(table.title)}", "", *lines, "", grid(header, rows)]
    parts += [line for text in correction_lines(table) for line in ("", cell_text(text))]
    parts += [*_categories(table), *_differences(table), *_evidence(table), *_costs(table)]
    return "\n".join(parts) + "\n"


def grid(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    head, *lines = ["| " + " | ".join(map(cell_text, row)) + " |" for row in (header, *rows)]
    return "\n".join([head, "|" + "---|" * len(header), *lines])


def cell_text(text: str) -> str:
    """Text of a heading, line or cell in Markdown: on one line; no mark in it ends a cell, begins HTML or a link, or acts on a terminal."""
    return _MARKS.sub(lambda mark: _ESCAPES.get(mark[0], mark[0]), visible(text).replace("\n", " "))


def _categories(table: Table) -> list[str]:
    parts: list[str] = []
    for place, column in enumerate(table.columns):
        names = categories(column)
        if len(names) == 1:
            continue
        titles = [column.answerable_title if name == ANSWERABLE else name for name in names]
        rows = [
            [row.title, *(shown(row.cells[place], name, published=False) for name in names)]
            for row in table.rows
            if isinstance(row.cells[place], Cell)
        ]
        if rows:
            parts += ["", f"## {cell_text(column.heading)}, by category", "", grid(["Memory", *titles], rows)]
    return parts


def _differences(table: Table) -> list[str]:
    rows = [
        [row.title, *(difference_text(table.pairs.get((row.name, place))) for place in range(len(table.columns)))]
        for row in table.rows
        if any(name == row.name for name, _ in table.pairs)
    ]
    if not rows:
        return []
    header = ["Memory", *(column.heading for column in table.columns)]
    assert table.reference_row is not None, "a row is compared with it"
    title = f"## Paired difference from {cell_text(table.reference_row.title)}: mean {{by case}} [by question]"
    about = "p: t-test by case, for the pair alone. could be: with the missing answers, whatever they are worth. n: pairs of answers."
    tests = ((column.heading, how_tested(table, place)) for place, column in enumerate(table.columns))
    notes = [f"- {cell_text(heading)}: {cell_text(' '.join(lines))}" for heading, lines in tests if lines]
    return ["", title, "", about, "", *notes, "", grid(header, rows)]


def difference_text(pair: Pair | None) -> str:
    """A paired difference as text: mean {by case} [by question], p and adjusted p or the reason for none, bounds, number of pairs."""
    if pair is None:
        return "–"
    gap = pair.difference
    parts = [f"{gap.mean:+.3f} {intervals(gap)}".strip()]
    if pair.p is not None:
        parts += [f"p {p_text(gap.p_by_case)}", f"adjusted {p_text(pair.p)}"]
    elif pair.untested:
        parts.append(f"p {p_text(gap.p)} {pair.untested}" if gap.clusters < ENOUGH_CLUSTERS else pair.untested)
    if pair.bounds is not None:
        parts.append(f"could be {pair.bounds.low:+.3f} to {pair.bounds.high:+.3f}")
    return ", ".join([*parts, f"n {gap.n}"])


def p_text(p: float | None) -> str:
    """A p as text; `–` for None."""
    return "–" if p is None else "<0.001" if p < 0.001 else f"{p:.3f}"


EVIDENCE_INTERVAL = "covered: 95 % [by question], about these histories alone; for other histories it is too narrow."
"""The line above a table of evidence recall, which has no interval by case."""


def _evidence(table: Table) -> list[str]:
    """Evidence recall by row: covered by sources, verbatim, nDCG, and the number of turns that an item stands for."""
    parts: list[str] = []
    for dataset, title in table.datasets:
        files = {row.title: row.evidence[dataset] for row in table.rows if dataset in row.evidence}
        rows = [[name, *evidence_means(path)] for name, path in files.items()]
        if any(row[-1] != "0" for row in rows):
            depth = metric_of(next(iter(files.values())))
            header = ["Memory", "covered", "verbatim", "nDCG", "turns per item", "questions"]
            heading = f"## {depth} on {cell_text(title)} (means over questions that name evidence)"
            parts += ["", heading, "", EVIDENCE_INTERVAL, "", grid(header, rows)]
    return parts


def evidence_means(path: Path) -> list[str]:
    """Covered with its interval by question, verbatim, nDCG, turns per item and number of questions of an evidence score file."""
    lines = read_evidence(path)
    means = []
    for name in ("covered", "verbatim", "ndcg", "sources_per_item"):
        values = (line["value"] if name == "covered" else line["detail"][name] for line in lines)
        known = [value for value in values if value is not None]
        means.append(number(fmean(known) if known else None))
    covered = by_question([line["value"] for line in lines])
    return [f"{means[0]} {span(covered)}".strip(), *means[1:], str(len(lines))]


def cost_texts(found: Costs) -> list[str]:
    """A row of costs, each with its value of `once` where prompts share a prefix; imported answers show the costs of their file, and
    `not recorded` for all others."""
    imported = found.missing == NOT_RECORDED
    texts = []
    for column in COST_COLUMNS:
        known = not found.missing or (imported and column.name in RECORDED_COSTS)
        value = number(getattr(found, column.name) if known else None, column.digits)
        once = number(getattr(found, column.once), column.digits) if known and column.once else value
        text = value if value == once else f"{value} ({once} with shared prefixes once)"
        texts.append(NOT_RECORDED if imported and text == "–" else text)
    return [found.missing, *texts[1:]] if found.missing and not imported else texts


PHASES: tuple[tuple[str, Callable[[PhaseCost], str]], ...] = (
    ("steps", lambda c: str(c.steps)),
    ("calls", lambda c: str(c.calls)),
    ("not from the cache", lambda c: str(c.sent)),
    ("tokens in", lambda c: str(c.tokens_in)),
    ("of them cached", lambda c: str(c.tokens_cached)),
    ("tokens out", lambda c: str(c.tokens_out)),
    ("embedding tokens", lambda c: str(c.embedding_tokens)),
    ("own CPU s", lambda c: number(c.own_cpu_seconds, 2)),
    ("provider s", lambda c: number(c.provider_seconds, 2)),
    ("provider s, calls summed", lambda c: number(c.provider_seconds_sum, 2)),
)


def _costs(table: Table) -> list[str]:
    """The costs of each row by data set, then, again by data set, its sums by phase."""
    totals: list[str] = []
    by_phase: list[str] = []
    for dataset, title in table.datasets:
        rows: list[list[str]] = []
        phase_rows: list[list[str]] = []
        for row in table.rows:
            if (folder := row.runs.get(dataset)) is None:
                continue
            found = costs(folder)
            rows.append([row.title, *cost_texts(found)])
            if found.missing:
                phase_rows.append([row.title, found.missing, *["–"] * (len(PHASES) + 1)])
            for cost in phases(folder):
                own = (show(cost) for _, show in PHASES)
                phase_rows.append([row.title, cost.phase, *own, money_text(dollars(cost, table.prices))])
        heading = f"## Costs on {cell_text(title)}"
        if rows:
            means = "(per question or per unit, means; recall seconds = own CPU + provider time)"
            totals += ["", f"{heading} {means}", "", grid(["Memory", *(each.title for each in COST_COLUMNS)], rows)]
        if phase_rows:
            cached = "what came from the cache is counted as when it was bought"
            sums = f"(sums over the run; {cached}, and what was embedded in advance where it is used)"
            header = ["Memory", "phase", *(name for name, _ in PHASES), "USD"]
            by_phase += ["", f"{heading} by phase {sums}", "", grid(header, phase_rows)]
    return [*totals, *by_phase]


def money_text(parts: Sequence[float | None]) -> str:
    """The sum of US dollars; `–` without any part (only offline engines worked), `unknown` where a part is None (no price is known)."""
    known = [part for part in parts if part is not None]
    return "unknown" if len(known) < len(parts) else number(sum(known) if known else None, 4)


# --- JSON and CSV -----------------------------------------------------------------------------------------------------


FIELDS = (
    "table,memory,dataset,metric,category,questions,scored,unscored,errored,not_reached,aborted,cut,empty,mean,question_low,question_high,"
    "case_low,case_high,cautious_low,cautious_high,clusters,spread,could_be_low,could_be_high,published,published_low,published_high,verdict"
).split(",")
"""Columns of the CSV."""
OUTCOMES = ["not_applicable", "wrong_outcomes"]
"""Further columns for named outcomes (`OutcomeCell`): number of inapplicable questions, and wrong outcomes by name."""


def as_json(table: Table, results: Path) -> str:
    """The table as indented JSON; paths are relative to `results`, the folder that all runs are in."""
    pairs = []
    for (row_name, place), pair in table.pairs.items():
        gap, tested = pair.difference, {"adjusted": pair.p, "untested": pair.untested, "bounds": ends(pair.bounds)}
        both = {"mean": gap.mean, "n": gap.n, "question": ends(gap.by_question), "case": ends(gap.by_case)}
        pairs.append({"row": row_name, "column": place, **both, "p": gap.p, "p_case": gap.p_by_case, **tested})
    rows = [
        {
            "name": row.name,
            "title": row.title,
            "ruled": row.ruled,
            "runs": {dataset: folder.relative_to(results).as_posix() for dataset, folder in row.runs.items()},
            "usd": {dataset: run_money(folder, table.prices) for dataset, folder in row.runs.items()},
            "cells": [_cell(cell, results) for cell in row.cells],
        }
        for row in table.rows
    ]
    names = ("dataset", "title", "metric", "aggregate")
    columns = [
        {**{name: getattr(column, name) for name in names}, "questions": len(column.questions)}
        for column in table.columns
    ]
    content = {"name": table.name, "title": table.title, "caption": list(table.lines), "reference": table.reference}
    return json.dumps({**content, "columns": columns, "rows": rows, "pairs": pairs}, indent=1) + "\n"


def run_money(folder: Path, prices: Mapping[str, Price]) -> str:
    """US dollars of a whole run with its judges: `unknown` where a price is unknown, `–` where only offline engines worked."""
    if costs(folder).missing:
        return "unknown"
    return money_text([part for cost in phases(folder) for part in dollars(cost, prices)])


def _cell(cell: AnyCell, results: Path) -> dict[str, Any]:
    if isinstance(cell, str):
        return {"kind": "text", "text": cell}
    number, published = cell.published, None
    if number is not None:
        published = {"text": number.printed, "value": number.value, "ends": [number.low, number.high]}
        published["source"] = f"{number.paper} {number.table}"
    start = {"text": shown(cell), "verdict": cell.verdict(), "published": published}
    if isinstance(cell, Measure):
        return {"kind": "measure", **start, "estimates": {"all": estimated(cell.ours)}}
    names = categories(cell.column)
    counted_as = ("questions", "scored", "unscored", "errored", "not_reached", "cut")
    counts = {name: cell.counts(name) for name in names}
    return {
        "kind": "score",
        **start,
        "estimates": {name: estimated(cell.estimate(name)) for name in names},
        "counts": {name: [getattr(own, field) for field in counted_as] for name, own in counts.items()},
        "files": [path.relative_to(results).as_posix() for path in cell.score_files],
        "repeats": cell.repeats,
        "spread": cell.spread(),
        "ceiling": cell.ceiling(),
        "above_ceiling": cell.above_ceiling(),
    }


def estimated(ours: Estimate | None) -> dict[str, Any] | None:
    """A mean with its intervals, as the report reads it."""
    if ours is None:
        return None
    spans = {"question": ends(ours.by_question), "case": ends(ours.by_case), "cautious": ends(ours.cautious)}
    return {"mean": ours.mean, "n": ours.n, **spans, "clusters": ours.clusters}


def ends(interval: Interval | None) -> list[float] | None:
    """The two ends of an interval."""
    return None if interval is None else [interval.low, interval.high]


def as_csv(table: Table) -> str:
    """One CSV line per cell and category, with the numbers that the Markdown prints of scores."""
    cells = [cell for row in table.rows for cell in row.cells if isinstance(cell, Cell)]
    fields = [*FIELDS, *(OUTCOMES if any(isinstance(cell, OutcomeCell) for cell in cells) else [])]
    fields += CORRECTED if any(cell.correction is not None for cell in cells) else []
    lines = [fields]
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            for name in categories(column) if isinstance(cell, Cell) else [ALL]:
                values = {"table": table.name, "memory": row.name, "dataset": column.dataset, "metric": column.metric}
                values |= {"category": name, **_values(cell, name)}
                own = ("" if (each := values.get(field)) is None else each for field in fields)
                lines.append([f"{each:.6f}" if isinstance(each, float) else str(each) for each in own])
    return csv_text(lines)


def _values(cell: AnyCell, category: str) -> dict[str, Any]:
    """Values of a cell in a line of the CSV, by column; an absent one or None is empty."""
    if isinstance(cell, str):
        return {"verdict": cell}
    values: dict[str, Any] = {}
    ours = estimate_of(cell, category)
    if ours is not None:
        values = {"mean": float(ours.mean), "clusters": ours.clusters, **interval_fields(ours)}
    if isinstance(cell, Cell):
        counts, bounds = cell.counts(category), cell.bounds(category)
        values |= {name: getattr(counts, name) for name in FIELDS[FIELDS.index("questions") : FIELDS.index("mean")]}
        values |= {"spread": cell.spread(category), **end_fields("could_be", bounds)}
        if isinstance(cell, OutcomeCell):
            values |= {"not_applicable": cell.skipped(category), "wrong_outcomes": cell.failures(category)}
        if isinstance(fixed := cell.corrected(category), Corrected):
            kinds = fixed.by_kind
            parts = (fixed.mean, fixed.interval.low, fixed.interval.high, kinds.low, kinds.high)
            values |= dict(zip(CORRECTED, map(float, parts), strict=True))
    if category == ALL:
        values |= {"verdict": cell.verdict()}
        if (number := cell.published) is not None:
            values |= {"published": number.printed, "published_low": number.low, "published_high": number.high}
    return values


def interval_fields(ours: Estimate | None) -> dict[str, float | None]:
    """The three intervals of a mean as columns of a CSV; `cautious` is that of few or alike histories."""
    names = {"question": "by_question", "case": "by_case", "cautious": "cautious"}
    ends = (end_fields(name, None if ours is None else getattr(ours, kind)) for name, kind in names.items())
    return {field: value for both in ends for field, value in both.items()}


def end_fields(name: str, interval: Interval | None) -> dict[str, float | None]:
    """The ends of an interval as columns of a CSV; None without an interval."""
    low, high = (None, None) if interval is None else (float(interval.low), float(interval.high))
    return {f"{name}_low": low, f"{name}_high": high}
