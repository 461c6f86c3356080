"""A table as data, memory x data set x metric, with its tests and caption lines: the input of every writer.

`eval.report.rendering` makes Markdown, CSV and JSON of it, `terminal` terminal output, `paper` LaTeX.

No cell is left out: the cell of a memory that was not run is `pending`, that of a missing data set is `no data` with the command that gets
it, and scored + unscored + errored + not reached = questions in every cell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np

from eval.analysis.costs import Price
from eval.judging.judge_card import MISFIT, Corrected, Share
from eval.report.cell import ALL, Cell, Column, Draws, Scores
from eval.report.counted import counted
from eval.report.published import COST_MARGIN, FLIPS, MARGIN, NO_RUNS, Published, Runs, brief, verdict
from eval.statistics.families import EXACT, Gaps, Tested, level_of, single_step
from eval.statistics.power import POWER, detectable, planned, shown
from eval.statistics.stats import ENOUGH_CLUSTERS, Difference, Estimate, Interval, Sampling

# --- the best of several memories or settings: the candidate of each case, and the cell -------------------------------


@dataclass(frozen=True)
class BestOf(Cell):
    """A cell whose scores come, for each case, from the candidate that was chosen for the case."""

    chosen: Mapping[str, Cell] = field(default_factory=dict)
    """The chosen candidate's cell by cluster."""
    rechosen: Mapping[str, Mapping[str, Cell]] = field(default_factory=dict)
    """By left-out cluster: the cells that would be chosen without it, by remaining cluster."""
    held_out: bool = False
    """Whether each case's candidate was chosen on the other cases. A row chosen on its own questions is biased upwards: it gets no star."""

    chooses: ClassVar[bool] = True

    @cached_property
    def draws(self) -> Draws:
        """Every score of each question, from the chosen candidates."""
        draws = ((each.key, self.chosen[each.cluster].draws) for each in self.column.questions)
        return {key: own[key] for key, own in draws if key in own}

    @cached_property
    def drawn(self) -> tuple[int, int]:
        """As of each candidate."""
        return next(iter(self.chosen.values())).drawn

    def scores_without(self, cluster: str) -> Scores:
        """The scores of all cases but one, from the candidates that would be chosen without it."""
        cells = self.rechosen.get(cluster, {})
        rest = (each for each in self.column.questions if each.cluster != cluster)
        scores = ((each.key, cells.get(each.cluster, self).scores) for each in rest)
        return {key: own[key] for key, own in scores if key in own}


def choose(cells: Mapping[str, Cell], *, held_out: bool) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Choose the candidate with the highest mean, by cluster; among equal means the first.

    The means are over the questions that every candidate with scores has a score for: a candidate whose hard questions failed would win.

    Args:
        cells: the candidates' cells in the deciding column, by name.
        held_out: True chooses for each cluster on all other clusters. False chooses once on all questions, those that are reported
            included, as papers do.

    Returns:
        The choice, and by left-out cluster the choice without it, which shows how much a best row owes to the choice.

    Raises:
        ValueError: no question is left to choose on: `held_out` with a single cluster, or the candidates share no scored question.
    """
    sums, counts, clusters = _by_cluster(cells)
    if held_out and len(clusters) < 2:
        raise ValueError("one history only: nothing to choose on")
    names = list(cells)

    def on(total: np.ndarray, size: np.ndarray) -> list[str]:
        best = _best(total - sums, size - counts) if held_out else _best(total, size).repeat(len(clusters))
        return [names[place] for place in best]

    total, size = sums.sum(axis=0), counts.sum(axis=0)
    again = {}
    for out, name in enumerate(clusters):
        left = zip(clusters, on(total - sums[out], size - counts[out]), strict=True)
        again[name] = {cluster: candidate for cluster, candidate in left if cluster != name}
    return dict(zip(clusters, on(total, size), strict=True)), again


def _by_cluster(cells: Mapping[str, Cell]) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Sums and numbers of the scores, float64 [clusters, groups that weigh the same, candidates], and the clusters' names."""
    column = next(iter(cells.values())).column
    clusters = {name: place for place, name in enumerate(dict.fromkeys(each.cluster for each in column.questions))}
    groups = column.groups(column.questions)
    numbers = {name: place for place, name in enumerate(dict.fromkeys(groups))}
    sums = np.zeros((len(clusters), len(numbers), len(cells)))
    counts = np.zeros_like(sums)
    scored = [cell.scores.keys() for cell in cells.values() if cell.scores]
    shared = set(scored[0]).intersection(*scored[1:]) if scored else set()
    if scored and not shared:
        raise ValueError("no question has a score of every candidate: nothing to choose on")
    for number, cell in enumerate(cells.values()):
        for question, group in zip(column.questions, groups, strict=True):
            if question.key in shared and (score := cell.scores.get(question.key)) is not None:
                place = clusters[question.cluster], numbers[group], number
                sums[place] += score
                counts[place] += 1
    return sums, counts, list(clusters)


