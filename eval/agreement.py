"""How far graders agree beyond chance: Cohen's kappa of two, Krippendorff's alpha of any number, with intervals.

Verdicts are right or wrong (nominal). Krippendorff, "Content Analysis" (2004), chapter 11: values that only one grader gave are left out.
The interval is a percentile bootstrap over questions, or over whole histories from five on, because both statistics are ratios of sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eval.stats import ENOUGH_CLUSTERS, Interval

RIGHT = 0.5
"""A score from here on calls an answer right, wherever answers are sorted into right and wrong."""
DRAWS = 2000

Verdicts = Mapping[Any, bool]
"""Whether a grader calls an answer right, by question."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """The agreement of graders."""

    n: int
    """Answers that two graders at least have graded."""
    agreeing: float
    """Share of the pairs of verdicts on one answer that are the same."""
    kappa: float | None
    """Cohen's; None for more than two graders, or where chance alone explains all agreement."""
    kappa_interval: Interval | None
    alpha: float | None
    """Krippendorff's; None where all verdicts are the same."""
    alpha_interval: Interval | None


def agreement(
    graders: Sequence[Verdicts], clusters: Mapping[Any, str] | None = None, seed: int = 0
) -> Agreement | None:
    """The agreement of two or more graders; None without an answer that two of them graded.

    Args:
        clusters: history of each question; None resamples questions.
    """
    keys = [
        key
        for key in sorted({key for grader in graders for key in grader}, key=repr)
        if sum(key in grader for grader in graders) > 1
    ]
    if not keys:
        return None
    homes = None if clusters is None else [clusters[key] for key in keys]
    pairs = _coincidences([[grader[key] for grader in graders if key in grader] for key in keys])
    both: tuple[float | None, Interval | None] = None, None
    if len(graders) == 2:
        tables = np.zeros((len(keys), 2, 2))
        first, second = ([int(grader[key]) for key in keys] for grader in graders)
        tables[np.arange(len(keys)), first, second] = 1.0
        both = _with_interval(_grouped(tables, homes), _kappa, seed)
    agreeing = float((pairs[:, 0, 0] + pairs[:, 1, 1]).sum() / pairs.sum())
    return Agreement(len(keys), agreeing, *both, *_with_interval(_grouped(pairs, homes), _alpha, seed))


def kappa(first: Verdicts, second: Verdicts) -> float | None:
    """Cohen's kappa over what both graded; None without common verdicts, or where chance alone explains all agreement."""
    both = agreement([first, second])
    return None if both is None else both.kappa


def alpha(graders: Sequence[Verdicts]) -> float | None:
    """Krippendorff's alpha; None without an answer that two graded, or where all verdicts are the same."""
    both = agreement(graders)
    return None if both is None else both.alpha


def _coincidences(verdicts: Sequence[Sequence[bool]]) -> np.ndarray:
    """Krippendorff's coincidences of each answer: ordered pairs of verdicts, divided by their number less one, float64 [n, 2, 2]."""
    right = np.array([sum(own) for own in verdicts], dtype=float)
    size = np.array([len(own) for own in verdicts], dtype=float)
    wrong = size - right
    pairs = np.array([[wrong * (wrong - 1), wrong * right], [wrong * right, right * (right - 1)]])
    return np.ascontiguousarray(np.moveaxis(pairs / (size - 1), -1, 0))


def _grouped(tables: np.ndarray, clusters: Sequence[str] | None) -> np.ndarray:
    """The tables summed by history where there are enough histories, else as they are, float64 [groups, 2, 2]."""
    names, codes = np.unique(np.asarray(clusters if clusters is not None else []), return_inverse=True)
    if len(names) < ENOUGH_CLUSTERS:
        return tables
    sums = np.zeros((len(names), 2, 2))
    np.add.at(sums, codes, tables)
    return sums


def _with_interval(
    groups: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray], seed: int
) -> tuple[float | None, Interval | None]:
    """A statistic of summed tables with its bootstrap interval; None where it is not defined."""
    value = float(statistic(groups.sum(axis=0)[None])[0])
    if np.isnan(value):
        return None, None
    # Most tables occur many times: drawing from the distinct ones is the same, and small.
    tables, counts = np.unique(groups.reshape(len(groups), 4), axis=0, return_counts=True)
    drawn = np.random.default_rng(seed).multinomial(len(groups), counts / len(groups), DRAWS)
    draws = statistic((drawn @ tables).reshape(DRAWS, 2, 2))
    draws = draws[~np.isnan(draws)]
    if len(groups) < 2 or not draws.size:
        return value, None
    low, high = np.quantile(draws, (0.025, 0.975))
    return value, Interval(float(low), float(high))


def _kappa(tables: np.ndarray) -> np.ndarray:
    total = tables.sum(axis=(1, 2))
    same = (tables[:, 0, 0] + tables[:, 1, 1]) / total
    rows, columns = tables.sum(axis=2) / total[:, None], tables.sum(axis=1) / total[:, None]
    by_chance = (rows * columns).sum(axis=1)
    ratio: np.ndarray = np.full(len(tables), np.nan)
    np.divide(same - by_chance, 1.0 - by_chance, out=ratio, where=by_chance < 1.0 - 1e-12)
    return ratio


def _alpha(tables: np.ndarray) -> np.ndarray:
    total, values = tables.sum(axis=(1, 2)), tables.sum(axis=2)
    differing = 2.0 * tables[:, 0, 1]
    expected = 2.0 * values[:, 0] * values[:, 1] / (total - 1.0)
    ratio: np.ndarray = np.full(len(tables), np.nan)
    np.divide(differing, expected, out=ratio, where=expected > 0.0)
    return 1.0 - ratio
