"""Where two memories differ: by history, with missing answers, wins and losses by category, and the questions that tell most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from eval.report.cell import ALL, ANSWERABLE, Cell, categories
from eval.report.scores import Asked
from eval.statistics.families import Gaps
from eval.statistics.stats import Interval


def case_gaps(first: Cell, second: Cell, histories: Sequence[str]) -> Gaps:
    """The paired differences of two cells of one column, added up by history, over the questions that both have a score for.

    Args:
        histories: names of all histories of the column.
    """
    both = [each for each in first.column.questions if each.key in first.scores and each.key in second.scores]
    gaps = [first.scores[each.key] - second.scores[each.key] for each in both]
    return Gaps.of(gaps, [each.cluster for each in both], first.column.groups(both), histories)


def gap_bounds(first: Cell, second: Cell) -> Interval | None:
    """The least and the largest difference over all questions if missing answers score between 0 and 1; None if none is missing.

    Manski's bounds: nothing is assumed about why an answer is missing. Scores are shares.
    """
    column, own, other = first.column, first.scores, second.scores
    questions = [each for each in first.applicable() if each.key not in second.inapplicable]
    if all(each.key in own and each.key in other for each in questions):
        return None
    keys = [question.key for question in questions]
    least = {key: own.get(key, 0.0) - other.get(key, 1.0) for key in keys}
    most = {key: own.get(key, 1.0) - other.get(key, 0.0) for key in keys}
    return Interval(column.mean(questions, least), column.mean(questions, most))


@dataclass(frozen=True, slots=True)
class Tally:
    """How often a memory scored better than another one, over the questions that both have a score for."""

    category: str
    wins: int
    losses: int
    ties: int


def tallies(first: Cell, second: Cell) -> list[Tally]:
    """Wins and losses of `first` against `second`: over all questions, then by category. The cells have the same column."""
    shared = first.scores.keys() & second.scores.keys()
    counted = []
    for category in categories(first.column):
        gaps = [
            first.scores[question.key] - second.scores[question.key]
            for question in first.column.questions
            if question.key in shared and _belongs(question, category)
        ]
        wins, losses = sum(gap > 0 for gap in gaps), sum(gap < 0 for gap in gaps)
        counted.append(Tally(category, wins, losses, len(gaps) - wins - losses))
    return counted


def _belongs(question: Asked, category: str) -> bool:
    if category in (ALL, ANSWERABLE):
        return category == ALL or question.answerable
    return question.belongs_to(category)


@dataclass(frozen=True, slots=True)
class Telling:
    """A question on which memories differ."""

    question: Asked
    scores: tuple[float | None, ...]
    """Of each memory; None where there is no score."""
    gap: float
    """The largest distance between the first memory and another one."""


def telling(cells: Sequence[Cell], count: int) -> list[Telling]:
    """The questions on which the first memory is farthest from another one, at most `count`.

    Of equal gaps the one whose mean over all other memories is larger comes first, then the one that stands first in the data. Questions on
    which nobody differs are left out.
    """
    first = cells[0]
    ranked: list[tuple[float, float, Telling]] = []
    for question in first.column.questions:
        own = first.scores.get(question.key)
        scores = tuple(cell.scores.get(question.key) for cell in cells)
        if own is None:
            continue
        gaps = [abs(own - score) for score in scores[1:] if score is not None]
        if gaps and max(gaps) > 0:
            ranked.append((max(gaps), fmean(gaps), Telling(question, scores, max(gaps))))
    ranked.sort(key=lambda entry: (-entry[0], -entry[1]))  # stable: equal ones keep the order of the data
    return [entry for _, _, entry in ranked[:count]]
