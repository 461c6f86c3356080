"""Intervals and tests: published intervals, closed forms, oracles, and coverage by simulation."""

from __future__ import annotations

import numpy as np
import pytest

from eval.statistics.stats import (
    MOST_FLIPS,
    Grouping,
    Interval,
    by_question,
    difference,
    estimate,
    holm,
    independent,
    jackknifed,
    permutation_p,
    preferred_interval,
    t_point,
    wilson,
)

pytestmark = pytest.mark.slow


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
    assert (found.low, found.high) == pytest.approx((low, high), abs=1e-9)


def test_scores_in_the_unit_interval_get_an_interval_within_it() -> None:
    found = by_question([0.0, 0.0, 0.0, 0.9])
    assert found is not None
    assert 0.0 < found.low < 0.225 < found.high < 1.0, "on the logit scale"


def test_one_value_has_no_interval() -> None:
    assert by_question([0.5]) is None


def test_no_values_are_an_error_and_not_a_zero() -> None:
    with pytest.raises(ValueError, match="0 values"):
        estimate([], [])


def test_questions_that_are_all_alike_have_an_interval_of_some_width() -> None:
    for values, groups in (([0.0] * 30, list("abcde") * 6), ([0.6] * 5, list("abcde")), ([1.0] * 9, list("abc") * 3)):
        found = estimate(values, ["one"] * len(values), groups=groups).by_question
        assert found is not None
        assert found.high - found.low > 0.1
        assert 0.0 <= found.low <= values[0] <= found.high <= 1.0
    alike = difference([1.0, 0.5] * 4, [1.0, 0.5] * 4, ["c"] * 8).by_question
    assert alike is not None
    assert -0.5 < alike.low < -0.1
    assert 0.1 < alike.high < 0.5


def test_the_variance_of_a_group_is_shrunk_towards_that_inside_all_groups() -> None:
    values, groups = np.array([[0.1, 0.3, 0.7, 0.8, 0.9]]), ["a"] * 2 + ["b"] * 3
    # Squares around the groups' means, 0.2 and 0.8; inside both groups there are 5 - 2 degrees of freedom.
    squares = [0.02, 0.02]
    pooled = sum(squares) / 3
    terms = [(own + 2 * pooled) / (count - 1 + 2) / count / 4 for own, count in zip(squares, (2, 3), strict=True)]
    error, freedom = independent(values, Grouping.of(["c"] * 5, groups))
    assert error[0] == pytest.approx(sum(terms) ** 0.5)
    assert freedom[0] == pytest.approx(min(4, sum(terms) ** 2 / (terms[0] ** 2 / 3 + terms[1] ** 2 / 4)))


def test_a_mean_of_groups_by_question_stays_within_zero_and_one() -> None:
    found = estimate([1.0] * 29 + [0.0], ["c"] * 30, groups=list("abc") * 10).by_question
    assert found is not None
    assert 0.75 < found.low < found.high < 1.0


