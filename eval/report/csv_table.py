"""A table as CSV, for further work."""

from __future__ import annotations

from eval.report.cell import ALL, Column, categories
from eval.report.corrections import FIELDS as CORRECTED
from eval.report.corrections import corrected_fields, is_corrected
from eval.report.published import Published
from eval.report.tables import AnyCell, Measure, Row, Table
from eval.statistics.stats import Estimate, Interval
from memsys.inert import csv_text

FIELDS = (
    "table,memory,dataset,metric,category,questions,scored,unscored,errored,not_reached,aborted,cut,empty,mean,question_low,question_high,"
    "case_low,case_high,clusters,spread,could_be_low,could_be_high,published,published_low,published_high,verdict"
).split(",")


def as_csv(table: Table) -> str:
    """One CSV line per cell and category, with every number that the Markdown prints of scores."""
    more = CORRECTED if is_corrected(table) else []
    rows = [[*FIELDS, *more]]
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            lines = _csv_lines(table, row, column, cell)
            rows += [[*line, *corrected_fields(cell, line[4])] if more else line for line in lines]
    return csv_text(rows)


def _csv_lines(table: Table, row: Row, column: Column, cell: AnyCell) -> list[list[str]]:
    start = [table.name, row.name, column.dataset, column.metric]
    if isinstance(cell, Measure):
        return [
            [
                *(*start, ALL, *[""] * 8, *_csv_ours(cell.ours), "", "", ""),
                *_csv_printed(cell.published, column.scale),
                cell.verdict(),
            ]
        ]
    if isinstance(cell, str):
        return [[*start, ALL, *[""] * (len(FIELDS) - 6), cell]]
    lines = []
    for name in categories(column):
        counts, ours, bounds = cell.counts(name), cell.estimate(name), cell.bounds(name)
        outcome = (counts.questions, counts.scored, counts.unscored, counts.errored, counts.not_reached)
        lines.append(
            [
                *start,
                name,
                *map(str, (*outcome, counts.aborted, counts.cut, counts.empty)),
                *_csv_ours(ours),
                _exact(cell.spread if name == ALL else None),
                *map(_exact, _ends(bounds)),
                *_csv_printed(cell.published if name == ALL else None, column.scale),
                cell.verdict() if name == ALL else "",
            ]
        )
    return lines


def _csv_ours(ours: Estimate | None) -> list[str]:
    if ours is None:
        return [""] * 6
    return [*map(_exact, (ours.mean, *_ends(ours.by_question), *_ends(ours.by_case))), str(ours.clusters)]


def _csv_printed(published: Published | None, scale: float) -> list[str]:
    if published is None:
        return ["", "", ""]
    bounds = (None if bound is None else bound / scale for bound in (published.low, published.high))
    return [published.scaled(scale), *map(_exact, bounds)]


def _ends(interval: Interval | None) -> tuple[float | None, float | None]:
    return (None, None) if interval is None else (interval.low, interval.high)


def _exact(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}"