def _best(sums: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The candidate with the highest mean, weighted as the column's mean: int [rows]; among equal means the first.

    Args:
        sums, counts: of the scores to choose on, [rows, groups, candidates] or [groups, candidates] for a single row.
    """
    means = np.divide(sums, counts, out=np.zeros_like(sums), where=counts > 0).sum(axis=-2)
    groups = (counts > 0).sum(axis=-2)
    mean = np.divide(means, groups, out=np.full(means.shape, -1.0), where=groups > 0)
    return np.atleast_1d(mean.round(12).argmax(axis=-1))  # rounded, so that among equal means the first wins


def composed(
    cells: Mapping[str, Cell],
    chosen: Mapping[str, str],
    again: Mapping[str, Mapping[str, str]] | None = None,
    *,
    held_out: bool = False,
) -> BestOf:
    """Build the cell of a choice (`choose`): for each cluster the scores and outcomes of the chosen candidate.

    Args:
        cells: the candidates' cells in one column, by name.
        again: the choices without each cluster. The interval by case then includes the uncertainty of the choice.
    """
    first = next(iter(cells.values()))
    column, picked = first.column, {one: cells[name] for one, name in chosen.items()}
    known = ((each.key, picked[each.cluster].outcomes) for each in column.questions)
    outcomes = {key: own[key] for key, own in known if key in own}
    rechosen = {out: {one: cells[name] for one, name in others.items()} for out, others in (again or {}).items()}
    return BestOf(
        column, outcomes, (), correction=first.correction, chosen=picked, rechosen=rechosen, held_out=held_out
    )


# --- the table --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Measure:
    """A value that isn't a mean score: a cost, a count, a property of a structure, the difference of two cells."""

    ours: Estimate | None
    published: Published | None = None
    margin: float | None = None
    """Smaller gaps from the published value are `equivalent`; None is 5 % of it."""
    runs: Runs = NO_RUNS
    """Change of the value from run to run, where it is the difference of two means."""

    @property
    def digits(self) -> int:
        """Number of digits of the printed value: one if it is a hundred or more."""
        return 1 if self.ours is not None and abs(self.ours.mean) >= 100 else 3

    def verdict(self) -> str:
        """The verdict on our number against the published number."""
        ours = None if self.ours is None else self.ours.mean
        return verdict(ours, self.published, margin=self.margin, runs=self.runs)


AnyCell = Cell | Measure | str
"""A string gives the reason for a missing number: `pending`, `no data: …`, or `–` where the row does not apply."""


def estimate_of(cell: AnyCell, category: str = ALL) -> Estimate | None:
    """Our number; None where there is none. A measure is not split by category."""
    if isinstance(cell, str):
        return None
    return cell.ours if isinstance(cell, Measure) else cell.estimate(category)


def printed(cell: AnyCell) -> str:
    """The published number in our unit, with its digits; empty where there is none."""
    return "" if isinstance(cell, str) or cell.published is None else cell.published.printed


@dataclass(frozen=True, slots=True)
class Row:
    """One memory and its cells in the table."""

    name: str
    title: str
    cells: tuple[AnyCell, ...]
    """One per column."""
    runs: Mapping[str, Path] = field(default_factory=dict)
    """Run folder by data set, for the costs."""
    evidence: Mapping[str, Path] = field(default_factory=dict)
    """Evidence score file by data set."""
    ruled: bool = False
    """Whether a rule is printed above: the rows below it are not published."""
    by_stand_ins: bool = False
    """Whether an engine without a model gave some or all of its answers."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A row compared with the table's reference row in one column."""

    difference: Difference
    p: float | None
    """Adjusted over the table's family (`eval.statistics.families`); None where the pair is not tested."""
    untested: str = ""
    """The reason why it is not tested: one of the constants below, or `only_about`; empty where it is tested."""
    bounds: Interval | None = None
    """Range of the difference over all questions for any scores of the missing answers; None where no answer is missing."""


EXPLORATORY = "exploratory"
NOT_ASKED = "not asked for"
CHOSEN = "chosen on these questions"
UNLIKE = "one side by stand-ins"
NO_SPREAD = "no spread"


def only_about(histories: int) -> str:
    """The note on a difference over fewer than five histories: a test over questions says nothing about other histories."""
    return f"about {'this' if histories == 1 else 'these'} {counted(histories, 'history')} alone"


@dataclass(frozen=True)
class Table:
    """A table ready to be printed."""

    name: str
    title: str
    caption: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    reference: str = ""
    """Name of the row that the others are compared with; empty for none."""
    prices: Mapping[str, Price] = field(default_factory=dict)
    """Prices by role; a role without a price (an offline engine) costs nothing."""
    wanted: frozenset[str] | None = None
    """Names of the rows that the user requested, None for all; other rows show results of earlier runs on disk."""
    use: str = ""
    """Use of the table, in one sentence."""
    primary: frozenset[int] = frozenset()
    """Numbers of the columns that are tested; the others are exploratory."""

    @property
    def lines(self) -> tuple[str, ...]:
        """The caption, with its lines about metrics, detectable differences and verdicts."""
        return (*self.caption, *self.notes, *detectable_lines(self), *verdict_lines(self))

    @property
    def notes(self) -> list[str]:
        """The sentences about metrics, each once."""
        return list(dict.fromkeys(column.note for column in self.columns if column.note))

    @cached_property
    def datasets(self) -> Mapping[tuple[str, str], list[int]]:
        """Numbers of the columns of each data set, by its name and title."""
        places: dict[tuple[str, str], list[int]] = {}
        for place, column in enumerate(self.columns):
            places.setdefault((column.dataset, column.title), []).append(place)
        return places

    @property
    def missing_share(self) -> float:
        """The largest share of unscored questions (of several builds: answers) in a cell, over the rows that the user requested."""
        cells = [cell for row in self.rows if self.requests(row) for cell in row.cells if isinstance(cell, Cell)]
        return max((cell.missing_share() for cell in cells), default=0.0)

    def requests(self, row: Row) -> bool:
        """Whether the user requested a row."""
        return self.wanted is None or row.name in self.wanted

    @property
    def reference_row(self) -> Row | None:
        """The row that the others are compared with; None where the table has none."""
        return next((row for row in self.rows if row.name == self.reference), None)

    @cached_property
    def testable(self) -> tuple[int, ...]:
        """Numbers of the primary columns with at least five histories: the columns of the family."""
        return tuple(place for place in sorted(self.primary) if histories(self.columns[place]) >= ENOUGH_CLUSTERS)

    @cached_property
    def tests(self) -> Mapping[int, tuple[tuple[str, ...], Tested]]:
        """For each primary column with a test: the tested rows and the results.

        The family consists of the requested comparisons: the rows of `wanted` in the primary columns of at least five histories. Rows from
        earlier runs on disk are not part of it.
        """
        tested = {}
        for place in self.testable:
            names = list(dict.fromkeys(question.cluster for question in self.columns[place].questions))
            own = {row: each for (row, at), each in self._compared.items() if at == place and not each[2].untested}
            gaps, ps, freedoms = [], [], []
            for cell, other, pair in own.values():
                assert pair.difference.p_by_case is not None
                assert pair.difference.sampling is not None
                both = [each for each in cell.column.questions if each.key in cell.scores and each.key in other.scores]
                differences = [cell.scores[each.key] - other.scores[each.key] for each in both]
                gaps.append(Gaps.of(differences, [each.cluster for each in both], cell.column.groups(both), names))
                ps.append(pair.difference.p_by_case)
                freedoms.append(pair.difference.sampling.freedom)
            if own:
                tested[place] = tuple(own), single_step(gaps, ps, freedoms, len(self.testable))
        return tested

    @cached_property
    def pairs(self) -> Mapping[tuple[str, int], Pair]:
        """Every row compared with the reference, by row name and column number; empty for a table without a reference."""
        adjusted: dict[tuple[str, int], float] = {}
        for place, (names, tested) in self.tests.items():
            adjusted |= {(name, place): p for name, p in zip(names, tested.ps, strict=True)}
        return {key: replace(pair, p=adjusted.get(key)) for key, (_, _, pair) in self._compared.items()}

    @cached_property
    def _compared(self) -> Mapping[tuple[str, int], tuple[Cell, Cell, Pair]]:
        """By row and column: the cell, that of the reference, and their pair before the tests of all pairs are adjusted together."""
        compared: dict[tuple[str, int], tuple[Cell, Cell, Pair]] = {}
        reference = self.reference_row
        if reference is None:
            return compared
        for row in (each for each in self.rows if each is not reference):
            for place, column in enumerate(self.columns):
                cell, other = row.cells[place], reference.cells[place]
                if not (isinstance(cell, Cell) and isinstance(other, Cell)):
                    continue
                # The permutation over questions is printed for few histories only.
                gap = cell.minus(other, test=histories(column) < ENOUGH_CLUSTERS)
                if gap is None:
                    continue
                untested = NO_SPREAD if gap.p_by_case is None else ""
                if row.by_stand_ins != reference.by_stand_ins:
                    untested = UNLIKE
                elif gap.clusters < ENOUGH_CLUSTERS:
                    untested = only_about(gap.clusters)
                elif place not in self.primary:
                    untested = EXPLORATORY
                elif not self.requests(row):
                    untested = NOT_ASKED
                elif any(isinstance(each, BestOf) and not each.held_out for each in (cell, other)):
                    untested = CHOSEN
                compared[row.name, place] = cell, other, Pair(gap, None, untested, gap_bounds(cell, other))
        return compared


def histories(column: Column) -> int:
    """The number of histories that a column's questions are about."""
    return len({question.cluster for question in column.questions})


def gap_bounds(first: Cell, second: Cell) -> Interval | None:
    """The smallest and the largest difference over all questions if missing answers score between 0 and 1; None if no answer is missing.

    Manski's bounds: nothing is assumed about why an answer is missing. Scores are shares.
    """
    both = {each.key for each in second.applicable()}
    questions = [each for each in first.applicable() if each.key in both]
    worst, best = ([cell.filled(questions, value) for cell in (first, second)] for value in (0.0, 1.0))
    if worst == best:
        return None
    ends = ((worst[0], best[1]), (best[0], worst[1]))
    gaps = ({key: score - theirs[key] for key, score in ours.items()} for ours, theirs in ends)
    return Interval(*(first.column.mean(questions, gap) for gap in gaps))


# --- caption lines: tests and detectable differences ---------------------------------------------------------------------

CELLS = "Cells: mean {95 % by case} [95 % by question] · scored/unscored/errored/not reached"
"""The beginning of the caption line about a cell of the Markdown."""
NO_INTERVAL = (
    ". {n cases}: too few cases for an interval; {no spread}: all cases have the same mean. "
    "Two numbers behind that: Wilson's interval on the effective number of questions."
)
"""How that line goes on for rows that were run."""
ONE_BUILD = (
    "Intervals by case hold the luck of one build and one answer a history; a shift that is common to a whole run "
    "(another version of the model, another day) is not in them unless builds are replicated."
)


def detectable_lines(table: Table) -> list[str]:
    """Lines for a table's caption: the detectable difference of each primary column, and the limits of intervals by case."""
    lines = []
    for place in sorted(table.primary):
        column = table.columns[place]
        if not column.questions:  # no data
            continue
        sizes = Counter(question.cluster for question in column.questions)
        start = (
            f"Detectable difference between two rows of {column.title}, {column.metric}, at {POWER:.0%} power "
            f"({counted(len(column.questions), 'question')}, {counted(len(sizes), 'case')})"
        )
        pairs = max(1, sum(map(table.requests, table.rows)) - 1 if table.reference else 1)
        if len(sizes) < ENOUGH_CLUSTERS:
            lines.append(f"{start}: none; differences are {only_about(len(sizes))}.")
        elif place in table.tests:
            level = f"at the level of {family_of(table, place)}"
            lines.append(f"{start}: {shown(column_detects(table, place))} ({level}).")
        elif (assumed := planned(list(sizes.values()), level_of(len(table.testable)) / pairs)) is not None:
            family = f"{counted(pairs, 'pair')} on {counted(len(table.testable), 'data set')}"
            lines.append(f"{start}: {shown(assumed[0])} ({assumed[1]}; for {family}).")
    scored = [cell for row in table.rows for cell in row.cells if isinstance(cell, Cell) and cell.score_files]
    return [*lines, *([ONE_BUILD] if scored and all(len(cell.score_files) == 1 for cell in scored) else [])]


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
    return f"{counted(len(names), 'pair')}, {tested.method}{over}"


def how_tested(table: Table, place: int) -> list[str]:
    """Sentences about the test of a column's pairs, or the reason for no test."""
    column = table.columns[place]
    count = histories(column)
    if not any(where == place for _, where in table.pairs):
        return []
    if count < ENOUGH_CLUSTERS:
        return [f"Not tested: differences are {only_about(count)}."]
    if place not in table.primary:
        return ["Exploratory: not tested."]
    if place not in table.tests:
        return []
    skewed = " For strongly skewed effects of histories its error is .06 to .09 instead of .05 (simulated)."
    return [f"Adjusted p: {family_of(table, place)}.{skewed * (count <= EXACT)}"]


# --- caption lines: meaning of verdicts ---------------------------------------------------------------------------------


def verdict_lines(table: Table, places: Collection[int] | None = None) -> list[str]:
    """A line for a table whose numbers are comparable with published numbers; empty for any other table.

    Args:
        places: numbers of the columns that count; None counts all.
    """
    numbers = published_cells(table, places)
    compared = [cell for cell, number in numbers if not number.why_not and estimate_of(cell) is not None]
    if not compared:
        return []
    words = Counter(brief(cell.verdict()) for cell in compared)
    runs = [cell.runs for cell in compared if isinstance(cell, Cell)]
    builds = sorted({own.builds for own in runs if own.measured})
    errors = [f"measured from {' and '.join(map(str, builds))} builds"] if builds else []
    if not all(own.measured for own in runs):
        errors.append(f"{'else ' * bool(builds)}assumed: {FLIPS:.0%} of the answers' scores change from run to run")
    if any(isinstance(cell, Measure) and not cell.runs.variance for cell in compared):
        errors.append("unknown for costs and counts, whose printed digits alone count")
    return [
        f"Verdicts: {', '.join(f'{count} {word}' for word, count in sorted(words.items()))}. Both labs asked the same questions, so the "
        f"error is that of runs, not of histories: ours {'; '.join(errors)}; theirs as printed, else ours. equivalent: within "
        f"{MARGIN * 100:.0f} points ({COST_MARGIN:.0%} of costs) in both one-sided tests at 5 %; differs by: points (costs: %) with their "
        "95 % interval. Each is tested alone: of twenty numbers that agree, one differs by chance. "
        "No error contains what all builds share, such as the version of a model."
    ]


def published_cells(table: Table, places: Collection[int] | None = None) -> list[tuple[Cell | Measure, Published]]:
    """The cells with a published number, and the number; `places` as for `verdict_lines`."""
    cells = (cell for row in table.rows for place, cell in enumerate(row.cells) if places is None or place in places)
    return [(cell, cell.published) for cell in cells if not isinstance(cell, str) and cell.published is not None]


# --- scores that are corrected for a judge's errors ----------------------------------------------------------------------

CORRECTED = ["corrected", "corrected_low", "corrected_high", "corrected_kinds_low", "corrected_kinds_high"]
"""Further columns in the CSV of a table with corrected scores."""

CONDITION = (
    "Corrected scores are Rogan and Gladen's, and hold if the answers err like the probes: the interval carries the uncertainty of both "
    "shares under that assumption, the range by kind of probe what it is worth. It must hold for each row: where two rows err differently, "
    "the correction enlarges the false difference between them, and intervals of equal rows may lie apart. "
    "Refusals of questions with an answer are counted as wrong without correction. "
    "A random sample of the run's answers graded by a person needs no such assumption (`judge_card --ratings`)."
)


def corrected_text(fixed: Corrected | str) -> str:
    """A corrected score with its interval, or a mark that there is none (`correction_lines` says why)."""
    if isinstance(fixed, str):
        return f"not corrected: {MISFIT}" if fixed.endswith(MISFIT) else "not corrected"
    kinds = f"{fixed.by_kind.low:.3f}–{fixed.by_kind.high:.3f}"
    return f"corrected {shown_share(fixed)} if answers err like the probes; {kinds} by kind of probe"


def shown_share(share: Share | Corrected) -> str:
    """A share with its interval."""
    return f"{share.mean:.3f} [{share.interval.low:.3f}, {share.interval.high:.3f}]"


def correction_lines(table: Table) -> list[str]:
    """For each judge: the correction of its scores, or why there is none. Empty unless `judge.corrected=true`."""
    cards: dict[str, list[str]] = {}
    reasons: dict[str, list[str]] = {}
    for place, column in enumerate(table.columns):
        cells = [(row.title, row.cells[place]) for row in table.rows]
        judged = [(title, cell) for title, cell in cells if isinstance(cell, Cell) and cell.correction is not None]
        without = [(title, why) for title, cell in judged if isinstance(why := cell.corrected(), str)]
        for why in dict.fromkeys(why for _, why in without):
            rows = [title for title, each in without if each == why]
            some = "" if len(rows) == len(judged) else f": {', '.join(rows)}"
            reasons.setdefault(why, []).append(f"{column.heading}{some}")
        card = next((cell.correction.card for _, cell in judged if cell.correction is not None), None)
        if card is not None and card.rejected is not None and card.accepted is not None:
            errors = f"rejects {shown_share(card.rejected)} of right answers ({counted(card.rejected.n, 'probe')})"
            errors += f", accepts {shown_share(card.accepted)} of wrong ones ({card.accepted.n})"
            cards.setdefault(errors, []).append(column.heading)
    lines = [f"Judge card: {', '.join(names)}: {errors}. {CONDITION}" for errors, names in cards.items()]
    return [*lines, *(f"Not corrected ({'; '.join(names)}): {why}." for why, names in reasons.items())]
