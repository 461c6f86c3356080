"""The steps at which points are lost: each simulated loss shows in exactly its step, and the steps add up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_loaders.schema import Gold
from eval.analysis.losses import STEPS, Held, Loss, Reached, loss_of, shown_estimate, waterfall
from eval.statistics.stats import Estimate, Interval, estimate

GOLD = Gold(("Oaxaca",), ("t1",), "single-hop")
NO, UNKNOWN, YES = Held.NO, Held.UNKNOWN, Held.YES
ALL = Reached(YES, YES, YES)


@pytest.mark.parametrize(
    ("step", "gold", "reached"),
    [
        ("gold errors", replace(GOLD, detail={"audit": "WRONG_ANSWER"}), ALL),
        ("abstention", replace(GOLD, answerable=False), ALL),
        ("not stored", GOLD, Reached(NO, NO, NO)),
        ("not found", GOLD, Reached(YES, NO, NO)),
        ("cut by the budget", GOLD, Reached(YES, YES, NO)),
        ("misread", GOLD, ALL),
        ("unknown", GOLD, Reached(UNKNOWN, NO, NO)),
        ("unknown", GOLD, Reached(UNKNOWN, UNKNOWN, UNKNOWN)),
        ("unknown", GOLD, Reached(YES, UNKNOWN, NO)),
        ("unknown", GOLD, Reached(YES, YES, UNKNOWN)),
        ("unknown", GOLD, None),
    ],
)
def test_the_loss_belongs_to_the_step_between_a_sure_yes_and_a_sure_no(
    step: str, gold: Gold, reached: Reached | None
) -> None:
    steps = loss_of(0.25, 1.0, gold, reached)
    assert {name: lost for name, lost in steps.items() if lost} == {step: 0.75}


def test_what_the_reader_loses_from_the_evidence_alone_is_not_the_memory_s_loss() -> None:
    assert loss_of(0.2, 0.6, GOLD, Reached(YES, NO, NO)) == {
        "reader": pytest.approx(0.4),
        "not found": pytest.approx(0.4),
    }
    assert loss_of(0.6, 0.6, GOLD, ALL)["reader"] == pytest.approx(0.4)


def test_an_answer_better_than_that_from_the_evidence_counts_against_the_losses_of_its_step() -> None:
    assert loss_of(0.9, 0.5, GOLD, ALL) == {"reader": 0.5, "misread": pytest.approx(-0.4)}
    assert loss_of(1.0, 0.0, GOLD, ALL) == {"reader": 1.0, "misread": -1.0}, "also where nothing is lost in the end"


def test_without_a_score_from_the_evidence_no_step_is_blamed() -> None:
    assert loss_of(0.2, None, GOLD, ALL) == {"unknown": pytest.approx(0.8)}


def test_a_wrong_citation_leaves_the_gold_answer_right() -> None:
    assert "misread" in loss_of(0.0, 1.0, replace(GOLD, detail={"audit": "WRONG_CITATION"}), ALL)


@pytest.mark.slow
@given(
    score=st.floats(0, 1),
    with_evidence=st.one_of(st.none(), st.floats(0, 1)),
    answerable=st.booleans(),
    reached=st.one_of(st.none(), st.builds(Reached, *[st.sampled_from(Held)] * 3)),
)
def test_the_steps_of_a_question_add_up_to_its_loss(
    score: float, with_evidence: float | None, answerable: bool, reached: Reached | None
) -> None:
    steps = loss_of(score, with_evidence, replace(GOLD, answerable=answerable), reached)
    assert sum(steps.values()) == pytest.approx(1 - score)
    assert steps.keys() <= set(STEPS)


def test_the_means_of_the_steps_and_of_the_score_add_up_to_one() -> None:
    losses = [
        Loss(f"c{number % 6}", f"q{number}", "x", score, loss_of(score, 0.75, GOLD, reached))
        for number, (score, reached) in enumerate(
            [(0.0, ALL), (0.5, Reached(NO, NO, NO)), (1.0, ALL), (0.75, None)] * 6
        )
    ]
    fall = waterfall(losses)
    assert fall.score.mean + sum(mean.mean for mean in fall.steps.values()) == pytest.approx(1.0)
    assert list(fall.steps) == ["reader", "not stored", "misread", "unknown"]
    assert fall.steps["misread"].by_case is not None


@pytest.mark.parametrize(
    ("aggregate", "score", "lost"), [("question", 0.2, 0.8), ("case", 0.5, 0.5), ("category", 0.25, 0.75)]
)
def test_the_losses_weigh_histories_or_categories_alike_where_the_table_does(
    aggregate: str, score: float, lost: float
) -> None:
    """Of ten answers of one history eight are right in none, and both of another: by question the score was .2 beside a table's .5."""
    right = [0.0] * 8 + [1.0] * 2
    homes, kinds = ["large"] * 8 + ["small"] * 2, ["x"] * 6 + ["y"] * 4
    losses = [
        Loss(home, f"q{n}", kind, value, {"reader": 0.0, "misread": 1.0 - value})
        for n, (home, kind, value) in enumerate(zip(homes, kinds, right, strict=True))
    ]
    fall = waterfall(losses, aggregate)
    assert fall.score.mean == pytest.approx(score)
    assert fall.steps["misread"].mean == pytest.approx(lost)


@pytest.mark.parametrize(("cases", "why"), [(4, "{4 cases}"), (6, "{no spread}")])
def test_a_mean_without_an_interval_by_case_says_why(cases: int, why: str) -> None:
    assert shown_estimate(estimate([1.0] * cases, [str(case) for case in range(cases)])).endswith(f" {why}")


def test_a_mean_is_shown_with_its_intervals_by_question_and_by_case() -> None:
    mean = Estimate(0.5, 12, Interval(0.25, 0.75), Interval(0.125, 0.875), 6)
    assert shown_estimate(mean) == "0.500 [0.250, 0.750] {0.125, 0.875}"


@pytest.mark.parametrize("histories", [3, 8])
def test_one_answer_that_flips_is_no_step_that_its_intervals_tell_from_nothing(histories: int) -> None:
    """The step is a difference of two runs: an interval of a share would begin above 0 wherever no answer gained."""
    flips = [1.0, *[0.0] * 23]
    fall = waterfall(
        [
            Loss(f"c{place % histories}", f"q{place}", "", 1.0 - flip, {"reader": 0.0, "misread": flip})
            for place, flip in enumerate(flips)
        ]
    )
    step = fall.steps["misread"]
    intervals = [each for each in (step.by_question, step.by_case, step.cautious) if each is not None]
    assert len(intervals) == (1 if histories < 5 else 2)
    assert all(each.low < 0.0 < step.mean < each.high for each in intervals)
