"""Uncertainty of a mean: intervals by question and by case, paired differences, a permutation test, Holm's adjustment.

Papers print intervals by question. Intervals by case treat whole histories as the sample, because questions about one history are
correlated. Tables show both. Nothing here uses a global random state.

The interval by case:

- Standard error: the delete-one-history jackknife of the mean. For histories of equal size it gives Student's interval. For unequal
  sizes it corrects the linearised ratio for the leverage of large histories (MacKinnon, Nielsen and Webb 2023, "Leverage, influence, and
  the jackknife in clustered regression models", Stata Journal 23). A mean of group means is jackknifed as it stands.
- Degrees of freedom: Kish's effective number of histories minus one. With G histories of equal size this is G - 1; it is smaller when few
  histories hold most of the questions.
- Scores and shares in [0, 1] get their interval on the logit scale, as survey packages do for proportions: near 0 and 1 the histories'
  means are skewed, and a symmetric interval covers too little. Differences stay on their own scale, and so do quantities with a unit
  (tokens, seconds, counts), also where all values lie in [0, 1].
- There is no interval for fewer than five histories, or when the histories' means are equal: the spread is then unknown. `cautious`
  is used instead.

Intervals by question, for independent questions:

- 0/1 scores: Wilson's. Other scores in [0, 1]: Student's t on the logit scale. Groups that weigh the same (personas, categories): the same,
  with each group's variance shrunk towards the pooled variance, because a few questions say little about the variance of their group.
- Paired differences of scores: Agresti and Min (2005), "Simple improved confidence intervals for comparing matched proportions",
  Statistics in Medicine 24: half a question is added to each of the four outcomes.
- Few histories, or histories with similar means: Wilson's with Student's t on the effective number of questions.

`docs/statistics.md` has the simulated coverage of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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


def from_zero(span: Interval | None) -> Interval | None:
    """The interval without its part below 0, where no cost, size or share can lie."""
    return span and Interval(max(0.0, span.low), span.high)


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


@dataclass(frozen=True, eq=False, slots=True)
class Grouping:
    """The histories and groups of n questions, and values that depend on them alone."""

    clusters: np.ndarray
    """History of each question: int [n], numbers from 0 without gaps."""
    groups: np.ndarray
    """Group of each question, likewise; questions of a group weigh the same in the mean of group means."""
    cells: np.ndarray
    """Place of each question in a flat table of histories and groups: int [n]."""
    held: np.ndarray
    """Number of questions of each history in each group: float64 [histories, groups]."""
    counts: np.ndarray
    """Number of questions of each group: float64."""
    shares: np.ndarray
    """Weight of each question in the mean of group means: float64 [n], their sum is 1."""
    weights: np.ndarray
    """The same weights with mean 1, exactly 1 for a single group."""
    histories: int
    effective: float
    """Kish's effective number of questions."""
    freedom: float
    """Kish's effective number of histories less one, and at least one."""

    @classmethod
    def of(cls, clusters: Sequence[str] | np.ndarray, groups: Sequence[str] | np.ndarray | None = None) -> Grouping:
        """Group at least one question.

        Args:
            clusters: history of each question, as a name or a number.
            groups: group of each question, likewise; None for a single group.
        """
        homes = numbered(clusters)
        codes = np.zeros(homes.size, dtype=int) if groups is None else numbered(groups)
        counts, histories = np.bincount(codes).astype(float), int(homes.max()) + 1
        cells = homes * counts.size + codes
        held = np.bincount(cells, minlength=histories * counts.size).astype(float).reshape(histories, -1)
        shares, by_history = 1.0 / (counts[codes] * counts.size), (held / counts).mean(axis=1)
        weights, effective = homes.size / (counts[codes] * counts.size), 1 / float((shares**2).sum())
        freedom = max(1.0, 1 / float((by_history**2).sum()) - 1)
        return cls(homes, codes, cells, held, counts, shares, weights, histories, effective, freedom)


