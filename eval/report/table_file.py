"""A table as JSON: every number that is printed, and the run folders and score files behind it.

The Markdown is for reading, the CSV for further work. This file says where each number comes from, so that the HTML report can link a cell
to its answers and compute it again. Paths are relative to the results folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eval.analysis.costs import Price, effort_missing, phases
from eval.report.cell import Cell, Column, categories
from eval.report.detectable import detectable_lines
from eval.report.published import Published
from eval.report.rendering import money, shown
from eval.report.tables import AnyCell, Measure, Pair, Row, Table
from eval.report.verdict_notes import verdict_lines
from eval.statistics.stats import Difference, Estimate, Interval


def as_json(table: Table, results: Path) -> str:
    """The table as indented JSON.

    Args:
        results: the folder that paths are relative to.
    """
    content = {
        "name": table.name,
        "title": table.title,
        "caption": [*table.caption, *detectable_lines(table), *verdict_lines(table)],
        "reference": table.reference,
        "columns": [_column(column) for column in table.columns],
        "rows": [_row(table, row, results) for row in table.rows],
        "pairs": [{"row": row, "column": place, **_pair(pair)} for (row, place), pair in table.pairs.items()],
    }
    return json.dumps(content, indent=1) + "\n"


def _column(column: Column) -> dict[str, Any]:
    return {
        "dataset": column.dataset,
        "title": column.title,
        "metric": column.metric,
        "aggregate": column.aggregate,
        "questions": len(column.questions),
    }


def _row(table: Table, row: Row, results: Path) -> dict[str, Any]:
    return {
        "name": row.name,
        "title": row.title,
        "ruled": row.ruled,
        "runs": {dataset: relative(folder, results) for dataset, folder in row.runs.items()},
        "usd": {dataset: run_money(folder, table.prices) for dataset, folder in row.runs.items()},
        "cells": [_cell(cell, results) for cell in row.cells],
    }


def relative(path: Path, folder: Path) -> str:
    """A path as seen from a folder, with forward slashes."""
    return Path(os.path.relpath(path, folder)).as_posix()


def run_money(folder: Path, prices: Mapping[str, Price]) -> str:
    """US dollars of a whole run with its judges: `unknown` where a price is, `–` where only offline engines worked."""
    if effort_missing(folder):
        return "unknown"
    parts = [money(cost, prices) for cost in phases(folder)]
    if "unknown" in parts:
        return "unknown"
    known = [float(part) for part in parts if part != "–"]
    return f"{sum(known):.4f}" if known else "–"


def _cell(cell: AnyCell, results: Path) -> dict[str, Any]:
    if isinstance(cell, str):
        return {"kind": "text", "text": cell}
    start = {"text": shown(cell), "verdict": cell.verdict(), "published": _published(cell.published, cell.column.scale)}
    if isinstance(cell, Measure):
        return {"kind": "measure", **start, "estimates": {"all": estimated(cell.ours)}}
    names = categories(cell.column)
    return {
        "kind": "score",
        **start,
        "estimates": {name: estimated(cell.estimate(name)) for name in names},
        "counts": {name: [*_counts(cell, name)] for name in names},
        "files": [] if cell.chooses else [relative(path, results) for path in cell.score_files],
        "repeats": cell.repeats,
        "spread": cell.spread,
        "ceiling": cell.ceiling(),
        "above_ceiling": cell.above_ceiling(),
    }


def _counts(cell: Cell, category: str) -> tuple[int, ...]:
    counts = cell.counts(category)
    return counts.questions, counts.scored, counts.unscored, counts.errored, counts.not_reached, counts.cut


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


def _published(number: Published | None, scale: float) -> dict[str, Any] | None:
    if number is None:
        return None
    bounds = [None if bound is None else bound / scale for bound in (number.low, number.high)]
    source = f"{number.paper} {number.table}"
    return {"text": number.scaled(scale), "value": number.value / scale, "ends": bounds, "source": source}


def _pair(pair: Pair) -> dict[str, Any]:
    gap: Difference = pair.difference
    found = {"mean": gap.mean, "n": gap.n, "question": ends(gap.by_question), "case": ends(gap.by_case)}
    return {
        **found,
        "p": gap.p,
        "p_case": gap.p_by_case,
        "adjusted": pair.p,
        "untested": pair.untested,
        "bounds": ends(pair.bounds),
    }
