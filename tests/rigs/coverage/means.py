"""Coverage of the intervals of means and paired differences."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from eval.statistics.power import detectable
from eval.statistics.stats import (
    Sampling,
    by_question,
    difference,
    estimate,
    permutation_p,
    preferred_interval,
)
from tests.rigs.coverage.rows import LOCOMO, Row, covered, homes_of, repeated, shares_by_history

REPETITIONS = 1000
GROUPS = {
    "10 and 90 questions": (10, 90),
    "1, 2, 3, 20 and 100": (1, 2, 3, 20, 100),
    "six of 5": (5,) * 6,
    "LoCoMo's categories": (282, 321, 96, 841, 446),
}
UNLIKE = (
    ("1, 1, 1 and 100, mean 0.95", (1, 1, 1, 100), (0.95,) * 4),
    ("2 of mean 0.5, 100 of mean 0.95", (2, 100), (0.5, 0.95)),
    ("1 and 1 of mean 0.8, 100 of mean 0.97", (1, 1, 100), (0.8, 0.8, 0.97)),
    ("5 of mean 0.8, 100 of mean 0.97", (5, 100), (0.8, 0.97)),
)
"""Groups of a few questions next to a large one: name, sizes and means."""


def rows(share: float = 1.0) -> list[Row]:
    """Simulate all situations; those of the intervals by case, which support claims about memories, four times as often.

    Args:
        share: share of the repetitions.
    """
    times = repeated(REPETITIONS, share)
    return [
        *_questions(times),
        *_groups(times),
        *_histories(4 * times),
        *_few(times),
        *_pairs(times),
        *_pairs_by_case(4 * times),
        *_tests(times),
    ]


def _questions(times: int) -> Iterator[Row]:
    rng = np.random.default_rng(1)
    for n in (30, 300):
        for mean in (0.5, 0.02):
            draws = (rng.random((times, n)) < mean).astype(float)
            value = covered([by_question(values) for values in draws], mean)
            yield Row("mean, by question", f"0/1, {n} questions, mean {mean}", "coverage", value, times)
    for n, mean in ((30, 0.04), (96, 0.012), (300, 0.012), (96, 0.3)):
        draws = rng.beta(2, 3, (times, n)) * (rng.random((times, n)) < mean / 0.4)
        value = covered([by_question(values) for values in draws], mean)
        yield Row("mean, by question", f"F1-like, {n} questions, mean {mean}", "coverage", value, times)
    for n in (48, 300):
        draws = rng.beta(1, 4, (times, n)) * (rng.random((times, n)) < 3 / n)
        value = covered([by_question(values) for values in draws], 0.2 * 3 / n)
        yield Row("mean, by question", f"F1-like, 3 of {n} answers above 0", "coverage", value, times)


def _groups(times: int) -> Iterator[Row]:
    rng = np.random.default_rng(2)
    alike = [
        (f"{name}, mean {mean}", sizes, (mean,) * len(sizes))
        for name, sizes in GROUPS.items()
        for mean in (0.5, 0.9, 0.97)
    ]
    for situation, sizes, means in (*alike, *UNLIKE):
        groups, truth = homes_of(sizes), float(np.mean(means))
        alone = np.zeros(groups.size, dtype=int)
        draws = (rng.random((times, groups.size)) < np.array(means)[groups]).astype(float)
        found = [estimate(values, alone, groups=groups).by_question for values in draws]  # type: ignore[arg-type]
        yield Row("mean of groups, by question", situation, "coverage", covered(found, truth), times)


def _histories(times: int) -> Iterator[Row]:
    rng = np.random.default_rng(3)
    usual = ((0.5, 0.0), (0.5, 0.02), (0.5, 0.1), (0.5, 0.3), (0.02, 0.02), (0.98, 0.1))
    cells = [(histories, *each) for histories in (5, 10, 20) for each in usual]
    for histories, mean, alike in [*cells, (5, 0.98, 0.3), (10, 0.98, 0.3), (20, 0.98, 0.3)]:
        homes = homes_of((LOCOMO * 2)[:histories])
        found = []
        for _ in range(times):
            luck = shares_by_history(rng, histories, mean, alike)[homes]
            found.append(estimate((rng.random(homes.size) < luck).astype(float), homes).by_case)  # type: ignore[arg-type]
        situation = f"{histories} LoCoMo histories, mean {mean}, ICC {alike}"
        yield Row("mean, by case", situation, "coverage", covered(found, mean), times)


def _few(times: int) -> Iterator[Row]:
    """Too few histories for an interval by case, and five histories with equal means."""
    rng = np.random.default_rng(4)
    cells = [(histories, mean, alike) for histories in (2, 3, 4) for mean in (0.5, 0.02) for alike in (0.0, 0.02, 0.1)]
    for histories, mean, alike in [*cells, (4, 0.9, 0.3), (5, 0.02, 0.3)]:
        homes = homes_of(LOCOMO[:histories])
        found = []
        for _ in range(times):
            luck = shares_by_history(rng, histories, mean, alike)[homes]
            ours = estimate((rng.random(homes.size) < luck).astype(float), homes)  # type: ignore[arg-type]
            found.append(preferred_interval(ours))
        situation = f"{histories} LoCoMo histories, mean {mean}, ICC {alike}"
        yield Row("mean, few or alike histories", situation, "coverage", covered(found, mean), times)


def _pairs(times: int) -> Iterator[Row]:
    rng = np.random.default_rng(5)
    for n in (20, 48, 100, 300):
        for won, lost in ((0.0, 0.02), (0.01, 0.01), (0.1, 0.02)):
            draws = rng.random((times, n))
            first, second = (draws < won).astype(float), (draws > 1 - lost).astype(float)
            found = [
                difference(one, two, ["c"] * n, test=False).by_question for one, two in zip(first, second, strict=True)
            ]
            situation = f"0/1, {n} questions, {won:.0%} won, {lost:.0%} lost"
            yield Row("paired difference, by question", situation, "coverage", covered(found, won - lost), times)
        gaps = rng.beta(2, 3, (times, n, 2))
        found = [difference(gap[:, 0], gap[:, 1], ["c"] * n, test=False).by_question for gap in gaps]
        yield Row("paired difference, by question", f"F1-like, {n} questions", "coverage", covered(found, 0.0), times)


def _pairs_by_case(times: int) -> Iterator[Row]:
    rng = np.random.default_rng(6)
    for histories in (5, 10, 20):
        homes = homes_of((LOCOMO * 2)[:histories])
        for alike in (0.0, 0.02, 0.1):
            found, significant = [], 0
            for _ in range(times):
                one, two = (
                    (rng.random(homes.size) < shares_by_history(rng, histories, 0.5, alike)[homes]).astype(float)
                    for _ in range(2)
                )
                gap = difference(one, two, homes, test=False)
                found.append(gap.by_case)
                significant += gap.p_by_case is not None and gap.p_by_case < 0.05
            situation = f"{histories} LoCoMo histories, ICC {alike}"
            yield Row("paired difference, by case", situation, "coverage", covered(found, 0.0), times)
            yield Row("paired difference, by case", situation, "size at 5 %", significant / times, times)
    for histories in (5, 10, 20):
        homes = homes_of((LOCOMO * 2)[:histories])
        significant = 0
        for _ in range(times):
            gap = (rng.exponential(0.05, histories) - 0.05)[homes] + rng.normal(0, 0.2, homes.size)
            p = difference(gap, np.zeros(homes.size), homes, test=False).p_by_case
            significant += p is not None and p < 0.05
        situation = f"{histories} LoCoMo histories with exponential effects"
        yield Row("paired difference, by case", situation, "size at 5 %", significant / times, times)


def _tests(times: int) -> Iterator[Row]:
    """The permutation test under the null hypothesis, and the t-test by case at the detectable difference."""
    rng = np.random.default_rng(7)
    for name, n in (("0/1", 48), ("0/1", 300), ("F1-like", 48)):
        gaps = rng.integers(-1, 2, (times, n)) if name == "0/1" else rng.beta(2, 3, (times, n, 2)) @ [1.0, -1.0]
        ps = [permutation_p(np.asarray(gap, dtype=float), flips=1000) or 0.0 for gap in gaps]
        yield Row(
            "p of a difference", f"{name}, {n} questions", "size at 5 %", float(np.mean(np.array(ps) < 0.05)), times
        )
    for histories in (5, 10):
        homes, within, between = homes_of([40] * histories), 0.4, 0.1
        error = ((between**2 + within**2 / 40) / histories) ** 0.5
        gap = detectable(Sampling(error, histories - 1))
        found = 0
        for _ in range(times):
            values = gap + rng.normal(0, between, histories)[homes] + rng.normal(0, within, homes.size)
            p = difference(values, np.zeros(homes.size), homes, test=False).p_by_case
            found += p is not None and p < 0.05
        situation = f"a true difference of that size, {histories} histories of 40 questions"
        yield Row("detectable difference", situation, "power at 5 %", found / times, times)
