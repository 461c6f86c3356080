"""Caption lines on the smallest difference between two rows that a table could detect."""

from __future__ import annotations

from collections import Counter
from statistics import median

from eval.power import POWER, detectable, planned, shown
from eval.report.cell import Column
from eval.report.tables import Table
from eval.stats import ENOUGH_CLUSTERS


def detectable_lines(table: Table) -> list[str]:
    """Lines for a table's caption: one per data set, for the metrics that cover most questions."""
    lines = []
    for dataset in dict.fromkeys(column.dataset for column in table.columns if column.questions):
        columns = {
            place: column
            for place, column in enumerate(table.columns)
            if column.dataset == dataset and column.questions
        }
        most = max(len(column.questions) for column in columns.values())
        widest = {place: column for place, column in columns.items() if len(column.questions) == most}
        lines += _line(table, next(iter(widest.values())), widest)
    return lines


def _line(table: Table, first: Column, columns: dict[int, Column]) -> list[str]:
    sizes = Counter(question.cluster for question in first.questions)
    start = (
        f"Detectable difference between two rows of {first.title} at {POWER:.0%} power "
        f"({len(first.questions)} questions, {len(sizes)} case{'s' * (len(sizes) > 1)})"
    )
    observed = {
        column.metric: differences for place, column in columns.items() if (differences := _observed(table, place))
    }
    if observed:
        how = "case" if len(sizes) >= ENOUGH_CLUSTERS else "question"
        numbers = ", ".join(f"{metric} {shown(median(differences))}" for metric, differences in observed.items())
        return [f"{start}: {numbers} (median of this table's pairs; by {how})."]
    assumed = planned(list(sizes.values()))
    return [] if assumed is None else [f"{start}: {shown(assumed[0])} ({assumed[1]})."]


def _observed(table: Table, place: int) -> list[float]:
    """Detectable differences of the column's pairs; pairs whose differences do not vary are left out."""
    scatter = [pair.difference.sampling for (_, column), pair in table.pairs.items() if column == place]
    return [detectable(sampling) for sampling in scatter if sampling is not None and sampling.error > 0]
