"""Scores from a judge on all answers and a person on a random sample: right whatever the judge errs in, by question and by case."""

from __future__ import annotations

import numpy as np
import pytest

from eval.report.ratings import prediction_powered, rated_sample, sample_order
from eval.statistics.stats import t_point, wilson_of_share

KEYS = [(f"c{number % 8}", f"q{number}") for number in range(400)]
CASES = [case for case, _ in KEYS]


def rated(right: np.ndarray, n: int, rng: np.random.Generator) -> list[float | None]:
    chosen = set(rng.choice(right.size, n, replace=False).tolist())
    return [float(each) if place in chosen else None for place, each in enumerate(right)]


def test_a_judge_that_accepts_everything_leaves_the_mean_of_the_person() -> None:
    rng = np.random.default_rng(1)
    right = rng.random(400) < 0.4
    ratings = rated(right, 80, rng)
    score = prediction_powered([1.0] * 400, CASES, ratings)
    assert score.mean == pytest.approx(np.mean([each for each in ratings if each is not None]))
    assert (score.n, score.clusters) == (80, 8)


def test_a_judge_without_errors_leaves_its_own_mean_and_a_narrower_interval() -> None:
    rng = np.random.default_rng(2)
    right = rng.random(400) < 0.4
    ratings = rated(right, 80, rng)
    good, none = (prediction_powered(each.astype(float), CASES, ratings) for each in (right, np.ones(400)))
    assert abs(good.mean - right.mean()) < 0.03
    assert good.by_question is not None
    assert none.by_question is not None
    assert good.by_question.high - good.by_question.low < 0.6 * (none.by_question.high - none.by_question.low)


def test_the_judge_weighs_less_the_more_answers_are_rated() -> None:
    judged = [*np.tile([1.0, 0.0, 1.0, 1.0], 5), *np.ones(20)]
    ratings = [*np.tile([1.0, 0.0, 0.0, 1.0], 5), *[None] * 20]
    # Covariance with the person 1/8, variance of all verdicts 7/64; half of the answers are rated.
    weight = (1 / 8) / (7 / 64) / (1 + 20 / 40)
    assert prediction_powered(judged, CASES[:40], ratings).mean == pytest.approx(1 / 2 + weight * (7 / 8 - 3 / 4))


@pytest.mark.parametrize(("truth", "accepts_wrong"), [(0.3, 0.45), (0.02, 0.5), (0.98, 0.25)])
def test_the_intervals_cover_the_truth_whatever_the_judge_accepts(truth: float, accepts_wrong: float) -> None:
    rng, rounds, covered = np.random.default_rng(3), 150, 0
    for _ in range(rounds):
        right = rng.random(400) < truth
        judged = rng.random(400) < np.where(right, 0.9, accepts_wrong)
        interval = prediction_powered(judged.astype(float), CASES, rated(right, 60, rng)).by_case
        covered += interval is not None and interval.low <= truth <= interval.high
    assert covered >= 0.94 * rounds


@pytest.mark.parametrize(("sizes", "freedom"), [([10] * 8, 7.0), ([80, *[4] * 5], 1.0)])
def test_the_interval_by_case_leaves_out_each_history_and_uneven_histories_leave_one_degree_of_freedom(
    sizes: list[int], freedom: float
) -> None:
    """With a judge that accepts everything, the score is the mean of the person, who accepts every other history."""
    ratings = np.repeat([float(history % 2) for history in range(len(sizes))], sizes)
    cases = np.repeat([f"c{history}" for history in range(len(sizes))], sizes)
    score = prediction_powered([1.0] * len(cases), cases.tolist(), ratings.tolist())
    without = np.array([ratings[cases != case].mean() for case in dict.fromkeys(cases)])
    variance = ((without - ratings.mean()) ** 2).sum() * (len(sizes) - 1) / len(sizes)
    smooth = (ratings.sum() + 2) / (len(cases) + 4)
    expected = wilson_of_share(float(ratings.mean()), smooth * (1 - smooth) / variance, t_point(freedom))
    assert score.by_case is not None
    assert (score.by_case.low, score.by_case.high) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize(
    ("right", "variance"),
    [
        (
            [1.0, 0.0] * 20,
            40 / 4 / 39 / 40,
        ),  # a judge that always agrees, and all answers rated: that of the mean of the ratings
        ([1.0] * 40, 2 / 44 / 40),  # no difference was seen, and two are added
    ],
)
def test_the_interval_by_question_is_that_of_the_ratings_or_of_two_more_differences(
    right: list[float], variance: float
) -> None:
    score = prediction_powered(right, CASES[:40], right)
    mean, smooth = sum(right) / 40, (sum(right) + 2) / 44
    expected = wilson_of_share(mean, smooth * (1 - smooth) / variance, t_point(39))
    assert score.by_question is not None
    assert (score.by_question.low, score.by_question.high) == pytest.approx((expected.low, expected.high))


def test_below_five_histories_there_is_no_interval_by_case_and_below_twenty_ratings_no_score() -> None:
    right = np.arange(400) % 2 == 0
    score = prediction_powered(right.astype(float), ["a"] * 400, rated(right, 40, np.random.default_rng(4)))
    assert score.by_case is None
    assert score.by_question is not None
    with pytest.raises(ValueError, match="19 ratings of the random sample; at least 20"):
        prediction_powered(right.astype(float), CASES, rated(right, 19, np.random.default_rng(4)))


def test_every_beginning_of_the_order_is_a_sample_and_ratings_after_a_gap_are_left_out() -> None:
    order = sample_order(KEYS)
    assert order == sample_order(reversed(KEYS))
    assert sorted(order) == sorted(KEYS)
    assert order[:3] == [("c5", "q333"), ("c1", "q377"), ("c5", "q45")], (
        "as in the sheets that people have already begun"
    )
    assert [key for key in order if key in set(KEYS[:50])] == sample_order(KEYS[:50])
    ratings = {key: 1.0 for place, key in enumerate(order) if place < 30 or 40 < place < 60}
    assert list(rated_sample(ratings, KEYS)) == order[:30]