def by_question(
    values: Sequence[float] | np.ndarray, level: float = LEVEL, grouping: Grouping | None = None, scores: bool = True
) -> Interval | None:
    """The interval of a mean of independent questions: Wilson's for 0/1 values (as SegTreeMem prints), else Student's t.

    Scores in [0, 1] get it on the logit scale, and Wilson's where all are equal. None for fewer than two values, and where all other
    values are equal.

    Args:
        grouping: for the unweighted mean of group means, which gets Student's t for 0/1 values, too.
        scores: False for a quantity with a unit; True treats the values as scores if all lie in [0, 1].
    """
    array = np.asarray(values, dtype=float)
    if array.size < 2:
        return None
    scores = scores and are_scores(array)
    z = NORMAL
    if level != LEVEL:  # with the usual level without SciPy
        from scipy.special import ndtri

        z = float(ndtri((1 + level) / 2))
    if scores and grouping is None and ((array == 0.0) | (array == 1.0)).all():
        return wilson_of_share(float(array.sum()) / array.size, array.size, z)
    grouping = grouping or Grouping.of(np.zeros(array.size, dtype=int))
    mean, sampling = float((grouping.shares * array).sum()), Sampling.of(*independent(array[None], grouping))
    if sampling is not None and (not scores or 0.0 < mean < 1.0):
        return mean_interval(mean, sampling, level, scores=scores)
    if not scores:
        return None
    return wilson_of_share(min(1.0, max(0.0, mean)), grouping.effective, z)


def wilson(successes: float, n: float) -> Interval:
    """Wilson's score interval of a proportion; both counts may be fractions, as effective numbers are.

    Raises:
        ValueError: no trials, or more successes than trials.
    """
    if not 0 <= successes <= n or n == 0:
        raise ValueError(f"{successes} successes in {n} trials")
    return wilson_of_share(successes / n, n, NORMAL)


def wilson_of_share(share: float, n: float, z: float) -> Interval:
    """Wilson's score interval of a share of `n` trials, with a quantile `z` of its own."""
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5
    low = 0.0 if share == 0 else max(0.0, centre - half)  # exactly 0, without a rounding error
    return Interval(low, 1.0 if share == 1 else min(1.0, centre + half))


def t_point(freedom: float, probability: float = 0.975) -> float:
    """The quantile of Student's t; `freedom` may be a fraction."""
    from scipy.special import stdtrit  # imported here: it takes half a second, which a start without intervals saves

    return float(stdtrit(freedom, probability))


def around(mean: float, sampling: Sampling, level: float = LEVEL) -> Interval:
    """Compute Student's interval."""
    half = t_point(sampling.freedom, (1 + level) / 2) * sampling.error
    return Interval(mean - half, mean + half)


def are_scores(array: np.ndarray) -> bool:
    """Whether all values lie in [0, 1]."""
    return bool(array.min() >= 0.0 and array.max() <= 1.0)


def mean_interval(mean: float, sampling: Sampling | None, level: float = LEVEL, *, scores: bool) -> Interval | None:
    """The interval on the logit scale for scores, on their own scale for other quantities."""
    if sampling is None:
        return None
    if not scores or not 0.0 < mean < 1.0:
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
    from scipy.special import stdtrit

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
        least = wilson_of_share(0.0, n, NORMAL).high / stdtrit(freedom[unmoved], 0.975)
        error[unmoved] = np.maximum(error[unmoved], least)
    return n * means / (n + 2), error, freedom


# --- means, paired differences and tests --------------------------------------------------------------------------------

ENOUGH_CLUSTERS = 5
"""With fewer histories there is no interval by case."""
MOST_FLIPS = 200_000
"""Maximum number of random sign flips of a permutation test."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its intervals."""

    mean: float
    n: int
    by_question: Interval | None
    """Wilson for 0/1 values, Student's t on the logit scale for other scores; None for fewer than two values."""
    by_case: Interval | None
    """Jackknife over clusters with Student's t; None for fewer than five clusters, or when their means are equal."""
    clusters: int
    cautious: Interval | None = None
    """For a score without `by_case` and with at least two clusters: Wilson's interval on the effective number of questions."""


@dataclass(frozen=True, slots=True)
class Difference(Estimate):
    """A paired difference, first minus second, over the questions that both have a score for."""

    p: float | None = None
    """Two-sided sign-flip permutation test over questions; None for fewer than two pairs."""
    p_by_case: float | None = None
    """Two-sided t-test with the standard error of `by_case`; None where `by_case` is None."""
    sampling: Sampling | None = None
    """Sampling error by case where there is an interval by case, else by question; None for fewer than two pairs."""


