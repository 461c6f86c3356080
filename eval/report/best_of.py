"""The best of several memories or settings: which candidate is chosen for each case, and the cell that the choice makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean

import numpy as np

from eval.report.cell import Cell
from eval.report.scores import Draws, Scores


@dataclass(frozen=True)
class BestOf(Cell):
    """A cell whose scores come, case by case, from the candidate that was chosen for the case."""

    chosen: Mapping[str, Cell] = field(default_factory=dict)
    """The chosen candidate's cell by cluster."""
    rechosen: Mapping[str, Mapping[str, Cell]] = field(default_factory=dict)
    """By cluster that is left out: the cells that would be chosen without it, by remaining cluster."""
    held_out: bool = False
    """Whether each case's candidate was chosen on the other cases. A row chosen on its own questions is biased upwards: it gets no star."""

    @cached_property
    def draws(self) -> Draws:
        """Every score of each question, from the chosen candidates."""
        return {
            question.key: self.chosen[question.cluster].draws[question.key]
            for question in self.column.questions
            if question.key in self.chosen[question.cluster].draws
        }

    @property
    def chooses(self) -> bool:
        return bool(self.rechosen)

    def scores_without(self, cluster: str) -> Scores:
        """The scores of all cases but one, from the candidates that would be chosen without it."""
        cells = self.rechosen.get(cluster, {})
        return {
            question.key: score
            for question in self.column.questions
            if question.cluster != cluster
            and (score := cells.get(question.cluster, self).scores.get(question.key)) is not None
        }


def choose(cells: Mapping[str, Cell], *, held_out: bool) -> dict[str, str]:
    """The name of the candidate with the highest mean, by cluster; of equal means the first.

    Args:
        cells: the candidates' cells in the column that decides, by name.
        held_out: True chooses for each cluster on all other clusters. False chooses once on all questions, those that are reported
            included, as papers do.

    Raises:
        ValueError: `held_out` with a single cluster: no question is left to choose on.
    """
    questions = next(iter(cells.values())).column.questions
    clusters = list(dict.fromkeys(question.cluster for question in questions))
    if held_out and len(clusters) < 2:
        raise ValueError("one history only: nothing to choose on")
    chosen = {}
    for cluster in clusters:
        keys = [question.key for question in questions if not held_out or question.cluster != cluster]
        means = {
            name: fmean([cell.scores[key] for key in keys if key in cell.scores] or [-1.0])
            for name, cell in cells.items()
        }
        chosen[cluster] = max(means, key=lambda name: means[name])
    return chosen


def choose_again(cells: Mapping[str, Cell], *, held_out: bool) -> dict[str, dict[str, str]]:
    """`choose` repeated without each cluster in turn, by the cluster left out: it shows how much a best row owes to the choice."""
    questions = next(iter(cells.values())).column.questions
    clusters = list(dict.fromkeys(question.cluster for question in questions))
    place = {name: number for number, name in enumerate(clusters)}
    sums, counts = np.zeros((len(clusters), len(cells))), np.zeros((len(clusters), len(cells)))
    for number, cell in enumerate(cells.values()):
        for question in questions:
            if (score := cell.scores.get(question.key)) is not None:
                sums[place[question.cluster], number] += score
                counts[place[question.cluster], number] += 1
    names = list(cells)
    choices = {}
    for out, name in enumerate(clusters):
        left, size = sums.sum(axis=0) - sums[out], counts.sum(axis=0) - counts[out]
        total = left - sums if held_out else np.broadcast_to(left, sums.shape)
        known = size - counts if held_out else np.broadcast_to(size, sums.shape)
        means = np.divide(total, known, out=np.full(sums.shape, -1.0), where=known > 0)
        best = means.round(12).argmax(axis=1)  # rounded, so that of equal means the first wins
        choices[name] = {other: names[best[place[other]]] for other in clusters if other != name}
    return choices


def composed(
    cells: Mapping[str, Cell],
    chosen: Mapping[str, str],
    again: Mapping[str, Mapping[str, str]] | None = None,
    *,
    held_out: bool = False,
) -> BestOf:
    """The cell of a choice: for each cluster the scores and outcomes of the chosen candidate.

    Args:
        cells: the candidates' cells in one column, by name.
        chosen: name of the chosen candidate by cluster (`choose`).
        again: what would be chosen without each cluster (`choose_again`). The interval by case then covers the choice's own luck, too.
        held_out: whether the candidates were chosen on the other cases.
    """
    first = next(iter(cells.values()))
    column = first.column
    outcomes = {
        question.key: cells[chosen[question.cluster]].outcomes[question.key]
        for question in column.questions
        if question.key in cells[chosen[question.cluster]].outcomes
    }
    rechosen = {
        out: {cluster: cells[name] for cluster, name in others.items()} for out, others in (again or {}).items()
    }
    picked = {one: cells[name] for one, name in chosen.items()}
    return BestOf(
        column, outcomes, (), correction=first.correction, chosen=picked, rechosen=rechosen, held_out=held_out
    )
