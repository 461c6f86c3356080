"""Where two memories differ: wins and losses by category, and the questions that tell most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from eval.report.cell import ALL, ANSWERABLE, Asked, Cell, categories


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