@pytest.mark.parametrize("sizes", [(1, 2, 3, 20, 100), (5,) * 6, (10, 90)])
@pytest.mark.parametrize("mean", [0.9, 0.5])
def test_a_mean_of_groups_is_covered_by_its_interval_by_question(sizes: tuple[int, ...], mean: float) -> None:
    rng, groups = np.random.default_rng(len(sizes)), np.repeat(np.arange(len(sizes)), sizes)
    draws = (rng.random((TRIALS // 2, groups.size)) < mean).astype(float)
    found = [estimate(values, np.zeros(groups.size), groups=groups).by_question for values in draws]  # type: ignore[arg-type]
    assert covered(found, mean) >= 0.91


@pytest.mark.parametrize("n", [20, 48, 100])
def test_a_paired_difference_of_few_discordant_questions_is_covered(n: int) -> None:
    """Two in a hundred questions are lost, none is won: Student's interval covers .33, .62 and .86, Agresti and Min's 1, 1 and .86."""
    rng, zeros = np.random.default_rng(n), np.zeros(n)
    draws = (rng.random((TRIALS, n)) < 0.02).astype(float)
    found = [difference(zeros, gap, ["c"] * n, test=False).by_question for gap in draws]  # type: ignore[arg-type]
    assert covered(found, -0.02) >= 0.94


def test_no_interval_of_a_difference_of_scores_ends_beyond_one() -> None:
    all_won = difference([1.0] * 40, [0.0] * 40, ["c"] * 40, test=False).by_question
    lost = [float(n in (3, 14)) for n in range(40)]
    by_case = difference(lost, [1.0] * 40, [f"c{n % 6}" for n in range(40)], test=False).by_case
    assert all_won is not None
    assert by_case is not None
    assert (all_won.high, by_case.low) == (1.0, -1.0)


def test_the_interval_of_matched_proportions_is_that_of_agresti_and_min() -> None:
    gap = np.array([1.0] * 12 + [-1.0] * 4 + [0.0] * 34)
    found = difference(np.maximum(gap, 0.0), np.maximum(-gap, 0.0), ["c"] * 50, test=False).by_question  # type: ignore[arg-type]
    error = ((12.5 + 4.5) - (12.5 - 4.5) ** 2 / 52) ** 0.5 / 52
    assert found is not None
    assert (found.low, found.high) == pytest.approx((8 / 52 - t_point(49) * error, 8 / 52 + t_point(49) * error))


@pytest.mark.parametrize(("n", "mean"), [(30, 0.04), (96, 0.012), (300, 0.012)])
def test_graded_scores_near_zero_are_covered(n: int, mean: float) -> None:
    """Student's interval on the scores' own scale covers .84 to .91 of these."""
    rng = np.random.default_rng(n)
    draws = rng.beta(2, 3, (TRIALS, n)) * (rng.random((TRIALS, n)) < mean / 0.4)
    assert covered([by_question(values) for values in draws], mean) >= 0.93


# --- the interval by case -----------------------------------------------------------------------------------------------

TRIALS = 1200


def histories(
    rng: np.random.Generator, clusters: int, alike: float, mean: float = 0.6
) -> tuple[np.ndarray, np.ndarray]:
    """0/1 scores and the history of each: histories of unequal size, whose questions are alike by this intraclass correlation."""
    sizes = np.maximum(3, np.exp(rng.normal(3.0, 0.5, clusters)).astype(int))
    luck = np.full(clusters, mean)
    if alike:
        both = (1 - alike) / alike
        luck = rng.beta(mean * both, (1 - mean) * both, clusters)
    homes = np.repeat(np.arange(clusters), sizes)
    return (rng.random(homes.size) < luck[homes]).astype(float), homes


def covered(intervals: list[Interval | None], truth: float) -> float:
    return float(np.mean([one is not None and one.low <= truth <= one.high for one in intervals]))


@pytest.mark.parametrize("clusters", [5, 10, 20])
@pytest.mark.parametrize("alike", [0.0, 0.05, 0.2])
def test_the_interval_by_case_covers_the_truth_as_often_as_it_says(clusters: int, alike: float) -> None:
    rng = np.random.default_rng([clusters, round(100 * alike)])
    found = [estimate(*histories(rng, clusters, alike)) for _ in range(TRIALS)]  # type: ignore[arg-type]
    assert covered([one.by_case for one in found], 0.6) >= 0.94
    if alike == 0.2:  # the reason why it stands there
        assert covered([one.by_question for one in found], 0.6) < 0.75


@pytest.mark.parametrize("clusters", [5, 10, 20])
def test_shares_near_one_are_covered_as_well(clusters: int) -> None:
    """A symmetric interval covers .89 to .92 of these."""
    rng = np.random.default_rng(clusters)
    found = [estimate(*histories(rng, clusters, 0.1, mean=0.87)).by_case for _ in range(TRIALS)]  # type: ignore[arg-type]
    assert covered(found, 0.87) >= 0.94
    assert all(one is None or 0.0 <= one.low <= one.high <= 1.0 for one in found)


@pytest.mark.parametrize("clusters", [5, 10, 20])
@pytest.mark.parametrize("alike", [0.0, 0.2])
def test_a_mean_of_categories_is_covered_by_its_interval_by_case(clusters: int, alike: float) -> None:
    rng = np.random.default_rng([clusters, round(100 * alike)])
    found = []
    for _ in range(TRIALS):
        values, homes = histories(rng, clusters, alike)
        categories = rng.choice(3, values.size, p=[0.6, 0.3, 0.1])
        values = np.where(categories == 2, values * (rng.random(values.size) < 0.5), values)  # the rare one is hard
        found.append(estimate(values, homes, groups=categories).by_case)  # type: ignore[arg-type]
    assert covered(found, (0.6 + 0.6 + 0.3) / 3) >= 0.94


@pytest.mark.parametrize("clusters", [5, 10, 20])
def test_a_paired_difference_is_covered_by_its_interval_by_case(clusters: int) -> None:
    rng = np.random.default_rng(clusters)
    found = []
    for _ in range(TRIALS):
        first, homes = histories(rng, clusters, 0.1)
        luck = np.clip(rng.normal(0.6, 0.15, clusters), 0.2, 1.0)  # of the second system, which has its own
        second = (rng.random(homes.size) < luck[homes]).astype(float)
        found.append(difference(second, first, homes).by_case)  # type: ignore[arg-type]
    assert covered(found, 0.0) >= 0.94


def test_a_mean_of_histories_has_students_interval() -> None:
    from scipy import stats

    shares = np.array([4.0, 5.0, 7.0, 3.0, 5.5, 6.0])
    found = estimate(np.repeat(shares, 10), np.repeat(np.arange(6), 10), groups=np.repeat(np.arange(6), 10)).by_case  # type: ignore[arg-type]
    assert found is not None
    assert (found.low, found.high) == pytest.approx(stats.t.interval(0.95, 5, shares.mean(), stats.sem(shares)))


def test_a_statistic_that_is_no_mean_has_the_interval_of_a_mean_where_it_is_one() -> None:
    shares = np.array([0.4, 0.5, 0.7, 0.3, 0.55, 0.6])
    without = [float(np.delete(shares, place).mean()) for place in range(6)]
    found = jackknifed(float(shares.mean()), without, [10] * 6)
    assert found.by_case is not None
    expected = estimate(shares.tolist(), list("abcdef")).by_case
    assert expected is not None
    assert (found.by_case.low, found.by_case.high) == pytest.approx((expected.low, expected.high))
    assert (found.n, found.clusters, found.by_question) == (60, 6, None)
    assert jackknifed(0.5, [0.4, 0.5, 0.6, 0.5], [1] * 4).by_case is None  # four histories
    assert jackknifed(0.0, [0.0] * 9, [1] * 9).by_case is None  # which are all alike
    one_large = jackknifed(float(shares.mean()), without, [300, *[10] * 5]).by_case
    assert one_large is not None  # nearly one history: a single degree of freedom
    assert one_large.high - one_large.low > 3 * (found.by_case.high - found.by_case.low)
    edge = jackknifed(0.02, [0.0, 0.05, 0.0, 0.02, 0.01, 0.03], [1] * 6).by_case
    assert edge is not None
    assert 0.0 < edge.low < 0.02 < edge.high - 0.02, "a small product is skewed: cut at 0, its interval covered .87"


def test_the_jackknife_is_that_of_a_regression_on_a_constant() -> None:
    """Statsmodels knows clusters only without the correction for leverage; for equal sizes both are the same."""
    from statsmodels.regression.linear_model import OLS

    rng = np.random.default_rng(3)
    homes = np.repeat(np.arange(8), 25)
    gap = rng.normal(0.1, 1.0, 200) + np.repeat(rng.normal(0, 0.5, 8), 25)
    fitted = OLS(gap, np.ones(200)).fit(cov_type="HC0")
    clustered = fitted.get_robustcov_results("cluster", groups=homes, use_correction=False, use_t=True)
    found = difference(gap, np.zeros(200), homes)  # type: ignore[arg-type]
    assert found.sampling is not None
    assert found.sampling.error == pytest.approx(float(clustered.bse[0]) * (8 / 7) ** 0.5)
    assert found.sampling.freedom == pytest.approx(7)


def test_one_history_that_holds_most_questions_leaves_few_degrees_of_freedom() -> None:
    gap = np.random.default_rng(0).normal(0.0, 1.0, 1020).tolist()
    even = difference(gap, [0.0] * 1020, [str(number % 6) for number in range(1020)]).sampling
    uneven = difference(gap, [0.0] * 1020, ["large"] * 1000 + [str(number // 4) for number in range(20)]).sampling
    assert even is not None
    assert uneven is not None
    assert (even.freedom, uneven.freedom) == (pytest.approx(5), 1.0)


@pytest.mark.parametrize("clusters", [1, 2, 3, 4])
def test_fewer_than_five_histories_have_no_interval_by_case(clusters: int) -> None:
    values = [float(number % 3 == 0) for number in range(60)]
    homes = [str(number % clusters) for number in range(60)]
    assert estimate(values, homes).by_case is None
    assert estimate(values, homes, groups=homes).by_case is None
    gap = difference(values, [0.5] * 60, homes)
    assert (gap.by_case, gap.p_by_case, gap.clusters) == (None, None, clusters)
    assert gap.sampling is not None
    assert gap.sampling.freedom == 59


def test_histories_that_do_not_differ_have_no_interval_of_no_width() -> None:
    homes = [str(number % 6) for number in range(60)]
    assert estimate([0.0] * 60, homes).by_case is None
    assert estimate([0.1, 0.2] * 30, [str(number // 2 % 6) for number in range(60)]).by_case is None


@pytest.mark.parametrize("clusters", [2, 3, 4])
@pytest.mark.parametrize("alike", [0.0, 0.02, 0.1])
def test_few_histories_are_covered_by_a_cautious_interval(clusters: int, alike: float) -> None:
    rng = np.random.default_rng([clusters, round(100 * alike)])
    found = [preferred_interval(estimate(*histories(rng, clusters, alike))) for _ in range(TRIALS // 3)]  # type: ignore[arg-type]
    assert covered(found, 0.6) >= 0.95


def test_histories_that_are_alike_by_luck_are_not_taken_for_independent_questions() -> None:
    homes = [str(number // 40) for number in range(240)]
    ours = estimate([0.0] * 240, homes)
    shown = preferred_interval(ours)
    assert shown is not None
    assert shown == ours.cautious
    assert ours.by_question is not None
    assert shown.high > 2 * ours.by_question.high
    assert preferred_interval(estimate([2.0] * 240, homes)) is None, "no score, and no spread"


def test_the_points_of_students_t_are_those_of_scipy() -> None:
    from scipy import stats

    for freedom in (1.0, 2.5, 15, 16, 40, 1e4):
        assert t_point(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), abs=1e-9)


# --- paired comparisons -------------------------------------------------------------------------------------------------


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


def test_p_is_never_zero_where_no_random_flip_is_as_extreme() -> None:
    assert permutation_p(np.linspace(1.0, 2.0, 60)) == pytest.approx(1 / (MOST_FLIPS + 1), rel=1e-9)


def test_group_means_weigh_the_same_however_many_questions_they_hold() -> None:
    values = [1.0] * 90 + [0.0] * 10
    groups = ["big"] * 90 + ["small"] * 10
    weighed = estimate(values, groups, groups=groups)
    assert weighed.mean == pytest.approx(0.5)
    assert weighed.by_question is not None
    assert weighed.by_question.low < 0.5 < weighed.by_question.high, "not Wilson's of 90 in 100"
    assert estimate(values, groups).mean == pytest.approx(0.9)


def test_opposite_verdicts_give_the_exact_p_of_mcnemars_test() -> None:
    from scipy import stats

    gap = np.array([1.0] * 14 + [-1.0] * 4 + [0.0] * 100)
    assert permutation_p(gap) == pytest.approx(stats.binomtest(4, 18).pvalue, abs=1e-9)
    assert permutation_p(np.array([1.0] * 40)) == pytest.approx(2 * 0.5**40)  # which no 10,000 random flips could find


def test_holms_adjustment_is_that_of_statsmodels() -> None:
    from statsmodels.stats.multitest import multipletests

    ps = np.random.default_rng(0).beta(0.3, 1.0, 30).tolist()
    assert holm(ps) == pytest.approx(multipletests(ps, method="holm")[1].tolist(), abs=1e-9)


def test_holms_adjustment_by_hand_leaves_out_what_was_not_tested() -> None:
    assert holm([0.01, None, 0.04, 0.03]) == [pytest.approx(0.03), None, pytest.approx(0.06), pytest.approx(0.06)]


def test_a_difference_in_every_history_is_significant_by_case() -> None:
    homes = np.repeat(np.arange(6), 20)
    gap = difference(np.ones(120), np.repeat([0.5, 0.6, 0.4, 0.5, 0.55, 0.45], 20), homes)  # type: ignore[arg-type]
    assert gap.p_by_case is not None
    assert gap.p_by_case < 0.001
    assert gap.by_case is not None
    assert gap.by_case.low > 0.0
