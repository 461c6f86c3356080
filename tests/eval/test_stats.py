"""Intervals and tests: published intervals, closed forms, and coverage by simulation."""

from __future__ import annotations

import numpy as np
import pytest

from eval.stats import by_case, by_question, difference, estimate, permutation_p, stratified, wilson


def test_wilson_gives_the_intervals_that_segtreemem_prints() -> None:
    assert (round(wilson(1263, 1986).low, 3), round(wilson(1263, 1986).high, 3)) == (0.615, 0.657)
    assert (round(wilson(190, 300).low, 3), round(wilson(190, 300).high, 3)) == (0.577, 0.686)


def test_wilson_at_the_ends_stays_within_zero_and_one() -> None:
    assert wilson(0, 10).low == 0.0
    assert wilson(10, 10).high == 1.0


@pytest.mark.parametrize(("successes", "n"), [(1, 0), (3, 2), (-1, 5)])
def test_wilson_refuses_impossible_counts(successes: int, n: int) -> None:
    with pytest.raises(ValueError, match="successes"):
        wilson(successes, n)


@pytest.mark.parametrize("n", [3, 10, 17, 40, 300])
def test_the_interval_of_graded_scores_is_students(n: int) -> None:
    from scipy import stats

    values = np.random.default_rng(n).normal(5.0, 2.0, n)
    low, high = stats.t.interval(0.95, n - 1, values.mean(), values.std(ddof=1) / n**0.5)
    found = by_question(values)
    assert found is not None
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-5)


def test_scores_in_the_unit_interval_get_an_interval_within_it() -> None:
    found = by_question([0.0, 0.0, 0.0, 0.9])
    assert found is not None
    assert found.low == 0.0


def test_one_value_has_no_interval() -> None:
    assert by_question([0.5]) is None
    assert by_case([0.5, 0.7], ["a", "a"]) is None


def test_no_values_are_an_error_and_not_a_zero() -> None:
    with pytest.raises(ValueError, match="0 values"):
        estimate([], [])


def test_the_interval_by_case_covers_the_truth_where_the_one_by_question_does_not() -> None:
    rng = np.random.default_rng(1)
    hits = {"question": 0, "case": 0}
    for trial in range(150):
        luck = rng.normal(0.0, 0.2, 20)
        values = (0.5 + np.repeat(luck, 50) + rng.normal(0, 0.1, 1000)).tolist()
        clusters = [str(number) for number in np.repeat(np.arange(20), 50)]
        found = estimate(values, clusters, seed=trial)
        assert found.by_question is not None
        assert found.by_case is not None
        hits["question"] += found.by_question.low <= 0.5 <= found.by_question.high
        hits["case"] += found.by_case.low <= 0.5 <= found.by_case.high
    assert hits["case"] / 150 > 0.85
    assert hits["question"] / 150 < 0.5


def test_the_bootstrap_is_deterministic() -> None:
    values, clusters = [0.1, 0.5, 0.9, 0.3], ["a", "a", "b", "c"]
    assert by_case(values, clusters) == by_case(values, clusters)


def test_a_paired_difference_is_sharper_than_two_intervals() -> None:
    rng = np.random.default_rng(0)
    hard = rng.normal(0.5, 0.3, 400)
    found = difference((hard + 0.05 + rng.normal(0, 0.02, 400)).tolist(), hard.tolist(), ["c"] * 400)
    assert found.by_question is not None
    assert found.by_question.low > 0.04
    assert found.p is not None
    assert found.p < 0.001
    assert found.by_case is None


def test_the_permutation_test_is_uniform_when_there_is_no_difference() -> None:
    rng = np.random.default_rng(5)
    ps = [permutation_p(rng.normal(0, 1, 40), flips=500) or 0.0 for _ in range(200)]
    assert 0.02 <= float(np.mean(np.asarray(ps) < 0.1)) <= 0.18


def test_the_permutation_test_of_four_equal_gains_is_exact_within_its_draws() -> None:
    assert permutation_p(np.ones(4), flips=10_000) == pytest.approx(0.125, abs=0.02)


def test_no_difference_at_all_has_p_one() -> None:
    assert permutation_p(np.zeros(10)) == 1.0


def test_group_means_weigh_the_same_however_many_questions_they_hold() -> None:
    values = [1.0] * 90 + [0.0] * 10
    groups = ["big"] * 90 + ["small"] * 10
    assert stratified(values, groups, groups).mean == pytest.approx(0.5)
    assert estimate(values, groups).mean == pytest.approx(0.9)
