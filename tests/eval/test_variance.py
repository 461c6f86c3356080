"""Variance components: those of statsmodels' analysis of variance, unbiased for histories of unequal size, honest where merged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2

from eval.statistics import variance
from eval.statistics.power import detectable
from eval.statistics.stats import Sampling
from eval.statistics.variance import (
    PARTS,
    Components,
    Design,
    Tokens,
    cheapest,
    components,
    contributions,
    detects,
    doubled,
    mean_squares,
    paired,
    planned_for,
    within_history,
)

TRUE = {"history": 0.3, "question": 0.8, "build": 0.5, "answer": 0.4, "judge": 0.2}
"""Standard deviations of simulated effects."""


def simulated(
    rng: np.random.Generator, sizes: Sequence[int], builds: int, repeats: int, **spread: float
) -> dict[tuple[str, str], np.ndarray]:
    sd = {**TRUE, **spread}
    draws: dict[tuple[str, str], np.ndarray] = {}
    for history, size in enumerate(sizes):
        level, by_build = rng.normal(0, sd["history"]), rng.normal(0, sd["build"], builds)
        own = rng.normal(0, sd["question"], size)[:, None] + by_build + rng.normal(0, sd["answer"], (size, builds))
        scores = level + own[:, :, None] + rng.normal(0, sd["judge"], (size, builds, repeats))
        draws |= {(f"h{history}", f"q{question}"): array for question, array in enumerate(scores)}
    return draws


@pytest.mark.slow
def test_mean_squares_are_those_of_statsmodels_and_the_variances_follow_by_hand() -> None:
    pandas, formula = pytest.importorskip("pandas"), pytest.importorskip("statsmodels.formula.api")
    anova_lm = pytest.importorskip("statsmodels.stats.anova").anova_lm
    histories, size, builds, repeats = 4, 3, 3, 2
    draws = simulated(np.random.default_rng(3), [size] * histories, builds, repeats)
    rows = [
        {"h": h, "q": q, "b": b, "y": value}
        for (h, q), array in draws.items()
        for b, own in enumerate(array)
        for value in own
    ]
    fitted = formula.ols("y ~ C(h) + C(h):C(q) + C(h):C(b) + C(h):C(q):C(b)", pandas.DataFrame(rows)).fit()
    theirs = anova_lm(fitted, typ=1)["mean_sq"]
    named = dict(zip(PARTS, ["C(h)", "C(h):C(q)", "C(h):C(b)", "C(h):C(q):C(b)", "Residual"], strict=True))
    blocks = [np.stack([array for (name, _), array in draws.items() if name == f"h{h}"]) for h in range(histories)]
    ours = mean_squares(blocks, list(map(within_history, blocks)))
    assert {part: ours[part] for part in PARTS} == pytest.approx(
        {part: theirs[named[part]] for part in PARTS}, rel=1e-9
    )
    ms = {part: float(theirs[named[part]]) for part in PARTS}
    by_hand = {
        "judge": ms["judge"],
        "answer": (ms["answer"] - ms["judge"]) / repeats,
        "build": (ms["build"] - ms["answer"]) / (size * repeats),
        "question": (ms["question"] - ms["answer"]) / (builds * repeats),
        "history": (ms["history"] - ms["question"] - ms["build"] + ms["answer"]) / (size * builds * repeats),
    }
    assert components(draws).variances == pytest.approx(by_hand, rel=1e-9)


def test_a_history_is_summed_a_few_times_and_not_once_for_each_history_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    summed: list[np.ndarray] = []
    own = variance.within_history
    monkeypatch.setattr(variance, "within_history", lambda block: summed.append(block) or own(block))
    components(simulated(np.random.default_rng(4), [2] * 40, 2, 2))
    assert len(summed) <= 2 * 40


@pytest.mark.slow
def test_the_variances_are_unbiased_where_histories_differ_in_size() -> None:
    rng, sizes = np.random.default_rng(5), [1, 1, 2, 3, 4, 25]
    found = [components(simulated(rng, sizes, 3, 2, history=1.0)).variances for _ in range(225)]
    for part in PARTS:
        values = np.array([each[part] for each in found], dtype=float)
        assert values.mean() == pytest.approx({**TRUE, "history": 1.0}[part] ** 2, abs=4 * values.std() / 15)


def test_the_interval_of_the_variance_of_builds_adds_the_distances_of_both_mean_squares() -> None:
    blocks, squares = [np.zeros((4, 3, 2))] * 6, {"build": 0.9, "answer": 0.5}
    builds, answers = chi2(6 * 2), chi2(6 * 3 * 2)
    tail, value = 0.025, (0.9 - 0.5) / 8
    interval = variance._of_few(blocks, squares, "build", value, tail)
    # The least variance has the fewest builds' and the most answers' squares, and the other way round.
    least = [0.9 / 8 * (1 - 12 / builds.ppf(1 - tail)), 0.5 / 8 * (36 / answers.ppf(tail) - 1)]
    most = [0.9 / 8 * (12 / builds.ppf(tail) - 1), 0.5 / 8 * (1 - 36 / answers.ppf(1 - tail))]
    assert interval.low == pytest.approx(max(0.0, value - np.hypot(*least)))
    assert interval.high == pytest.approx(value + np.hypot(*most))


def test_the_interval_of_the_variance_of_histories_takes_off_questions_and_builds_and_gives_back_answers() -> None:
    """Of six histories of four questions in three builds, graded twice: each mean square counts a 24th, with its own degrees of freedom."""
    blocks, squares = [np.zeros((4, 3, 2))] * 6, {"history": 2.0, "question": 0.7, "build": 0.9, "answer": 0.5}
    interval = variance._of_few(blocks, squares, "history", 0.2, 0.025)
    least, most = [], []
    for name, freedom, sign in (("history", 5, 1), ("question", 18, -1), ("build", 12, -1), ("answer", 36, 1)):
        down, up = (squares[name] / 24 * (freedom / chi2(freedom).ppf(tail) - 1) for tail in (0.975, 0.025))
        least.append(down if sign > 0 else up)
        most.append(up if sign > 0 else down)
    assert interval.low == pytest.approx(max(0.0, 0.2 - np.linalg.norm(least)))
    assert interval.high == pytest.approx(0.2 + np.linalg.norm(most))


@pytest.mark.slow
def test_a_source_that_does_nothing_gets_nothing_and_one_that_does_everything_gets_all(
    subtests: pytest.Subtests,
) -> None:
    rng = np.random.default_rng(8)
    for part in PARTS:
        with subtests.test(part=part):
            only = simulated(rng, [5] * 30, 3, 2, **{each: float(each == part) for each in PARTS})
            parts = components(only)
            assert parts.positive(part) == pytest.approx(1.0, rel=0.5)
            assert all(parts.positive(each) < 0.3 for each in PARTS if each != part)


@pytest.mark.slow
def test_what_was_drawn_once_stays_in_the_effect_above_it(subtests: pytest.Subtests) -> None:
    rng = np.random.default_rng(9)
    everything = sum(value**2 for value in TRUE.values())
    expected = {
        (3, 1): {"judge"},
        (1, 3): {"build", "answer"},
        (1, 1): {"build", "answer", "judge"},
    }
    for (builds, repeats), unknown in expected.items():
        with subtests.test(builds=builds, repeats=repeats):
            parts = components(simulated(rng, [20] * 30, builds, repeats))
            assert {part for part in PARTS if parts.variances[part] is None} == unknown
            assert parts.total == pytest.approx(everything, rel=0.2)
    alone = components(simulated(rng, [1] * 900, 3, 2))
    assert {part for part in PARTS if alone.variances[part] is None} == {"history", "build"}
    assert alone.positive("answer") == pytest.approx(TRUE["build"] ** 2 + TRUE["answer"] ** 2, rel=0.2)


@pytest.mark.slow
def test_intervals_cover_the_true_variance_and_need_five_histories() -> None:
    rng, covered = np.random.default_rng(11), dict.fromkeys(PARTS, 0)
    for _ in range(60):
        parts = components(simulated(rng, [4, 5, 6, 7, 8] * 3, 3, 2))
        for part in PARTS:
            interval = parts.intervals[part]
            assert interval is not None
            covered[part] += interval.low <= TRUE[part] ** 2 <= interval.high
    assert min(covered.values()) / 60 >= 0.8  # a variance is skewed: 85 to 95 % in longer simulations
    assert set(components(simulated(rng, [9] * 4, 3, 2)).intervals.values()) == {None}


@pytest.mark.slow
@pytest.mark.parametrize(("sizes", "level"), [([12] * 10, 0.3), ([6, 9, 12, 15, 18] * 2, 1.0)])
def test_ten_histories_are_enough_for_an_interval_of_their_variance(sizes: list[int], level: float) -> None:
    rng, rounds, covered = np.random.default_rng(3), 200, 0
    for _ in range(rounds):
        interval = components(simulated(rng, sizes, 3, 2, history=level)).intervals["history"]
        assert interval is not None
        covered += interval.low <= level**2 <= interval.high
    assert covered / rounds >= 0.92


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [[12] * 10, [40, *[8] * 9]])
def test_two_builds_of_ten_histories_are_enough_for_an_interval_of_their_variance(sizes: list[int]) -> None:
    rng, rounds, covered = np.random.default_rng(3), 200, 0
    for _ in range(rounds):
        interval = components(simulated(rng, sizes, 2, 1)).intervals["build"]
        assert interval is not None
        covered += interval.low <= TRUE["build"] ** 2 <= interval.high
    assert covered / rounds >= 0.92


def test_a_paired_difference_has_no_question_effect_that_both_memories_share() -> None:
    rng = np.random.default_rng(12)
    shared = {key: array[:, :1].mean() for key, array in simulated(rng, [20] * 10, 1, 1).items()}
    first, second = (
        {key: array + shared[key] * 3 for key, array in simulated(rng, [20] * 10, builds, 2, question=0.0).items()}
        for builds in (2, 3)
    )
    gaps = paired(first, second)
    assert {array.shape for array in gaps.values()} == {(2, 2)}
    assert components(first).positive("question") > 3
    assert components(gaps).positive("question") < 0.1
    assert paired(first, {}) == {}


def test_damaged_draws_are_refused() -> None:
    with pytest.raises(ValueError, match="two questions"):
        components({("h", "q"): np.ones((2, 2))})
    with pytest.raises(ValueError, match="two questions alike"):
        components({("h", "a"): np.ones((2, 2)), ("h", "b"): np.ones((2, 1))})


PLANNED = Components(
    Design(10, 100, 2, 2),
    0.5,
    {"history": 0.001, "question": 0.1, "build": 0.02, "answer": 0.05, "judge": 0.04},
    dict.fromkeys(PARTS),
)
COSTS = Tokens(build=50_000, answer=1_000, judge=500)


@pytest.mark.slow
def test_the_error_of_a_design_is_that_of_simulated_experiments() -> None:
    rng, design = np.random.default_rng(13), Design(8, 5, 2, 2)
    means = [np.mean([array.mean() for array in simulated(rng, [5] * 8, 2, 2).values()]) for _ in range(600)]
    parts = Components(design, 0.0, {part: value**2 for part, value in TRUE.items()}, dict.fromkeys(PARTS))
    predicted = sum(contributions(parts, design).values())
    assert np.var(means) == pytest.approx(predicted, rel=0.2)
    assert detects(parts, design) == pytest.approx(detectable(Sampling(predicted**0.5, 7)))


def test_designs_are_as_uneven_as_the_data() -> None:
    """The error of a mean over histories of unequal size is that of simulated experiments, and the test has fewer degrees of freedom."""
    rng, sizes = np.random.default_rng(14), [40] + [3] * 9
    parts = components(simulated(rng, sizes, 2, 2))
    assert parts.evenness == pytest.approx(67**2 / (40**2 + 9 * 9) / 10)
    truth = replace(parts, variances={part: value**2 for part, value in TRUE.items()})
    predicted = sum(contributions(truth, truth.design).values())
    means = [np.mean([array.mean() for array in simulated(rng, sizes, 2, 2).values()]) for _ in range(600)]
    assert np.var(means) == pytest.approx(predicted, rel=0.2)
    assert detects(truth, truth.design) == pytest.approx(detectable(Sampling(predicted**0.5, 10 * parts.evenness - 1)))
    assert components(simulated(rng, [5] * 8, 2, 2)).evenness == 1.0


def test_below_five_histories_they_are_no_sample() -> None:
    few = Design(4, 100, 2, 2)
    by_hand = {"history": 0.0, "question": 0.1 / 400, "build": 0.02 / 8, "answer": 0.05 / 800, "judge": 0.04 / 1600}
    assert contributions(PLANNED, few) == pytest.approx(by_hand)
    assert contributions(PLANNED, Design(5, 100, 2, 2))["history"] == pytest.approx(0.0002)
    assert detects(PLANNED, Design(1, 1, 1, 1)) == float("inf")


@pytest.mark.slow
def test_the_proposed_design_detects_the_wish_and_none_that_is_cheaper_does() -> None:
    chosen = cheapest(PLANNED, 0.1, COSTS, 10, 40)
    assert chosen is not None
    assert detects(PLANNED, chosen) <= 0.1
    assert chosen.histories >= 5
    for histories in range(5, 11):
        for questions in (5, 10, 15, 20, 25, 30, 35, 40):
            for builds in range(1, 11):
                other = Design(histories, questions, builds, 1)
                if COSTS.of(other) < COSTS.of(chosen):
                    assert detects(PLANNED, other) > 0.1
    assert cheapest(PLANNED, 0.001, COSTS, 10, 40) is None
    alone = cheapest(PLANNED, 0.1, COSTS, 4, 400)
    assert alone is not None
    assert alone.histories < 5
    assert cheapest(PLANNED, 0.5, COSTS, 1, 400) == Design(1, 25, 1, 1)


def test_another_build_is_proposed_only_where_builds_differ() -> None:
    steady = Components(PLANNED.design, 0.5, {**PLANNED.variances, "build": 0.0, "answer": None}, PLANNED.intervals)
    assert [name for name, _ in doubled(steady)] == ["histories", "questions", "repeats"]
    chosen = cheapest(steady, 0.1, COSTS, 10, 40)
    assert chosen is not None
    assert chosen.builds == 1
    assert COSTS.of(Design(2, 10, 3, 2)) == 2 * (3 * 50_000 + 30 * (1_000 + 2 * 500))


def test_a_plan_allows_for_a_pilot_that_was_lucky() -> None:
    rng = np.random.default_rng(14)
    parts = components(simulated(rng, [10] * 10, 2, 2))
    design = Design(8, 10, 2, 1)
    assert planned_for(parts, design) > 1.1 * detects(parts, design)
    assert planned_for(replace(parts, upper={}), design) == detects(parts, design)
    wished = 1.05 * detects(parts, Design(10, 10, 10, 5))
    assert cheapest(parts, wished, COSTS, 10, 10) is None, "by the estimate alone a design is proposed"
    assert cheapest(replace(parts, upper={}), wished, COSTS, 10, 10) is not None
    assert components(simulated(rng, [9] * 4, 3, 2)).upper == dict.fromkeys(PARTS)
