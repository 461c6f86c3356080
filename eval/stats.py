"""Uncertainty of a mean: intervals by question and by case, paired differences, a permutation test, Holm's adjustment.

Papers print intervals by question. Intervals by case treat whole histories as the sample, because questions about one history are
correlated. Tables show both. Nothing here uses a global random state.

The interval by case:

- Standard error: the delete-one-history jackknife of the mean. For histories of equal size it gives Student's interval. For unequal
  sizes it corrects the linearised ratio for the leverage of large histories (MacKinnon, Nielsen and Webb 2023, "Leverage, influence, and
  the jackknife in clustered regression models", Stata Journal 23). A mean of group means is jackknifed as it stands.
- Degrees of freedom: Kish's effective number of histories minus one. With G histories of equal size this is G - 1; it is smaller when few
  histories hold most of the questions.
- Shares (all values in [0, 1]) get their interval on the logit scale, as survey packages do for proportions: near 0 and 1 the histories'
  means are skewed, and a symmetric interval covers too little. Differences and other quantities stay on their own scale.
- There is no interval for fewer than five histories, or when the histories' means are equal: the spread is not known then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ENOUGH_CLUSTERS = 5
"""With fewer histories there is no interval by case."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A 95 % interval."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its intervals."""

    mean: float
    n: int
    by_question: Interval | None
    """Wilson for 0/1 values, Student's t otherwise; None for fewer than two values."""
    by_case: Interval | None
    """Jackknife over clusters with Student's t; None for fewer than five clusters, or when their means are equal."""
    clusters: int


@dataclass(frozen=True, slots=True)
class Difference:
    """A paired difference, first minus second, over the questions that both have a score for."""

    mean: float
    n: int
    by_question: Interval | None
    by_case: Interval | None
    p: float | None
    """Two-sided sign-flip permutation test over questions; None for fewer than two pairs."""
    p_by_case: float | None
    """Two-sided t-test with the standard error of `by_case`; None where `by_case` is."""
    clusters: int
    sampling: Sampling | None
    """Sampling error by case where there is an interval by case, else by question; None for fewer than two pairs."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling error of a mean."""

    error: float
    """Standard error, in the unit of the mean."""
    freedom: float
    """Degrees of freedom of that error."""


def estimate(values: Sequence[float], clusters: Sequence[str], without: Sequence[float] | None = None) -> Estimate:
    """The mean of scores with both intervals.

    Args:
        values: one per scored question.
        clusters: history of each question, same length.
        without: the mean without each cluster, in the order of sorted names; needed only when leaving out a cluster changes the values
            of the others (the best of several memories would be chosen anew).

    Raises:
        ValueError: there are no values, or the lengths differ.
    """
    array = _array(values, clusters)
    mean, codes = float(array.mean()), _codes(clusters)
    case = _score_interval(mean, array, _jackknife(array, np.zeros(array.size, dtype=int), codes, without))
    return Estimate(mean, array.size, by_question(array), case, int(codes.max()) + 1)


def preferred_interval(ours: Estimate) -> Interval | None:
    """The interval that verdicts and figures use: by case from five cases on, else by question."""
    return ours.by_case if ours.clusters >= ENOUGH_CLUSTERS and ours.by_case is not None else ours.by_question


def by_question(values: Sequence[float] | np.ndarray) -> Interval | None:
    """95 % interval of a mean of independent questions: Wilson's for 0/1 values (as SegTreeMem prints), else Student's t.

    Scores in [0, 1] get an interval within [0, 1].
    """
    array = np.asarray(values, dtype=float)
    if array.size < 2:
        return None
    if np.isin(array, (0.0, 1.0)).all():
        return wilson(int(array.sum()), array.size)
    sampling = _independent(array)
    assert sampling is not None, "there are two values at least"
    found = _around(float(array.mean()), sampling)
    bounded = array.min() >= 0.0 and array.max() <= 1.0
    return Interval(max(0.0, found.low), min(1.0, found.high)) if bounded else found


