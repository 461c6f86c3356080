"""Intervals of a mean and of a paired difference for independent questions, and the scales on which intervals are computed.

- 0/1 scores: Wilson's. Other scores in [0, 1]: Student's t on the logit scale. Groups that weigh the same (personas, categories): the same,
  with each group's variance shrunk towards the pooled variance, because a few questions say little about the variance of their group.
- Paired differences of scores: Agresti and Min (2005), "Simple improved confidence intervals for comparing matched proportions",
  Statistics in Medicine 24: half a question is added to each of the four outcomes.
- Few histories, or histories with similar means: Wilson's with Student's t on the effective number of questions.

`docs/statistics.md` has the simulated coverage of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

LEVEL = 0.95
"""Coverage of an interval."""
NORMAL = 1.959963984540054
"""The 97.5 % quantile of the normal distribution."""
ALIKE = 0.02
"""Assumed intraclass correlation within one history, where the data cannot show it."""
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

    @classmethod
    def of(cls, errors: np.ndarray, freedoms: np.ndarray) -> Sampling | None:
        """Return the sampling error of a single row; None where the error is NaN."""
        return None if np.isnan(errors[0]) else cls(float(errors[0]), float(freedoms[0]))


def effective_number(sizes: np.ndarray) -> float:
    """Kish's effective number of histories of these sizes; their number where all are equal."""
    return float(sizes.sum() ** 2 / (sizes**2).sum())


@dataclass(frozen=True, eq=False)
class Grouping:
    """The histories and groups of n questions, and values that depend on them alone."""

    clusters: np.ndarray
    """History of each question: int [n], numbers from 0 without gaps."""
    groups: np.ndarray
    """Group of each question, likewise; questions of a group weigh the same in the mean of group means."""

    @classmethod
    def alone(cls, n: int) -> Grouping:
        """One history and one group of n questions."""
        return cls(np.zeros(n, dtype=int), np.zeros(n, dtype=int))

    @cached_property
    def counts(self) -> np.ndarray:
        """Number of questions of each group: float64."""
        return np.bincount(self.groups).astype(float)

    @cached_property
    def shares(self) -> np.ndarray:
        """Weight of each question in the mean of group means: float64 [n], their sum is 1."""
        return np.asarray(1.0 / (self.counts[self.groups] * self.counts.size))

    @cached_property
    def weights(self) -> np.ndarray:
        """The same weights with mean 1, exactly 1 for a single group."""
        return np.asarray(self.groups.size / (self.counts[self.groups] * self.counts.size))

    @cached_property
    def effective(self) -> float:
        """Kish's effective number of questions."""
        return 1 / float((self.shares**2).sum())

    @cached_property
    def histories(self) -> int:
        return int(self.clusters.max()) + 1

    @cached_property
    def held(self) -> np.ndarray:
        """Number of questions of each history in each group: float64 [histories, groups]."""
        return np.asarray(self.sums(np.ones((1, self.clusters.size)))[0])

    def sums(self, rows: np.ndarray) -> np.ndarray:
        """Sum each row's values by history and group: float64 [m, n] to [m, histories, groups]."""
        cells = self.clusters * self.counts.size + self.groups
        return _sums(rows, cells, self.histories * self.counts.size).reshape(len(rows), self.histories, -1)

    @cached_property
    def freedom(self) -> float:
        """Kish's effective number of histories less one, and at least one."""
        weights = (self.held / self.counts).mean(axis=1)
        return max(1.0, 1 / float((weights**2).sum()) - 1)


def by_question(values: Sequence[float] | np.ndarray, level: float = LEVEL) -> Interval | None:
    """The interval of a mean of independent questions: Wilson's for 0/1 values (as SegTreeMem prints), else Student's t.

    Scores in [0, 1] get it on the logit scale, and Wilson's where all are equal. None for fewer than two values, and where all other
    values are equal.
    """
    array = np.asarray(values, dtype=float)
    if array.size < 2:
        return None
    if np.isin(array, (0.0, 1.0)).all():
        return wilson(float(array.sum()), array.size, level)
    return by_question_in_groups(array, Grouping.alone(array.size), level)


def wilson(successes: float, n: float, level: float = LEVEL) -> Interval:
    """Wilson's score interval of a proportion; both counts may be fractions, as effective numbers are.

    Raises:
        ValueError: no trials, or more successes than trials.
    """
    if not 0 <= successes <= n or n == 0:
        raise ValueError(f"{successes} successes in {n} trials")
    return wilson_of_share(successes / n, n, _normal_point(level))


def wilson_of_share(share: float, n: float, z: float) -> Interval:
    """Wilson's score interval of a share of `n` trials, with a quantile `z` of its own."""
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5
    low = 0.0 if share == 0 else max(0.0, centre - half)  # exactly 0, without a rounding error
    return Interval(low, 1.0 if share == 1 else min(1.0, centre + half))


def t_point(freedom: float, probability: float = 0.975) -> float:
    """The quantile of Student's t; `freedom` may be a fraction."""
    return float(t_points(np.asarray(freedom), probability))


def t_points(freedoms: np.ndarray, probability: float = 0.975) -> np.ndarray:
    """`t_point` of each value."""
    from scipy.special import stdtrit  # imported here: it takes half a second, which a start without intervals saves

    return np.asarray(stdtrit(freedoms, probability))


