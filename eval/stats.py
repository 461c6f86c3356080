"""How sure a number is: intervals by question and by case, paired differences, and a permutation test.

By question is what papers print; by case resamples whole histories, because questions about one history share its luck.
Both stand side by side. Nothing here draws on a global random state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Interval:
    """A 95 % interval."""

    low: float
    high: float

    @property
    def half(self) -> float:
        """Half its width."""
        return (self.high - self.low) / 2


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean and how sure it is."""

    mean: float
    n: int
    by_question: Interval | None
    """Wilson for 0/1 values, Student's t otherwise; None for fewer than two values."""
    by_case: Interval | None
    """Bootstrap over clusters (percentiles of 2,000 resamples); None for fewer than two clusters."""
    clusters: int


@dataclass(frozen=True, slots=True)
class Difference:
    """A paired difference, first minus second, over the questions that both have."""

    mean: float
    n: int
    by_question: Interval | None
    by_case: Interval | None
    p: float | None
    """Two-sided sign-flip permutation test over questions; None for fewer than two pairs."""


def estimate(values: Sequence[float], clusters: Sequence[str], seed: int = 0) -> Estimate:
    """The mean of per-question values with both intervals.

    Args:
        values: one a question, scored ones only.
        clusters: what each question's history is, same length.

    Raises:
        ValueError: there are no values, or the lengths differ.
    """
    array = _array(values, clusters)
    groups = np.unique(np.asarray(clusters)).size
    return Estimate(float(array.mean()), array.size, by_question(array), by_case(array, clusters, seed), groups)


def by_question(values: Sequence[float] | np.ndarray) -> Interval | None:
    """95 % interval of a mean of independent questions: Wilson's for 0/1 values (as SegTreeMem prints), else Student's t.

    Scores that all lie in [0, 1] get an interval within it.
    """
    array = np.asarray(values, dtype=float)
    if array.size < 2:
        return None
    if np.isin(array, (0.0, 1.0)).all():
        return wilson(int(array.sum()), array.size)
    found = _t_interval(array)
    bounded = found is not None and array.min() >= 0.0 and array.max() <= 1.0
    return Interval(max(0.0, found.low), min(1.0, found.high)) if found is not None and bounded else found


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
    low = 0.0 if successes == 0 else centre - half  # exactly, not up to rounding
    return Interval(low, 1.0 if successes == n else centre + half)


def by_case(values: Sequence[float] | np.ndarray, clusters: Sequence[str], seed: int = 0) -> Interval | None:
    """95 % percentile interval of the mean over questions when whole clusters are resampled."""
    array = np.asarray(values, dtype=float)
    _, codes = np.unique(np.asarray(clusters), return_inverse=True)
    counts = np.bincount(codes).astype(float)
    if counts.size < 2:
        return None
    sums = np.bincount(codes, weights=array)
    drawn = _draws(counts.size, seed)
    means = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.percentile(means, (2.5, 97.5))
    return Interval(float(low), float(high))


def difference(first: Sequence[float], second: Sequence[float], clusters: Sequence[str], seed: int = 0) -> Difference:
    """A paired comparison of two systems on the same questions, in the same order.

    Raises:
        ValueError: there are no pairs, or the lengths differ.
    """
    gap = _array(first, clusters) - _array(second, clusters)
    return Difference(
        float(gap.mean()), gap.size, _t_interval(gap), by_case(gap, clusters, seed), permutation_p(gap, seed)
    )


def permutation_p(gap: np.ndarray, seed: int = 0, flips: int = 10_000) -> float | None:
    """Two-sided p of a paired difference: the share of random sign flips whose mean is at least as far from 0 (itself counted)."""
    if gap.size < 2:
        return None
    moved = gap[gap != 0.0]
    if not moved.size:
        return 1.0
    rng = np.random.default_rng(seed)
    observed, extreme = abs(float(moved.sum())) - 1e-12, 0
    for start in range(0, flips, 500):
        signs = rng.integers(0, 2, (min(500, flips - start), moved.size), dtype=np.int8) * 2 - 1
        extreme += int((np.abs(signs @ moved) >= observed).sum())
    return (extreme + 1) / (flips + 1)


def _t_interval(gap: np.ndarray) -> Interval | None:
    if gap.size < 2:
        return None
    half = _t(gap.size - 1) * float(gap.std(ddof=1)) / gap.size**0.5
    return Interval(float(gap.mean()) - half, float(gap.mean()) + half)


@lru_cache(maxsize=256)
def _t(freedom: int) -> float:
    """The 97.5 % point of Student's t."""
    if freedom > 15:  # the Cornish-Fisher expansion is right to 1e-5 here, and SciPy stays unloaded
        z = 1.959963984540054
        terms = (
            (z**3 + z) / 4,
            (5 * z**5 + 16 * z**3 + 3 * z) / 96,
            (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
            (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
        )
        return z + float(sum(term / freedom**power for power, term in enumerate(terms, 1)))
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.975))


@lru_cache(maxsize=32)
def _draws(clusters: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, clusters, (RESAMPLES, clusters))


def _array(values: Sequence[float], clusters: Sequence[str]) -> np.ndarray:
    if not len(values) or len(values) != len(clusters):
        raise ValueError(f"{len(values)} values for {len(clusters)} cluster names")
    return np.asarray(values, dtype=float)


def stratified(values: Sequence[float], groups: Sequence[str], clusters: Sequence[str], seed: int = 0) -> Estimate:
    """The unweighted mean of group means (RealMem averages personas, LongMemEval's task average averages types).

    By question: normal interval from the groups' own variances. By case: clusters resampled, groups averaged anew; a resample without any
    question of a group leaves that group out.

    Raises:
        ValueError: there are no values, or the lengths differ.
    """
    array = _array(values, clusters)
    names, codes = np.unique(np.asarray(groups), return_inverse=True)
    counts = np.bincount(codes).astype(float)
    means = np.bincount(codes, weights=array) / counts
    spread = np.bincount(codes, weights=(array - means[codes]) ** 2) / np.maximum(counts - 1, 1)
    half = 1.959963984540054 * float(np.sqrt((spread / counts).sum())) / names.size
    mean = float(means.mean())
    question = Interval(mean - half, mean + half) if array.size > 1 else None
    kinds, homes = np.unique(np.asarray(clusters), return_inverse=True)
    return Estimate(mean, array.size, question, _stratified_by_case(array, codes, homes, seed), kinds.size)


def _stratified_by_case(array: np.ndarray, codes: np.ndarray, homes: np.ndarray, seed: int) -> Interval | None:
    clusters, groups = int(homes.max()) + 1, int(codes.max()) + 1
    if clusters < 2:
        return None
    sums, counts = np.zeros((clusters, groups)), np.zeros((clusters, groups))
    np.add.at(sums, (homes, codes), array)
    np.add.at(counts, (homes, codes), 1.0)
    drawn = _draws(clusters, seed)
    total, size = sums[drawn].sum(axis=1), counts[drawn].sum(axis=1)
    means = np.divide(total, size, out=np.full_like(total, np.nan), where=size > 0)
    low, high = np.percentile(np.nanmean(means, axis=1), (2.5, 97.5))
    return Interval(float(low), float(high))