def wilson(successes: int, n: int) -> Interval:
    """Wilson's 95 % score interval of a proportion.

    Raises:
        ValueError: no trials, or more successes than trials.
    """
    if not 0 <= successes <= n or n == 0:
        raise ValueError(f"{successes} successes in {n} trials")
    z = 1.959963984540054
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5
    low = 0.0 if successes == 0 else centre - half  # exactly 0, without a rounding error
    return Interval(low, 1.0 if successes == n else centre + half)


def difference(
    first: Sequence[float],
    second: Sequence[float],
    clusters: Sequence[str],
    seed: int = 0,
    without: Sequence[float] | None = None,
    test: bool = True,
) -> Difference:
    """A paired comparison of two systems.

    Args:
        first, second: scores of the same questions in the same order.
        clusters: history of each question, same length.
        seed: of the permutation test.
        without: as for `estimate`, of the difference.
        test: False leaves out the permutation test, the slow part; `p` is then None.

    Raises:
        ValueError: there are no pairs, or the lengths differ.
    """
    gap, codes = _array(first, clusters) - _array(second, clusters), _codes(clusters)
    mean = float(gap.mean())
    case, question = _jackknife(gap, np.zeros(gap.size, dtype=int), codes, without), _independent(gap)
    return Difference(
        mean,
        gap.size,
        by_question=None if question is None else _around(mean, question),
        by_case=None if case is None else _around(mean, case),
        p=permutation_p(gap, seed) if test else None,
        p_by_case=None if case is None else _t_test(mean, case),
        clusters=int(codes.max()) + 1,
        sampling=case or question,
    )


def permutation_p(gap: np.ndarray, seed: int = 0, flips: int = 10_000, most: int = 200_000) -> float | None:
    """Two-sided p of a paired difference: the share of sign flips whose mean is at least as far from 0; None for fewer than two pairs.

    Exact when all non-zero gaps have one size; otherwise from random sign flips and the observed one: `flips`, and more up to `most` until
    ten are as extreme, so that a small p is resolved (Besag and Clifford 1991, "Sequential Monte Carlo p-values").
    """
    if gap.size < 2:
        return None
    moved = gap[gap != 0.0]
    if not moved.size:
        return 1.0
    if (np.abs(moved) == abs(moved[0])).all():
        # Only signs differ: their sum is binomial and p is exact (McNemar's test for 0/1 scores).
        from scipy.special import bdtr

        return min(1.0, float(2 * bdtr(min((moved > 0).sum(), (moved < 0).sum()), moved.size, 0.5)))
    rng = np.random.default_rng(seed)
    observed, extreme, drawn = abs(float(moved.sum())) - 1e-12, 0, 0
    while drawn < flips or (extreme < 10 and drawn < most):
        size = 500 if drawn >= flips else min(500, flips - drawn)
        signs = rng.integers(0, 2, (size, moved.size), dtype=np.int8) * 2 - 1
        extreme += int((np.abs(signs @ moved) >= observed).sum())
        drawn += size
    return (extreme + 1) / (drawn + 1)


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down adjustment (1979), which bounds the probability of any false positive among all tests.

    None stays None and does not count as a test.
    """
    known = sorted((p, place) for place, p in enumerate(ps) if p is not None)
    adjusted: list[float | None] = [None] * len(ps)
    largest = 0.0
    for rank, (p, place) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p))
        adjusted[place] = largest
    return adjusted


def t_point(freedom: float, probability: float = 0.975) -> float:
    """The quantile of Student's t; `freedom` may be a fraction."""
    from scipy.special import stdtrit  # imported here: it takes half a second, which a start without intervals saves

    return float(stdtrit(freedom, probability))


def _t_test(mean: float, sampling: Sampling) -> float:
    """Two-sided p of the null hypothesis that the mean is 0."""
    from scipy.special import stdtr

    return float(2 * stdtr(sampling.freedom, -abs(mean) / sampling.error))


