"""A table as JSON and as CSV: every number that is printed, and in the JSON the run folders and score files behind it.

The Markdown is for reading, the CSV for further work. The JSON says where each number comes from, so that the HTML report can link a cell
to its answers and compute it again. Its paths are relative to the results folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eval.analysis.costs import Price, dollars, effort_missing, phases
from eval.report.cell import ALL, Cell, OutcomeCell, categories
from eval.report.rendering import money_text, shown
from eval.report.tables import CORRECTED, AnyCell, Measure, Table, corrected_fields, estimate_of, printed
from eval.statistics.stats import Estimate, Interval
from memsys.inert import csv_text

FIELDS = (
    "table,memory,dataset,metric,category,questions,scored,unscored,errored,not_reached,aborted,cut,empty,mean,question_low,question_high,"
    "case_low,case_high,clusters,spread,could_be_low,could_be_high,published,published_low,published_high,verdict"
).split(",")
"""Columns of the CSV."""
OUTCOMES = ["not_applicable", "wrong_outcomes"]
"""Further columns for named outcomes (`OutcomeCell`): number of inapplicable questions, and wrong outcomes by name."""


def as_json(table: Table, results: Path) -> str:
    """The table as indented JSON.

    Args:
        results: the folder that paths are relative to.
    """
    pairs = [
        {
            "row": row,
            "column": place,
            "mean": pair.difference.mean,
            "n": pair.difference.n,
            "question": ends(pair.difference.by_question),
            "case": ends(pair.difference.by_case),
            "p": pair.difference.p,
            "p_case": pair.difference.p_by_case,
            "adjusted": pair.p,
            "untested": pair.untested,
            "bounds": ends(pair.bounds),
        }
        for (row, place), pair in table.pairs.items()
    ]
    rows = [
        {
            "name": row.name,
            "title": row.title,
            "ruled": row.ruled,
            "runs": {dataset: relative(folder, results) for dataset, folder in row.runs.items()},
            "usd": {dataset: run_money(folder, table.prices) for dataset, folder in row.runs.items()},
            "cells": [_cell(cell, results) for cell in row.cells],
        }
        for row in table.rows
    ]
    columns = [
        {
            "dataset": column.dataset,
            "title": column.title,
            "metric": column.metric,
            "aggregate": column.aggregate,
            "questions": len(column.questions),
        }
        for column in table.columns
    ]
    content = {"name": table.name, "title": table.title, "caption": list(table.lines), "reference": table.reference}
    return json.dumps({**content, "columns": columns, "rows": rows, "pairs": pairs}, indent=1) + "\n"


def relative(path: Path, folder: Path) -> str:
    """A path relative to a folder, with forward slashes."""
    return Path(os.path.relpath(path, folder)).as_posix()


def run_money(folder: Path, prices: Mapping[str, Price]) -> str:
    """US dollars of a whole run with its judges: `unknown` where a price is unknown, `–` where only offline engines worked."""
    if effort_missing(folder):
        return "unknown"
    return money_text([part for cost in phases(folder) for part in dollars(cost, prices)])


def _cell(cell: AnyCell, results: Path) -> dict[str, Any]:
    if isinstance(cell, str):
        return {"kind": "text", "text": cell}
    number, published = cell.published, None
    if number is not None:
        scale = cell.column.scale
        published = {
            "text": printed(cell),
            "value": number.value / scale,
            "ends": number.ends(scale),
            "source": f"{number.paper} {number.table}",
        }
    start = {"text": shown(cell), "verdict": cell.verdict(), "published": published}
    if isinstance(cell, Measure):
        return {"kind": "measure", **start, "estimates": {"all": estimated(cell.ours)}}
    names = categories(cell.column)
    counts = {name: cell.counts(name) for name in names}
    return {
        "kind": "score",
        **start,
        "estimates": {name: estimated(cell.estimate(name)) for name in names},
        "counts": {
            name: [each.questions, each.scored, each.unscored, each.errored, each.not_reached, each.cut]
            for name, each in counts.items()
        },
        "files": [] if cell.chooses else [relative(path, results) for path in cell.score_files],
        "repeats": cell.repeats,
        "spread": cell.spread,
        "ceiling": cell.ceiling(),
        "above_ceiling": cell.above_ceiling(),
    }


def estimated(ours: Estimate | None) -> dict[str, Any] | None:
    """A mean with its intervals, as the report reads it."""
    if ours is None:
        return None
    return {
        "mean": ours.mean,
        "n": ours.n,
        "question": ends(ours.by_question),
        "case": ends(ours.by_case),
        "cautious": ends(ours.cautious),
        "clusters": ours.clusters,
    }


def ends(interval: Interval | None) -> list[float] | None:
    """The two ends of an interval."""
    return None if interval is None else [interval.low, interval.high]


def as_csv(table: Table) -> str:
    """One CSV line per cell and category, with every number that the Markdown prints of scores."""
    cells = [cell for row in table.rows for cell in row.cells if isinstance(cell, Cell)]
    more = CORRECTED if any(cell.correction is not None for cell in cells) else []
    fields = [*FIELDS, *(OUTCOMES if any(isinstance(cell, OutcomeCell) for cell in cells) else [])]
    lines = [[*fields, *more]]
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            for name in categories(column) if isinstance(cell, Cell) else [ALL]:
                values = {"table": table.name, "memory": row.name, "dataset": column.dataset, "metric": column.metric}
                values |= {"category": name, **_values(cell, name)}
                own = [values.get(field) for field in fields]
                texts = [
                    "" if value is None else f"{value:.6f}" if isinstance(value, float) else str(value) for value in own
                ]
                lines.append([*texts, *(corrected_fields(cell, name) if more else [])])
    return csv_text(lines)


def _values(cell: AnyCell, category: str) -> dict[str, Any]:
    """Values of a cell in a line of the CSV, by column; an absent one or None is empty."""
    if isinstance(cell, str):
        return {"verdict": cell}
    values: dict[str, Any] = {}
    ours = estimate_of(cell, category)
    if ours is not None:
        values = {"mean": float(ours.mean), "clusters": ours.clusters}
        for name, interval in (("question", ours.by_question), ("case", ours.by_case)):
            values |= _span(name, interval)
    if isinstance(cell, Cell):
        counts, bounds = cell.counts(category), cell.bounds(category)
        values |= {name: getattr(counts, name) for name in FIELDS[FIELDS.index("questions") : FIELDS.index("mean")]}
        values |= _span("could_be", bounds)
        if isinstance(cell, OutcomeCell):
            values |= {"not_applicable": cell.skipped(category), "wrong_outcomes": cell.failures(category)}
    if category == ALL:
        values |= {"verdict": cell.verdict(), "spread": cell.spread if isinstance(cell, Cell) else None}
        if (number := cell.published) is not None:
            low, high = number.ends(cell.column.scale)
            values |= {"published": printed(cell), "published_low": low, "published_high": high}
    return values


def _span(name: str, interval: Interval | None) -> dict[str, float]:
    return {} if interval is None else {f"{name}_low": float(interval.low), f"{name}_high": float(interval.high)}
