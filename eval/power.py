"""How small a paired difference between two memories could still be found: the detectable difference at 80 % power.

From the spread that a comparison has shown, or, before anything is run, from an assumption that is printed beside the number.
The test is the two-sided t-test at 5 % whose interval the tables print.
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
"""Assumed share of the questions on which one of two memories is right and the other wrong."""
ALIKE = 0.02
"""Assumed intraclass correlation: how much more alike than others the differences of one history are."""
ASSUMED = f"assumed: the two differ on {DISAGREEING:.0%} of the questions"


def detectable(sampling: Sampling) -> float:
    """The true difference that is found with 80 % probability, in the unit of the mean."""
    from scipy.special import nctdtrinc

    return float(nctdtrinc(sampling.freedom, 1 - POWER, t_point(sampling.freedom))) * sampling.error


def planned(sizes: Sequence[int]) -> tuple[float, str] | None:
    """The detectable difference of so many 0/1-scored questions in each history, and what was assumed; None for fewer than two questions.

    By case from five histories on, with Kish's design effect for unequal sizes; else by question.
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
    """A detectable difference of shares for print: one of more than 1 cannot be."""
    return f"{difference:.3f}" if difference <= 1 else "none"


def detectable_lines(table: Table) -> list[str]:
    """What a table says of it: a line a data set, for its metrics over most questions."""
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
    observed = {column.metric: found for place, column in columns.items() if (found := _observed(table, place))}
    if observed:
        how = "case" if len(sizes) >= ENOUGH_CLUSTERS else "question"
        numbers = ", ".join(f"{metric} {shown(median(found))}" for metric, found in observed.items())
        return [f"{start}: {numbers} (median of this table's pairs; by {how})."]
    assumed = planned(list(sizes.values()))
    return [] if assumed is None else [f"{start}: {shown(assumed[0])} ({assumed[1]})."]


def _observed(table: Table, place: int) -> list[float]:
    """By pair of the column, as far as its differences scatter at all."""
    scatter = [pair.difference.sampling for (_, column), pair in table.pairs.items() if column == place]
    return [detectable(one) for one in scatter if one is not None and one.error > 0]