def estimate(
    values: Sequence[float],
    clusters: Sequence[str],
    without: Sequence[float] | None = None,
    level: float = LEVEL,
    groups: Sequence[str] | None = None,
    scores: bool = True,
) -> Estimate:
    """Compute the mean of scores, or of a quantity, with both intervals.

    Args:
        values: one per scored question.
        clusters: history of each question, same length.
        without: the mean without each cluster, in the order of sorted names; needed only if leaving out a cluster changes the values
            of the others (because the best of several memories is chosen again).
        level: coverage of the intervals.
        groups: group of each question, for the unweighted mean of group means (RealMem averages personas, LongMemEval's task average
            question types): questions of one group weigh the same. None weighs questions equally.
        scores: as for `by_question`. A quantity (tokens, seconds, counts) has Student's intervals on its own scale, and no `cautious`.

    Raises:
        ValueError: there are no values, or the lengths differ.
    """
    array = _array(values, clusters)
    scores = scores and are_scores(array)
    grouping = Grouping.of(clusters, groups)
    if groups is None:
        mean, question = float(array.mean()), by_question(array, level, scores=scores)
    else:
        mean = float((np.bincount(grouping.groups, weights=array) / grouping.counts).mean())
        question = by_question(array, level, grouping, scores)
    rows = None if without is None else np.asarray(without)[None]
    sampling = Sampling.of(_jackknife(array[None], grouping, rows, least=2), np.array([grouping.freedom]))
    enough = grouping.histories >= ENOUGH_CLUSTERS
    case, cautious = mean_interval(mean, sampling if enough else None, level, scores=scores), None
    if case is None and grouping.histories > 1 and scores:
        cautious = on_effective_number(mean, grouping, None if sampling is None else sampling.error, level)
    return Estimate(mean, array.size, question, case, grouping.histories, cautious)


def preferred_interval(ours: Estimate) -> Interval | None:
    """The interval that verdicts and figures use: by case, else the cautious one, which is also used for histories with equal means.

    The interval by question is used only for a single history, and for quantities other than scores with fewer than five histories.
    """
    own = ours.by_case if ours.clusters >= ENOUGH_CLUSTERS else None
    question = ours.by_question if ours.clusters < ENOUGH_CLUSTERS else None
    return own or ours.cautious or question


def difference(
    first: Sequence[float] | np.ndarray,
    second: Sequence[float] | np.ndarray,
    clusters: Sequence[str] | np.ndarray,
    without: Sequence[float] | None = None,
    test: bool = True,
    groups: Sequence[str] | np.ndarray | None = None,
    scores: bool = True,
) -> Difference:
    """Compare two systems on the same questions: the difference of their means, with the weights of those means.

    Args:
        first, second: scores of the same questions in the same order.
        clusters: history of each question, same length.
        without: the difference without each cluster, as for `estimate`.
        test: False leaves out the permutation test, the slow part; `p` is then None.
        groups, scores: as for `estimate`.

    Raises:
        ValueError: there are no pairs, or the lengths differ.
    """
    one, two = _array(first, clusters), _array(second, clusters)
    grouping = Grouping.of(clusters, groups)
    shares = np.array([scores and are_scores(one) and are_scores(two)])
    gap = (one - two)[None]
    (own,) = differences(gap, grouping, shares, None if without is None else np.asarray(without)[None])
    return replace(own, p=permutation_p(gap[0] * grouping.weights)) if test else own


def differences(
    gaps: np.ndarray, grouping: Grouping, scores: np.ndarray, without: np.ndarray | None = None
) -> list[Difference]:
    """Compute `difference` for many pairs of systems over the same questions, without the permutation test.

    Args:
        gaps: float64 [m, n], the gain of each question, one row per pair.
        scores: bool [m], whether the values of both systems lie in [0, 1].
        without: float64 [m, histories], as for `difference`.
    """
    from scipy.special import stdtr

    means, size = (gaps * grouping.weights).mean(axis=1), gaps.shape[1]
    plain = independent(gaps, grouping)
    question = [np.where(scores, *both) for both in zip(matched(gaps, grouping, *plain), (means, *plain), strict=True)]
    errors = _jackknife(gaps, grouping, without)
    most = np.where(scores, 1.0, np.inf)
    by_case = _students(most, means, errors, np.full(len(gaps), grouping.freedom))
    ps = 2 * stdtr(grouping.freedom, -np.abs(means) / errors)  # two-sided
    return [
        Difference(
            mean,
            size,
            by_question=None if other is None else other[0],
            by_case=None if case is None else case[0],
            p_by_case=None if case is None else p,
            clusters=grouping.histories,
            sampling=case[1] if case else other[1] if other else None,
        )
        for mean, other, case, p in zip(means.tolist(), _students(most, *question), by_case, ps.tolist(), strict=True)
    ]


def _students(
    most: np.ndarray, means: np.ndarray, errors: np.ndarray, freedoms: np.ndarray
) -> list[tuple[Interval, Sampling] | None]:
    """Student's interval of each mean, cut at the largest possible difference `most`, with its sampling error; None where that is NaN."""
    from scipy.special import stdtrit

    halves = stdtrit(freedoms, (1 + LEVEL) / 2) * errors
    rows = np.maximum(means - halves, -most), np.minimum(means + halves, most), errors, freedoms
    return [
        None if error != error else (Interval(low, high), Sampling(error, freedom))
        for low, high, error, freedom in np.transpose(rows).tolist()
    ]


