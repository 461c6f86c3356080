"""Intervals of a mean and of a paired difference when questions are independent, and the scales on which intervals are computed.

- 0/1 scores: Wilson's. Other scores in [0, 1]: Student's t on the logit scale. Groups that weigh the same (personas, categories): the same
  with each group's variance drawn towards the pooled one, as a few questions say little about the variance of their group.
- Paired differences of scores: Agresti and Min (2005), "Simple improved confidence intervals for comparing matched proportions",
  Statistics in Medicine 24: half a question is added to each of the four outcomes.
- Few histories, or histories that are alike: Wilson's with Student's t on the effective number of questions.

`docs/statistics.md` has the simulated coverage of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95
"""Coverage of an interval."""
NORMAL = 1.959963984540054
"""The 97.5 % quantile of the normal distribution."""
ALIKE = 0.02
"""Assumed intraclass correlation within one history, where the data cannot say."""
BORROWED = 2.0
"""Degrees of freedom that the variance of a group borrows from the pooled variance."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A 95 % interval."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling error of a mean."""

    error: float
    """Standard error, in the unit of the mean."""
    freedom: float
    """Degrees of freedom of that error."""


def by_question(values: Sequence[float] | np.ndarray, level: float = LEVEL) -> Interval | None:
    """The interval of a mean of independent questions: Wilson's for 0/1 values (as SegTreeMem prints), else Student's t.

    Scores in [0, 1] get it on the logit scale, and Wilson's where they are all alike. None for fewer than two values, and where other
    values are all alike.
    """
    array = np.asarray(values, dtype=float)
    if array.size < 2:
        return None
    if np.isin(array, (0.0, 1.0)).all():
        return wilson(float(array.sum()), array.size, level)
    return by_question_in_groups(array, np.zeros(array.size, dtype=int), level)


def wilson(successes: float, n: float, level: float = LEVEL) -> Interval:
    """Wilson's score interval of a proportion; both counts may be fractions, as effective numbers are.

    Raises:
        ValueError: no trials, or more successes than trials.
    """
    if not 0 <= successes <= n or n == 0:
        raise ValueError(f"{successes} successes in {n} trials")
    return _wilson(successes / n, n, _normal_point(level))


def _wilson(share: float, n: float, z: float) -> Interval:
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5
    low = 0.0 if share == 0 else max(0.0, centre - half)  # exactly 0, without a rounding error
    return Interval(low, 1.0 if share == 1 else min(1.0, centre + half))


def t_point(freedom: float, probability: float = 0.975) -> float:
    """The quantile of Student's t; `freedom` may be a fraction."""
    from scipy.special import stdtrit  # imported here: it takes half a second, which a start without intervals saves

    return float(stdtrit(freedom, probability))


def _normal_point(level: float) -> float:
    if level == LEVEL:  # without SciPy
        return NORMAL
    from scipy.special import ndtri

    return float(ndtri((1 + level) / 2))


def around(mean: float, sampling: Sampling, level: float = LEVEL) -> Interval:
    """Student's interval."""
    half = t_point(sampling.freedom, (1 + level) / 2) * sampling.error
    return Interval(mean - half, mean + half)


def are_scores(array: np.ndarray) -> bool:
    """Whether all values lie in [0, 1]."""
    return bool(array.min() >= 0.0 and array.max() <= 1.0)


def mean_interval(mean: float, array: np.ndarray, sampling: Sampling | None, level: float = LEVEL) -> Interval | None:
    """The interval on the logit scale for scores, on their own scale for other quantities."""
    if sampling is None:
        return None
    if not are_scores(array) or not 0.0 < mean < 1.0:
        return around(mean, sampling, level)
    half = t_point(sampling.freedom, (1 + level) / 2) * sampling.error / (mean * (1 - mean))
    odds = mean / (1 - mean)
    with np.errstate(over="ignore"):
        low, high = odds * np.exp(-half), odds * np.exp(half)
    return Interval(float(low / (1 + low)), float(1 / (1 + 1 / high)) if high else 0.0)


