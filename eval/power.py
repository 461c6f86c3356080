"""The smallest paired difference between two memories that is detected with 80 % power.

It is computed from the observed spread of a comparison or, before anything is run, from an assumption that is printed beside it. The test
is the two-sided t-test at 5 % whose interval the tables print.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from eval.report.cell import Column
from eval.report.tables import Table
from eval.stats import ENOUGH_CLUSTERS, Sampling, t_point

POWER = 0.8
DISAGREEING = 0.3
"""Assumed share of questions that exactly one of two memories answers right."""
ALIKE = 0.02
"""Assumed intraclass correlation of the differences within one history."""
ASSUMED = f"assumed: the two differ on {DISAGREEING:.0%} of the questions"


def detectable(sampling: Sampling) -> float:
    """The true difference that is detected with 80 % probability, in the unit of the mean."""
    from scipy.special import nctdtrinc

    return float(nctdtrinc(sampling.freedom, 1 - POWER, t_point(sampling.freedom))) * sampling.error


def planned(sizes: Sequence[int]) -> tuple[float, str] | None:
    """The detectable difference of 0/1 scores and a sentence about the assumption; None for fewer than two questions.

    From five histories on it is by case, with Kish's design effect for unequal sizes; otherwise by question.

    Args:
        sizes: number of questions by history.
    """
    sizes = [size for size in sizes if size]
    questions = sum(sizes)
    if questions < 2:
        return None
    error = (DISAGREEING / questions) ** 0.5
    if len(sizes) < ENOUGH_CLUSTERS:
        return detectable(Sampling(error, questions - 1)), f"{ASSUMED}; by question"
    squares = sum(size**2 for size in sizes)
    inflation = 1 + (squares / questions - 1) * ALIKE
    sampling = Sampling(error * inflation**0.5, max(1.0, questions**2 / squares - 1))
    return detectable(sampling), f"{ASSUMED}, intraclass correlation {ALIKE}; by case"


def shown(difference: float) -> str:
    """A detectable difference of shares as text; `none` above 1, because no difference is that large."""
    return f"{difference:.3f}" if difference <= 1 else "none"


def detectable_lines(table: Table) -> list[str]:
    """Lines for a table's caption: one per data set, for the metrics that cover most questions."""
    lines = []
    for dataset in dict.fromkeys(column.dataset for column in table.columns if column.questions):
        columns = {place: one for place, one in enumerate(table.columns) if one.dataset == dataset and one.questions}
        most = max(len(column.questions) for column in columns.values())
        widest = {place: column for place, column in columns.items() if len(column.questions) == most}
        lines += _line(table, next(iter(widest.values())), widest)
    return lines


def _line(table: Table, first: Column, columns: dict[int, Column]) -> list[str]:
    sizes = Counter(one.cluster for one in first.questions)
    start = (
        f"Detectable difference between two rows of {first.title} at {POWER:.0%} power "
        f"({len(first.questions)} questions, {len(sizes)} case{'s' * (len(sizes) > 1)})"
    )
    by_metric = {column.metric: found for place, column in columns.items() if (found := observed(table, place))}
    if by_metric:
        how = "case" if len(sizes) >= ENOUGH_CLUSTERS else "question"
        numbers = ", ".join(f"{metric} {shown(median(found))}" for metric, found in by_metric.items())
        return [f"{start}: {numbers} (median of this table's pairs; by {how})."]
    assumed = planned(list(sizes.values()))
    return [] if assumed is None else [f"{start}: {shown(assumed[0])} ({assumed[1]})."]


def observed(table: Table, place: int) -> list[float]:
    """Detectable differences of the pairs of a column, given by its number; pairs whose differences do not vary are left out."""
    scatter = [pair.difference.sampling for (_, column), pair in table.pairs.items() if column == place]
    return [detectable(one) for one in scatter if one is not None and one.error > 0]