def _around(mean: float, sampling: Sampling) -> Interval:
    half = t_point(sampling.freedom) * sampling.error
    return Interval(mean - half, mean + half)


def _score_interval(mean: float, array: np.ndarray, sampling: Sampling | None) -> Interval | None:
    """The interval on the logit scale for shares, on their own scale for other quantities."""
    if sampling is None:
        return None
    if array.min() < 0.0 or array.max() > 1.0 or not 0.0 < mean < 1.0:
        return _around(mean, sampling)
    half = t_point(sampling.freedom) * sampling.error / (mean * (1 - mean))
    odds = mean / (1 - mean)
    with np.errstate(over="ignore"):
        low, high = odds * np.exp(-half), odds * np.exp(half)
    return Interval(float(low / (1 + low)), float(1 / (1 + 1 / high)))


def _independent(array: np.ndarray) -> Sampling | None:
    if array.size < 2:
        return None
    return Sampling(float(array.std(ddof=1)) / array.size**0.5, array.size - 1)


def _jackknife(
    array: np.ndarray, groups: np.ndarray, clusters: np.ndarray, without: Sequence[float] | None = None
) -> Sampling | None:
    """Jackknife error of the unweighted mean of group means; with one group, of the plain mean. None where it cannot be estimated.

    A group without remaining questions is left out of a replicate's mean.

    Args:
        groups, clusters: numbers from 0, one per value.
        without: the means without each cluster, where they differ from the means of the remaining values.
    """
    size = int(clusters.max()) + 1
    if size < ENOUGH_CLUSTERS:
        return None
    sums, counts = np.zeros((size, int(groups.max()) + 1)), np.zeros((size, int(groups.max()) + 1))
    np.add.at(sums, (clusters, groups), array)
    np.add.at(counts, (clusters, groups), 1.0)
    total, questions = sums.sum(axis=0), counts.sum(axis=0)
    left = questions - counts
    means = np.divide(total - sums, left, out=np.full_like(sums, np.nan), where=left > 0)
    gaps = (np.nanmean(means, axis=1) if without is None else np.asarray(without)) - (total / questions).mean()
    error = float(((size - 1) / size * (gaps**2).sum()) ** 0.5)
    if error < 1e-9:  # only rounding errors: the clusters do not differ
        return None
    weights = (counts / questions).mean(axis=1)
    return Sampling(error, max(1.0, 1 / float((weights**2).sum()) - 1))


def _codes(names: Sequence[str]) -> np.ndarray:
    codes: np.ndarray = np.unique(np.asarray(names), return_inverse=True)[1]
    return codes


def _array(values: Sequence[float], clusters: Sequence[str]) -> np.ndarray:
    if not len(values) or len(values) != len(clusters):
        raise ValueError(f"{len(values)} values for {len(clusters)} cluster names")
    return np.asarray(values, dtype=float)


def stratified(
    values: Sequence[float], groups: Sequence[str], clusters: Sequence[str], without: Sequence[float] | None = None
) -> Estimate:
    """The unweighted mean of group means: RealMem averages personas, LongMemEval's task average averages question types.

    The interval by question is a normal interval from the groups' variances; the interval by case is that of any mean.

    Args:
        groups: group of each value, same length.
        without: as for `estimate`, of the mean of group means.

    Raises:
        ValueError: there are no values, or the lengths differ.
    """
    array, codes, homes = _array(values, clusters), _codes(groups), _codes(clusters)
    counts = np.bincount(codes).astype(float)
    means = np.bincount(codes, weights=array) / counts
    spread = np.bincount(codes, weights=(array - means[codes]) ** 2) / np.maximum(counts - 1, 1)
    half = 1.959963984540054 * float(np.sqrt((spread / counts).sum())) / counts.size
    mean = float(means.mean())
    question = Interval(mean - half, mean + half) if array.size > 1 else None
    case = _score_interval(mean, array, _jackknife(array, codes, homes, without))
    return Estimate(mean, array.size, question, case, int(homes.max()) + 1)