def _normal_point(level: float) -> float:
    if level == LEVEL:  # without SciPy
        return NORMAL
    from scipy.special import ndtri

    return float(ndtri((1 + level) / 2))


def around(mean: float, sampling: Sampling, level: float = LEVEL) -> Interval:
    """Compute Student's interval."""
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


def on_effective_number(mean: float, grouping: Grouping, error: float | None, level: float = LEVEL) -> Interval:
    """Wilson's interval of a score with Student's t on the effective number of questions, for two histories or more.

    The design effect is the larger of the observed one and that of an intraclass correlation of `ALIKE`: few histories may have similar
    means by chance. Korn and Graubard (1998), Survey Methodology 24, use such numbers for proportions in surveys.

    Args:
        error: standard error of the mean from the histories' spread; None where there is no spread.
    """
    by_cluster = np.bincount(grouping.clusters, grouping.shares)
    concentration = float((by_cluster**2).sum())
    share, assumed = min(1.0, max(0.0, mean)), (1 - ALIKE) * float((grouping.shares**2).sum()) + ALIKE * concentration
    observed = error**2 / (share * (1 - share)) if error is not None and 0.0 < share < 1.0 else 0.0
    return wilson_of_share(share, 1 / max(assumed, observed), t_point(max(1.0, 1 / concentration - 1), (1 + level) / 2))


def _sums(rows: np.ndarray, codes: np.ndarray, size: int) -> np.ndarray:
    """Sum the values of each code in each row: float64 [m, n] to [m, size]; values are added in the same order as in a single row."""
    places = np.arange(len(rows))[:, None] * size + codes
    return np.asarray(np.bincount(places.ravel(), rows.ravel(), len(rows) * size)).reshape(len(rows), size)


def independent(rows: np.ndarray, grouping: Grouping) -> tuple[np.ndarray, np.ndarray]:
    """Sampling error of the unweighted mean of group means, with its degrees of freedom, for independent questions, by row.

    The degrees of freedom are Satterthwaite's. With one group this is the standard error of a mean.

    Args:
        rows: float64 [m, n].

    Returns:
        Two float64 [m]; the error is NaN for fewer than two values, and where all are equal.
    """
    n, groups, counts = rows.shape[1], grouping.groups, grouping.counts
    if n < 2:
        return np.full(len(rows), np.nan), np.ones(len(rows))
    means = _sums(rows, groups, counts.size) / counts
    squares = _sums((rows - means[:, groups]) ** 2, groups, counts.size)
    inside = n - counts.size
    pooled = squares.sum(axis=1) / inside if inside else rows.var(axis=1, ddof=1)
    borrowing = counts - 1 + BORROWED
    terms = (squares + BORROWED * pooled[:, None]) / borrowing / counts / counts.size**2
    total = terms.sum(axis=1)
    error = np.sqrt(total)
    error[error < 1e-9] = np.nan
    with np.errstate(invalid="ignore"):
        freedom = np.minimum(n - 1, total**2 / (terms**2 / borrowing).sum(axis=1))
    return error, freedom


def by_question_in_groups(array: np.ndarray, grouping: Grouping, level: float = LEVEL) -> Interval | None:
    """The interval by question of the unweighted mean of group means."""
    mean, sampling = float((grouping.shares * array).sum()), Sampling.of(*independent(array[None], grouping))
    if array.size < 2 or (sampling is not None and (not are_scores(array) or 0.0 < mean < 1.0)):
        return mean_interval(mean, array, sampling, level)
    if not are_scores(array):
        return None
    return wilson_of_share(min(1.0, max(0.0, mean)), grouping.effective, _normal_point(level))


def matched(
    gaps: np.ndarray, grouping: Grouping, error: np.ndarray, freedom: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Centre, error and degrees of freedom of paired differences of scores, after Agresti and Min, for each row.

    Two differences of 0, half a gain and half a loss are added. The size of gain and loss is that of the largest difference; it is 1 for
    0/1 scores, and where no score differs. If no score differs, the interval has the width of Wilson's for no success: from 97 questions
    on, the two halves alone would make it too narrow for a difference that was never observed.

    Args:
        gaps: float64 [m, n].
        error, freedom: of their means, by `independent`.

    Returns:
        Three float64 [m]; the error is NaN for fewer than two values.
    """
    if gaps.shape[1] < 2:
        return gaps.mean(axis=1), error, freedom
    n, means = grouping.effective, (grouping.shares * gaps).sum(axis=1)
    alike, most = np.isnan(error), np.abs(gaps).max(axis=1)
    variance = np.where(alike, 0.0, error**2 * n)
    freedom = np.where(alike, gaps.shape[1] - 1, freedom)
    squares = (n - 1) * variance + n * means**2 + np.where(most == 0.0, 1.0, most) ** 2
    error = np.sqrt(np.maximum(0.0, squares - (n * means) ** 2 / (n + 2))) / (n + 2)
    unmoved = most == 0.0
    if unmoved.any():
        error[unmoved] = np.maximum(error[unmoved], wilson(0.0, n).high / t_points(freedom[unmoved]))
    return n * means / (n + 2), error, freedom
