"""The best of several memories or settings: the choice of a candidate for each case, and the cell that results from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from eval.report.cell import Cell, Draws, Scores


@dataclass(frozen=True)
class BestOf(Cell):
    """A cell whose scores come, for each case, from the candidate that was chosen for the case."""

    chosen: Mapping[str, Cell] = field(default_factory=dict)
    """The chosen candidate's cell by cluster."""
    rechosen: Mapping[str, Mapping[str, Cell]] = field(default_factory=dict)
    """By left-out cluster: the cells that would be chosen without it, by remaining cluster."""
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
    """Choose the candidate with the highest mean, by cluster; among equal means the first.

    Args:
        cells: the candidates' cells in the deciding column, by name.
        held_out: True chooses for each cluster on all other clusters. False chooses once on all questions, those that are reported
            included, as papers do.

    Raises:
        ValueError: `held_out` with a single cluster: no question is left to choose on.
    """
    sums, counts, clusters = _by_cluster(cells)
    if held_out and len(clusters) < 2:
        raise ValueError("one history only: nothing to choose on")
    total, size = sums.sum(axis=0), counts.sum(axis=0)
    best = _best(total - sums, size - counts) if held_out else _best(total, size)
    return {cluster: list(cells)[best[place if held_out else 0]] for place, cluster in enumerate(clusters)}


def choose_again(cells: Mapping[str, Cell], *, held_out: bool) -> dict[str, dict[str, str]]:
    """Repeat `choose` without each cluster in turn, by left-out cluster: this shows how much a best row owes to the choice."""
    sums, counts, clusters = _by_cluster(cells)
    names, choices = list(cells), {}
    for out, name in enumerate(clusters):
        left, size = sums.sum(axis=0) - sums[out], counts.sum(axis=0) - counts[out]
        best = _best(left - sums, size - counts) if held_out else _best(left, size)
        choices[name] = {
            other: names[best[place if held_out else 0]] for place, other in enumerate(clusters) if other != name
        }
    return choices


def _by_cluster(cells: Mapping[str, Cell]) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Sums and numbers of the scores, float64 [clusters, groups that weigh the same, candidates], and the clusters' names."""
    column = next(iter(cells.values())).column
    clusters = {name: place for place, name in enumerate(dict.fromkeys(each.cluster for each in column.questions))}
    groups = column.groups(column.questions)
    numbers = {name: place for place, name in enumerate(dict.fromkeys(groups))}
    sums = np.zeros((len(clusters), len(numbers), len(cells)))
    counts = np.zeros_like(sums)
    for number, cell in enumerate(cells.values()):
        for question, group in zip(column.questions, groups, strict=True):
            if (score := cell.scores.get(question.key)) is not None:
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
    """Build the cell of a choice: for each cluster the scores and outcomes of the chosen candidate.

    Args:
        cells: the candidates' cells in one column, by name.
        chosen: name of the chosen candidate by cluster (`choose`).
        again: the choices without each cluster (`choose_again`). The interval by case then includes the uncertainty of the choice.
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
