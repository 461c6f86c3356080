"""A run's score from a judge's verdicts on all answers and a person's on a random sample of them; it needs no card of the judge.

Prediction-powered inference (Angelopoulos, Bates, Fannjiang, Jordan and Zrnic 2023, Science 382), tuned as in PPI++ (Angelopoulos, Duchi
and Zrnic 2023, section 6): the mean of the person's verdicts, plus `weight` times the difference between the judge's mean on all answers
and on the sample. The weight minimises the variance, so a judge that errs at random gets a weight near 0.

The standard error by question is that of the sum of the answers' influences. The error by case is the delete-one-history jackknife, never
below the error by question. A sample in which person and judge happen to agree says little about how rarely they differ, so its variance
is never below that of a sample with two more differences (as in Agresti and Coull's interval). Both intervals are Wilson's with Student's
quantile, for the number of rated answers with the same standard error: near 0 and 1 they have better coverage than a symmetric interval.

The sample must be random: `sample_order` gives the order in which to rate answers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from eval.statistics.stats import ENOUGH_CLUSTERS, Estimate, Interval, numbered, t_point, wilson_of_share

Key = tuple[str, str]
"""Case and question."""
FEWEST = 20
"""With fewer ratings there is no score."""


def sample_order(keys: Iterable[Key]) -> list[Key]:
    """The questions in the order in which a person should rate them: sorted by a hash, so every prefix is a random sample."""
    return sorted(keys, key=lambda key: hashlib.sha256("\x00".join(key).encode()).digest())


def prediction_powered(verdicts: Sequence[float], clusters: Sequence[str], ratings: Sequence[float | None]) -> Estimate:
    """Estimate the mean verdict that the person would give to all answers, with intervals.

    Args:
        verdicts: the judge's, one per answer, from 0 to 1.
        clusters: history of each answer, same length.
        ratings: the person's, None for an answer that was not rated, same length.

    Raises:
        ValueError: fewer than `FEWEST` ratings, or the lengths differ.
    """
    judged, rated = np.asarray(verdicts, dtype=float), np.asarray(ratings, dtype=float)
    if not judged.size == rated.size == len(clusters):
        raise ValueError(f"{judged.size} verdicts, {rated.size} ratings and {len(clusters)} histories")
    is_rated = ~np.isnan(rated)
    n = int(is_rated.sum())
    if n < FEWEST:
        raise ValueError(f"{n} ratings of the random sample; at least {FEWEST} are needed")
    homes = numbered(clusters)
    weight = _weight(judged, rated, is_rated)
    rest = np.where(is_rated, rated - weight * judged, 0.0)
    mean = weight * float(judged.mean()) + float(rest.sum()) / n
    size = int(homes.max()) + 1
    all_of, rated_of = np.bincount(homes, minlength=size), np.bincount(homes[is_rated], minlength=size)
    influence = weight * (judged - judged.mean()) / judged.size + is_rated * (rest - rest.sum() / n) / n
    differing = float(((rest - rest.sum() / n)[is_rated] ** 2).sum()) + 2.0
    variance = max(float((influence**2).sum()) * n / (n - 1), differing / (n + 4) / n)
    by_case = None
    if size >= ENOUGH_CLUSTERS and (rated_of < n).all():
        judged_of, rest_of = np.bincount(homes, judged, size), np.bincount(homes, rest, size)
        without = weight * (judged.sum() - judged_of) / (judged.size - all_of) + (rest.sum() - rest_of) / (n - rated_of)
        jackknife = float(((without - mean) ** 2).sum()) * (size - 1) / size
        share = all_of / judged.size
        by_case = _interval(mean, max(jackknife, variance), max(1.0, 1.0 / float((share**2).sum()) - 1.0), n)
    by_question = _interval(mean, variance, n - 1.0, n)
    return Estimate(min(max(mean, 0.0), 1.0), n, by_question, by_case, size)


def _weight(judged: np.ndarray, rated: np.ndarray, is_rated: np.ndarray) -> float:
    own, spread = judged[is_rated], float(judged.var())
    if spread == 0.0:
        return 0.0
    together = float(((own - own.mean()) * (rated[is_rated] - rated[is_rated].mean())).mean())
    return float(np.clip(together / spread / (1.0 + own.size / judged.size), 0.0, 1.0))


def _interval(mean: float, variance: float, freedom: float, n: int) -> Interval:
    """Wilson's interval for the number of independent ratings that has this variance.

    Args:
        n: number of ratings.
    """
    inside = min(max(mean, 0.0), 1.0)
    smooth = (inside * n + 2.0) / (n + 4)
    return wilson_of_share(inside, smooth * (1.0 - smooth) / variance, t_point(freedom))