def shares(groups: np.ndarray) -> np.ndarray:
    """Weight of each value in the mean of group means; the weights add up to 1."""
    counts = np.bincount(groups)
    return np.asarray(1.0 / (counts[groups] * counts.size))


def on_effective_number(
    mean: float, weights: np.ndarray, clusters: np.ndarray, error: float | None, level: float = LEVEL
) -> Interval:
    """Wilson's interval of a score with Student's t on the effective number of questions, for two histories or more.

    The design effect is the larger of the observed one and that of an intraclass correlation of `ALIKE`: few histories may be alike by
    luck. Korn and Graubard (1998), Survey Methodology 24, use such numbers for proportions in surveys.

    Args:
        weights: what each question weighs in the mean; they add up to 1.
        clusters: history of each question, numbers from 0.
        error: standard error of the mean from the histories' spread; None where there is no spread.
    """
    by_cluster = np.bincount(clusters, weights)
    concentration = float((by_cluster**2).sum())
    share, assumed = min(1.0, max(0.0, mean)), (1 - ALIKE) * float((weights**2).sum()) + ALIKE * concentration
    observed = error**2 / (share * (1 - share)) if error is not None and 0.0 < share < 1.0 else 0.0
    return _wilson(share, 1 / max(assumed, observed), t_point(max(1.0, 1 / concentration - 1), (1 + level) / 2))


def independent(array: np.ndarray, groups: np.ndarray) -> Sampling | None:
    """Sampling error of the unweighted mean of group means, questions being independent; None for fewer than two values.

    The degrees of freedom are Satterthwaite's. With one group this is the standard error of a mean.
    """
    if array.size < 2:
        return None
    counts = np.bincount(groups).astype(float)
    means = np.bincount(groups, array) / counts
    squares = np.bincount(groups, (array - means[groups]) ** 2)
    inside = array.size - counts.size
    pooled = float(squares.sum()) / inside if inside else float(array.var(ddof=1))
    freedom = counts - 1 + BORROWED
    terms = (squares + BORROWED * pooled) / freedom / counts / counts.size**2
    error = float(terms.sum()) ** 0.5
    if error < 1e-9:
        return None
    return Sampling(error, float(min(array.size - 1, terms.sum() ** 2 / (terms**2 / freedom).sum())))


def by_question_in_groups(array: np.ndarray, groups: np.ndarray, level: float = LEVEL) -> Interval | None:
    """The interval by question of the unweighted mean of group means."""
    weights = shares(groups)
    mean, sampling = float((weights * array).sum()), independent(array, groups)
    if array.size < 2 or (sampling is not None and (not are_scores(array) or 0.0 < mean < 1.0)):
        return mean_interval(mean, array, sampling, level)
    if not are_scores(array):
        return None
    return _wilson(min(1.0, max(0.0, mean)), 1 / float((weights**2).sum()), _normal_point(level))


def matched(gap: np.ndarray, groups: np.ndarray) -> tuple[float, Sampling | None]:
    """Centre and error of a paired difference of scores, after Agresti and Min.

    Two differences of 0, half a gain and half a loss are added. The size of gain and loss is that of the largest difference, which is 1
    for 0/1 scores, and where no score differs. In that case, the interval has the width of Wilson's for no success: with 97 questions and
    more the two halves alone are too narrow for a difference that showed in none of them.
    """
    if gap.size < 2:
        return float(gap.mean()), None
    weights, sampling = shares(groups), independent(gap, groups)
    n, mean = 1 / float((weights**2).sum()), float((weights * gap).sum())
    variance = 0.0 if sampling is None else sampling.error**2 * n
    largest = float(np.abs(gap).max()) or 1.0
    squares = (n - 1) * variance + n * mean**2 + largest**2
    error = max(0.0, squares - (n * mean) ** 2 / (n + 2)) ** 0.5 / (n + 2)
    freedom = gap.size - 1 if sampling is None else sampling.freedom
    if not gap.any():
        error = max(error, wilson(0.0, n).high / t_point(freedom))
    return n * mean / (n + 2), Sampling(error, freedom)