def permutation_p(gap: np.ndarray, flips: int = 10_000) -> float | None:
    """Two-sided p of a paired difference: the share of sign flips whose mean is at least as far from 0; None for fewer than two pairs.

    Exact when all non-zero gaps have the same size; otherwise from random sign flips and the observed signs: `flips`, and more up to
    `MOST_FLIPS` until ten are as extreme, so that a small p is resolved (Besag and Clifford 1991, "Sequential Monte Carlo p-values").
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
    rng = np.random.default_rng(0)
    observed, extreme, drawn = abs(float(moved.sum())) - 1e-12, 0, 0
    while drawn < flips or (extreme < 10 and drawn < MOST_FLIPS):
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


def weights(groups: Sequence[str] | np.ndarray) -> np.ndarray:
    """The weight of each question in the mean of group means: float64 [n] with mean 1; questions of a group weigh the same.

    All numbers of a column (mean, intervals, differences, bounds, ceiling, verdict) refer to the mean with these weights.

    Args:
        groups: group of each question, at least one; with a single group the mean is that of the questions.
    """
    return Grouping.of(np.zeros(len(groups), dtype=int), groups).weights


def _jackknife(
    rows: np.ndarray, grouping: Grouping, without: np.ndarray | None = None, least: int = ENOUGH_CLUSTERS
) -> np.ndarray:
    """Jackknife error of each row's unweighted mean of group means; with one group, of the plain mean. NaN where it cannot be estimated.

    A group without remaining questions is left out of a replicate's mean.

    Args:
        rows: float64 [m, n].
        without: float64 [m, histories], the means without each cluster, where they differ from the means of the remaining values.
        least: the fewest clusters from which an error is taken.
    """
    if grouping.histories < least:
        return np.full(len(rows), np.nan)
    sums = _sums(rows, grouping.cells, grouping.held.size).reshape(len(rows), *grouping.held.shape)
    total = sums.sum(axis=1)
    if without is None:
        left = grouping.counts - grouping.held
        means = np.divide(total[:, None] - sums, left, out=np.zeros_like(sums), where=left > 0)
        without = means.sum(axis=2) / (left > 0).sum(axis=1)
    return _delete_one_errors(without - (total / grouping.counts).mean(axis=1)[:, None])


def _delete_one_errors(gaps: np.ndarray) -> np.ndarray:
    """Jackknife standard error of each row, from the deviations of the delete-one values from the full value; NaN where all are 0."""
    size = gaps.shape[1]
    errors = np.sqrt((size - 1) / size * (gaps**2).sum(axis=1))
    return np.where(errors < 1e-9, np.nan, errors)  # smaller deviations are rounding errors


def jackknifed(value: float, without: Sequence[float], sizes: Sequence[int]) -> Estimate:
    """Build the estimate of a statistic in [0, 1] that is no mean of questions, with its interval by case.

    Args:
        without: the statistic without each cluster.
        sizes: number of questions of each cluster behind it; degrees of freedom are those of a mean over them, and so is the logit scale.
    """
    size, n = len(without), sum(sizes)
    error = float(_delete_one_errors(np.asarray(without)[None] - value)[0]) if size >= ENOUGH_CLUSTERS else np.nan
    if np.isnan(error):
        return Estimate(value, n, None, None, size)
    freedom = max(1.0, effective_number(np.array(sizes, dtype=float)) - 1)
    return Estimate(value, n, None, mean_interval(value, Sampling(error, freedom), scores=True), size)


def numbered(names: Sequence[str] | np.ndarray) -> np.ndarray:
    """The index of each name among the sorted names, from 0; integers are renumbered without gaps."""
    if isinstance(names, np.ndarray):
        if names.dtype.kind != "i" or not names.size or names.min() < 0 or names.max() > 4 * names.size:
            return np.asarray(np.unique(names, return_inverse=True)[1])
        held = np.bincount(names) > 0  # five times faster than sorting, and a report compares all pairs of runs
        return names if held.all() else np.asarray((np.cumsum(held) - 1)[names])
    # 50 times faster than `unique` on short lists of names.
    places = {name: place for place, name in enumerate(sorted(set(names)))}
    return np.fromiter((places[name] for name in names), dtype=int, count=len(names))


def _array(values: Sequence[float] | np.ndarray, clusters: Sequence[str] | np.ndarray) -> np.ndarray:
    if not len(values) or len(values) != len(clusters):
        raise ValueError(f"{len(values)} values for {len(clusters)} cluster names")
    return np.asarray(values, dtype=float)
