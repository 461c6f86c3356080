"""Agreement of graders beyond chance: Cohen's kappa of two, Krippendorff's alpha of any number, with intervals.

Verdicts are right or wrong (nominal). Krippendorff, "Content Analysis" (2004), chapter 11: answers with a single grader are left out.
The interval is a jackknife over histories (over questions below five histories) with Student's t on Fisher's z, which keeps it below 1; its
degrees of freedom are Kish's effective number of histories less one, as of a mean.
Where the histories do not differ, as under perfect agreement, it is Wilson's interval of the disagreement on the effective number of
answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eval.statistics.stats import ENOUGH_CLUSTERS, Grouping, Interval, numbered, on_effective_number, t_point

RIGHT = 0.5
"""Lowest score of a right answer, wherever answers are sorted into right and wrong."""

Verdicts = Mapping[Any, bool]
"""Whether a grader calls an answer right, by question."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """The agreement of graders."""

    n: int
    """Number of answers that at least two graders have graded."""
    agreeing: float
    """Share of the pairs of verdicts on one answer that are the same."""
    kappa: float | None
    """Cohen's; None for more than two graders, or where chance alone explains all agreement."""
    kappa_interval: Interval | None
    alpha: float | None
    """Krippendorff's; None where all verdicts are the same."""
    alpha_interval: Interval | None


def agreement(graders: Sequence[Verdicts], clusters: Mapping[Any, str] | None = None) -> Agreement | None:
    """Compute the agreement of two or more graders; None without an answer that two of them graded.

    Args:
        clusters: history of each question; None leaves out one question at a time.
    """
    keys = [
        key
        for key in sorted({key for grader in graders for key in grader}, key=repr)
        if sum(key in grader for grader in graders) > 1
    ]
    if not keys:
        return None
    homes = np.arange(len(keys))
    if clusters is not None:
        histories = numbered([clusters[key] for key in keys])
        homes = histories if histories.max() + 1 >= ENOUGH_CLUSTERS else homes
    verdicts = [[grader[key] for grader in graders if key in grader] for key in keys]
    right = np.array(list(map(sum, verdicts)), dtype=float)
    size = np.array(list(map(len, verdicts)), dtype=float)
    wrong = size - right
    # Krippendorff's coincidences of each answer: ordered pairs of verdicts, divided by their number less one, [n, 2, 2].
    counts = np.array([[wrong * (wrong - 1), wrong * right], [wrong * right, right * (right - 1)]])
    pairs = np.ascontiguousarray(np.moveaxis(counts / (size - 1), -1, 0))
    both: tuple[float | None, Interval | None] = None, None
    if len(graders) == 2:
        tables = np.zeros((len(keys), 2, 2))
        first, second = ([int(grader[key]) for key in keys] for grader in graders)
        tables[np.arange(len(keys)), first, second] = 1.0
        both = _with_interval(tables, homes, _kappa)
    agreeing = float((pairs[:, 0, 0] + pairs[:, 1, 1]).sum() / pairs.sum())
    return Agreement(len(keys), agreeing, *both, *_with_interval(pairs, homes, _alpha))


def kappa(first: Verdicts, second: Verdicts) -> float | None:
    """Cohen's kappa over the answers that both graded; None without common verdicts, or where chance alone explains all agreement."""
    both = agreement([first, second])
    return None if both is None else both.kappa


Disagreement = tuple[np.ndarray, np.ndarray]
"""Observed share of disagreement, and the share by chance, of each summed table; agreement beyond chance is 1 - observed / by chance."""


def _with_interval(
    tables: np.ndarray, homes: np.ndarray, disagreement: Callable[[np.ndarray], Disagreement]
) -> tuple[float | None, Interval | None]:
    """The agreement beyond chance of tables [answers, 2, 2] with its interval; None where it is not defined."""
    groups = np.zeros((int(homes.max()) + 1, 2, 2))
    np.add.at(groups, homes, tables)
    total = groups.sum(axis=0)
    (observed,), (chance,) = disagreement(total[None])
    if chance < 1e-12:
        return None, None
    value = float(1.0 - observed / chance)
    if len(groups) < 2:
        return value, None
    left, by_chance = disagreement(total - groups)
    if (by_chance < 1e-12).any():  # all disagreement is in one history
        return value, None
    gaps = (1.0 - left / by_chance) - value
    error = float(((len(groups) - 1) / len(groups) * (gaps**2).sum()) ** 0.5)
    grouping = Grouping.of(homes)
    if error < 1e-9 or abs(value) >= 1.0:
        share = on_effective_number(float(observed), grouping, None)
        return value, Interval(max(-1.0, 1.0 - share.high / float(chance)), 1.0 - share.low / float(chance))
    half = t_point(grouping.freedom) * error / (1.0 - value**2)
    return value, Interval(float(np.tanh(np.arctanh(value) - half)), float(np.tanh(np.arctanh(value) + half)))


def _kappa(tables: np.ndarray) -> Disagreement:
    total = tables.sum(axis=(1, 2))
    rows, columns = tables.sum(axis=2) / total[:, None], tables.sum(axis=1) / total[:, None]
    return (tables[:, 0, 1] + tables[:, 1, 0]) / total, 1.0 - (rows * columns).sum(axis=1)


def _alpha(tables: np.ndarray) -> Disagreement:
    total, values = tables.sum(axis=(1, 2)), tables.sum(axis=2)
    expected = 2.0 * values[:, 0] * values[:, 1] / (total * (total - 1.0))
    return 2.0 * tables[:, 0, 1] / total, expected
