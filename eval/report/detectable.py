"""Caption lines on the tests of a table, and on the smallest difference that they detect."""

from __future__ import annotations

from collections import Counter

from eval.report.cell import Cell
from eval.report.tables import Table, histories, only_about
from eval.statistics.families import EXACT, level_of
from eval.statistics.power import POWER, detectable, planned, shown
from eval.statistics.stats import ENOUGH_CLUSTERS, Sampling

ONE_BUILD = (
    "Intervals by case hold the luck of one build and one answer a history; a shift that is common to a whole run "
    "(another version of the model, another day) is not in them unless builds are replicated."
)


def detectable_lines(table: Table) -> list[str]:
    """Lines for a table's caption: the detectable difference of each primary column, and what intervals by case leave out."""
    lines = [line for place in table.primaries for line in _lines(table, place)]
    scored = [cell for row in table.rows for cell in row.cells if isinstance(cell, Cell) and cell.score_files]
    return [*lines, *([ONE_BUILD] if scored and all(len(cell.score_files) == 1 for cell in scored) else [])]


def _lines(table: Table, place: int) -> list[str]:
    column = table.columns[place]
    sizes = Counter(question.cluster for question in column.questions)
    start = (
        f"Detectable difference between two rows of {column.title}, {column.metric}, at {POWER:.0%} power "
        f"({len(column.questions)} questions, {len(sizes)} case{'s' * (len(sizes) > 1)})"
    )
    if len(sizes) < ENOUGH_CLUSTERS:
        return [f"{start}: none; differences are {only_about(len(sizes))}."]
    if place in table.tests:
        return [f"{start}: {shown(column_detects(table, place))} (at the level of {family_of(table, place)})."]
    planned_pairs = len([row for row in table.rows if table.wanted is None or row.name in table.wanted]) - 1
    pairs = max(1, planned_pairs if table.reference else 1)
    assumed = planned(list(sizes.values()), level_of(len(table.testable)) / pairs)
    if assumed is None:
        return []
    family = f"{pairs} pair{'s' * (pairs > 1)} on {len(table.testable)} data set{'s' * (len(table.testable) > 1)}"
    return [f"{start}: {shown(assumed[0])} ({assumed[1]}; for {family})."]


def column_detects(table: Table, place: int) -> float:
    """The difference that a pair of a tested column detects at the level of the family; infinite where no pair can be starred.

    The error is the root mean square over the column's tested pairs: that of a single pair is noisy.
    """
    names, tested = table.tests[place]
    samplings = [sampling for name in names if (sampling := table.pairs[name, place].difference.sampling) is not None]
    if not tested.alpha:
        return float("inf")
    error = (sum(sampling.error**2 for sampling in samplings) / len(samplings)) ** 0.5
    freedom = sum(sampling.freedom for sampling in samplings) / len(samplings)
    return detectable(Sampling(error, freedom), tested.alpha)


def family_of(table: Table, place: int) -> str:
    """The family of a tested column in words: its pairs and the test."""
    names, tested = table.tests[place]
    columns = len(table.testable)
    over = f", Šidák over {columns} data sets" if columns > 1 else ""
    return f"{len(names)} pair{'s' * (len(names) > 1)}, {tested.method}{over}"


def how_tested(table: Table, place: int) -> list[str]:
    """How the pairs of a column are tested, or why they are not, in sentences."""
    column = table.columns[place]
    count = histories(column)
    if not any(where == place for _, where in table.pairs):
        return []
    if count < ENOUGH_CLUSTERS:
        return [f"Not tested: differences are {only_about(count)}."]
    if place not in table.primaries:
        return ["Exploratory: not tested."]
    if place not in table.tests:
        return []
    skewed = " For strongly skewed effects of histories its error is .06 to .09 instead of .05 (simulated)." * (
        count <= EXACT
    )
    return [f"Adjusted p: {family_of(table, place)}.{skewed}"]
