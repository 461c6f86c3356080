"""Curves of score against tokens: bands that cover, areas by hand, rows that fall short, and when a build has paid for itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.analysis.budgets import (
    LEAST_SAVING,
    AtBudget,
    Expense,
    Needed,
    area_gap,
    band,
    break_even,
    curve,
    tokens_for,
    tokens_within,
    weights,
)
from eval.report.budgets import NEVER, SHORT, BudgetCurve, Panel, costs_text, curve_points, scores_text
from eval.statistics.stats import estimate

BUDGETS = (1000, 2000, 4000)
KEYS = [(f"case-{number % 6}", f"q{number}") for number in range(30)]
HOMES = {key: key[0] for key in KEYS}


def at(budget: int, score: float, tokens: int | None = None) -> AtBudget:
    return AtBudget(budget, dict.fromkeys(KEYS, tokens or budget), dict.fromkeys(KEYS, score))


@pytest.mark.slow
def test_the_band_covers_the_true_curve_at_all_budgets_at_once(subtests: pytest.Subtests) -> None:
    truth, samples = np.array([0.3, 0.5, 0.6]), 200
    rng = np.random.default_rng(1)
    for name, clusters in {"questions": 1, "histories": 40}.items():
        with subtests.test(by=name):
            covered = 0
            for _ in range(samples):
                homes = [str(number % clusters) for number in range(160)]
                tilt = 0.0 if clusters == 1 else rng.normal(0, 0.08, clusters)[np.arange(160) % clusters][:, None]
                scores = (rng.random((160, 1)) < truth + tilt).astype(float)
                found = band(scores, homes)
                assert found is not None
                covered += all(each.low <= value <= each.high for each, value in zip(found, truth, strict=True))
            assert covered / samples >= 0.92


@pytest.mark.slow
@pytest.mark.parametrize("clusters", [5, 10])
def test_the_band_of_few_histories_covers_scores_near_zero_as_well(clusters: int) -> None:
    """A widened bootstrap covers .67 to .9 of these."""
    truth, rng, covered = np.array([0.03, 0.06, 0.1]), np.random.default_rng(clusters), 0
    homes = [str(number // 40) for number in range(40 * clusters)]
    for _ in range(200):
        luck = rng.beta(truth * 19, (1 - truth) * 19, (clusters, 3)).repeat(40, axis=0)
        found = band((rng.random((40 * clusters, 1)) < luck).astype(float), homes)
        assert found is not None
        covered += all(each.low <= value <= each.high for each, value in zip(found, truth, strict=True))
    assert covered / 200 >= 0.92


def test_the_band_is_wider_by_history_where_questions_of_a_history_are_alike_and_none_for_one_question() -> None:
    scores = np.repeat([[0.0], [1.0], [0.0], [1.0], [1.0], [0.0]], 10, axis=0)
    homes = [str(number // 10) for number in range(60)]
    alike, apart = band(scores, homes), band(scores, [str(number) for number in range(60)])
    assert alike is not None
    assert apart is not None
    assert alike[0].high - alike[0].low > 2 * (apart[0].high - apart[0].low)
    assert band(scores[:1], homes[:1]) is None


def test_the_area_is_the_mean_height_on_the_logarithmic_axis() -> None:
    assert weights(BUDGETS).tolist() == pytest.approx([0.25, 0.5, 0.25])
    assert weights([500]).tolist() == [1.0]
    rising = curve([at(4000, 0.8), at(1000, 0.2), at(2000, 0.4)], HOMES)
    assert rising is not None
    assert rising.means == pytest.approx((0.2, 0.4, 0.8))
    assert rising.area().mean == pytest.approx(0.25 * 0.2 + 0.5 * 0.4 + 0.25 * 0.8)
    with pytest.raises(ValueError, match="ascend"):
        weights([1000, 1000])


def test_areas_are_compared_question_by_question_at_the_same_budgets_only() -> None:
    noisy = {key: float(place % 2) for place, key in enumerate(KEYS)}
    better = {key: min(1.0, value + 0.1) for key, value in noisy.items()}
    tokens = dict.fromkeys(KEYS, 1000)
    first, second = (
        curve([AtBudget(1000, tokens, scores), AtBudget(2000, tokens, scores)], HOMES) for scores in (better, noisy)
    )
    assert first is not None
    assert second is not None
    gap = area_gap(first, second)
    assert gap is not None
    assert gap.mean == pytest.approx(0.05)
    alone = estimate(list(noisy.values()), [key[0] for key in KEYS]).by_question
    assert gap.by_question is not None
    assert alone is not None
    assert gap.by_question.high - gap.by_question.low < (alone.high - alone.low) / 4
    other = curve([AtBudget(1000, tokens, noisy)], HOMES)
    assert other is not None
    assert area_gap(first, other) is None
    apart = [
        curve([replace(at(each, 0.5), scores=dict.fromkeys(keys, 0.5)) for each in BUDGETS], HOMES)
        for keys in (KEYS[:15], KEYS[15:])
    ]
    assert area_gap(*apart) is None  # type: ignore[arg-type]  # no question in common


def test_a_curve_weighs_groups_as_the_column_does() -> None:
    """One question of the first group is right and all of the second are wrong: by group half is right, by question a thirtieth."""
    scores = {key: float(place == 0) for place, key in enumerate(KEYS)}
    groups = {key: "first" if place == 0 else "second" for place, key in enumerate(KEYS)}
    places = [AtBudget(budget, dict.fromkeys(KEYS, budget), scores) for budget in BUDGETS]
    weighed, plain = curve(places, HOMES, groups), curve([at(budget, 0.0) for budget in BUDGETS], HOMES, groups)
    assert weighed is not None
    assert plain is not None
    assert weighed.means == pytest.approx((0.5,) * 3)
    assert weighed.area().mean == pytest.approx(0.5)
    gap, whole = area_gap(weighed, plain), estimate([*scores.values()], [*HOMES.values()], groups=[*groups.values()])
    assert gap is not None
    assert gap.mean == pytest.approx(0.5)
    assert weighed.band is not None
    assert whole.by_case is not None
    assert all(each.low <= whole.by_case.low < 0.5 < whole.by_case.high <= each.high for each in weighed.band)
    assert tokens_within(dict.fromkeys(KEYS, 0.9), weighed) == Needed(1000.0, None)
    fewer = curve([replace(at(each, 0.0), scores=dict.fromkeys(KEYS[:12], 0.0)) for each in BUDGETS], HOMES, groups)
    assert fewer is not None
    shared = area_gap(weighed, fewer)
    assert shared is not None
    assert (shared.n, shared.mean) == (12, pytest.approx(0.5)), "groups of the common questions alone"


def test_questions_that_are_not_scored_at_every_budget_are_left_out() -> None:
    fewer = replace(at(2000, 1.0), scores=dict.fromkeys(KEYS[:12], 1.0))
    drawn = curve([at(1000, 0.5), fewer], HOMES)
    assert drawn is not None
    assert drawn.questions == tuple(KEYS[:12])
    panel = Panel("LoCoMo: F1", [BudgetCurve("BM25", drawn)], "BM25", estimate([1.0] * 3, ["a", "b", "c"]))
    rows = [line.split(" | ") for line in scores_text(panel).splitlines() if line.startswith("| ")]
    assert [row[-1] for row in rows] == ["n |", "12 |", "3 |"]
    assert curve([at(1000, 0.5), replace(fewer, scores={})], HOMES) is None


def test_a_row_more_than_two_percent_below_the_budget_is_marked_open_and_has_no_area() -> None:
    assert not at(1000, 0.5, 980).short
    assert at(1000, 0.5, 979).short
    full, starved = curve([at(1000, 0.5), at(2000, 0.6)], HOMES), curve([at(1000, 0.5), at(2000, 0.6, 1200)], HOMES)
    assert full is not None
    assert starved is not None
    panel = Panel("LoCoMo: F1", [BudgetCurve("BM25", full), BudgetCurve("Tiny", starved)], "BM25", None)
    lines = {line.split(" | ")[0].strip("| "): line for line in scores_text(panel).splitlines()}
    assert SHORT not in lines["BM25"]
    assert f"{SHORT}: 1,200 tokens, 0% of the questions fill it | {SHORT} | –" in lines["Tiny"]
    points = [(point.series, point.x, point.label) for point in curve_points(panel)]
    assert points[-2:] == [("Tiny", 1000.0, ""), ("Tiny", 1200.0, SHORT)]
    assert full.band is not None
    heights = [(mean, each.low, each.high) for mean, each in zip(full.means, full.band, strict=True)]
    assert [(point.y, point.low, point.high) for point in curve_points(panel)[:2]] == heights


@given(*(st.floats(0.0, 5.0, allow_nan=False) for _ in range(5)))
def test_the_break_even_is_the_first_number_of_questions_that_costs_no_more(
    build: float, question: float, first: float, later: float, other_build: float
) -> None:
    ours, other = Expense(build, question, question), Expense(other_build, first, later)
    questions = break_even(ours, other)
    if questions is None:
        assert ours.of(1) > other.of(1)
        assert ours.later >= other.later * (1 - LEAST_SAVING) - 1e-12
    else:
        assert ours.of(questions) <= other.of(questions) * (1 + 1e-9) + 1e-9
        assert questions == 1 or ours.of(questions - 1) >= other.of(questions - 1) * (1 - 1e-9)


def test_a_build_of_one_dollar_is_paid_off_later_where_the_provider_caches_the_history() -> None:
    memory = Expense(build=1.0, first=0.01, later=0.01)
    assert break_even(memory, Expense(0.0, 0.11, 0.11)) == 10
    assert break_even(memory, Expense(0.0, 0.11, 0.06)) == 19  # 1 + .01 n against .11 + .06 (n - 1): from 19 on
    assert break_even(memory, Expense(0.0, 0.11, 0.01)) is None


def test_the_reference_s_tokens_for_a_score_are_read_off_its_curve() -> None:
    assert tokens_for(0.4, BUDGETS, [0.2, 0.4, 0.6]) == pytest.approx(2000)
    assert tokens_for(0.5, BUDGETS, [0.2, 0.4, 0.6]) == pytest.approx(2000 * 2**0.5)
    assert tokens_for(0.1, BUDGETS, [0.2, 0.4, 0.6]) == 1000
    assert tokens_for(0.7, BUDGETS, [0.2, 0.4, 0.6]) is None


def test_costs_say_when_a_memory_beats_the_whole_history_and_the_reference_at_the_same_score() -> None:
    plain, rich = curve([at(1000, 0.2), at(4000, 0.4)], HOMES), curve([at(1000, 0.3), at(4000, 0.9)], HOMES)
    assert plain is not None
    assert rich is not None
    rows = [
        BudgetCurve("BM25", plain, [Expense(0.0, 0.001, 0.001), Expense(0.0, 0.004, 0.004)]),
        BudgetCurve("Mine", rich, [Expense(0.3, 0.001, 0.001), Expense(0.3, 0.004, 0.004)]),
        BudgetCurve("Unpriced", rich, [None, None]),
    ]
    panel = Panel("LoCoMo: F1", rows, "BM25", None, 20_000, Expense(0.0, 0.02, 0.011))
    table = [[part.strip() for part in line.split("|")[1:-1]] for line in costs_text(panel).splitlines()[4:] if line]
    assert table[2][4:] == ["16", "30", NEVER, "300 [300, 300] (2,000 [2,000, 2,000] tokens)"]
    assert table[3][4:] == ["19", "42", NEVER, "score not reached [score not reached, score not reached]"]
    assert table[4][2] == "price unknown"


def test_a_gain_in_a_few_histories_alone_leaves_the_tokens_for_a_score_open() -> None:
    """By question the gain is certain; by case, the histories differ too much."""
    gains = dict(zip(dict.fromkeys(HOMES.values()), (0.4, 0.4, 0.4, 0.0, 0.0, -0.4), strict=True))
    scores = {key: 0.5 + gains[home] for key, home in HOMES.items()}
    drawn = curve([AtBudget(size, dict.fromkeys(KEYS, size), scores) for size in BUDGETS], HOMES)
    assert drawn is not None
    assert tokens_within(dict.fromkeys(KEYS, 0.5), drawn) == Needed(pytest.approx(1000), None)
    singly = curve([AtBudget(size, dict.fromkeys(KEYS, size), scores) for size in BUDGETS], dict.fromkeys(KEYS, "one"))
    assert singly is not None
    assert tokens_within(dict.fromkeys(KEYS, 0.5), singly) == Needed(pytest.approx(1000), pytest.approx(1000))
    assert tokens_within(dict.fromkeys(KEYS[:1], 0.5), drawn) is None


@pytest.mark.slow
def test_the_tokens_for_a_score_lie_in_their_interval_and_it_is_open_where_the_score_may_not_be_reached() -> None:
    rng, homes, covered = np.random.default_rng(2), {}, 0
    keys = [(f"case-{number % 8}", f"q{number}") for number in range(240)]
    homes = {key: key[0] for key in keys}
    open_ends = 0
    for _ in range(60):
        luck = dict(zip(sorted(set(homes.values())), rng.normal(0, 0.05, 8), strict=True))
        places = [
            AtBudget(size, dict.fromkeys(keys, size), {key: float(rng.random() < share + luck[key[0]]) for key in keys})
            for size, share in zip(BUDGETS, (0.3, 0.4, 0.5), strict=True)
        ]
        drawn = curve(places, homes)
        assert drawn is not None
        ours = {key: float(rng.random() < 0.4 + luck[key[0]]) for key in keys}
        needed = tokens_within(ours, drawn)
        assert needed is not None
        covered += (needed.low or 9e9) <= 2000 <= (needed.high or 9e9)
        open_ends += needed.high is None
    assert covered >= 54
    assert open_ends > 5, "the largest budget is not told apart either"
