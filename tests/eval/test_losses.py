"""The steps at which points are lost: each simulated loss shows in exactly its step, and the steps add up."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_loaders.schema import Gold
from eval.losses import STEPS, Found, Loss, found, held, loss_of, waterfall

GOLD = Gold(("Oaxaca",), ("t1",), "single-hop")
TURN = "Ines learned weaving with backstrap looms in Oaxaca last spring."
ALL = Found(stored=True, recalled=True, shown=True)


@pytest.mark.parametrize(
    ("step", "gold", "got"),
    [
        ("gold errors", replace(GOLD, detail={"audit": "WRONG_ANSWER"}), ALL),
        ("abstention", replace(GOLD, answerable=False), ALL),
        ("not stored", GOLD, Found(stored=False, recalled=False, shown=False)),
        ("not found", GOLD, Found(stored=True, recalled=False, shown=False)),
        ("cut by the budget", GOLD, Found(stored=True, recalled=True, shown=False)),
        ("misread", GOLD, ALL),
        ("unknown", GOLD, None),
    ],
)
def test_a_memory_that_loses_at_one_step_loses_all_of_it_there(step: str, gold: Gold, got: Found | None) -> None:
    steps = loss_of(0.25, 1.0, gold, got)
    assert {name: lost for name, lost in steps.items() if lost} == {step: 0.75}


def test_what_the_reader_loses_from_the_evidence_alone_is_not_the_memory_s_loss() -> None:
    assert loss_of(0.2, 0.6, GOLD, Found(stored=True, recalled=False, shown=False)) == {
        "reader": pytest.approx(0.4),
        "not found": pytest.approx(0.4),
    }
    assert loss_of(0.6, 0.6, GOLD, ALL)["reader"] == pytest.approx(0.4)


def test_an_answer_better_than_that_from_the_evidence_is_a_negative_loss() -> None:
    steps = loss_of(0.9, 0.5, GOLD, ALL)
    assert steps == {"reader": 0.5, "better than the evidence": pytest.approx(-0.4)}


def test_a_wrong_citation_leaves_the_gold_answer_right() -> None:
    assert "misread" in loss_of(0.0, 1.0, replace(GOLD, detail={"audit": "WRONG_CITATION"}), ALL)


@given(
    score=st.floats(0, 1),
    with_evidence=st.one_of(st.none(), st.floats(0, 1)),
    answerable=st.booleans(),
    got=st.one_of(st.none(), st.builds(Found, st.booleans(), st.booleans(), st.booleans())),
)
def test_the_steps_of_a_question_add_up_to_its_loss(
    score: float, with_evidence: float | None, answerable: bool, got: Found | None
) -> None:
    steps = loss_of(score, with_evidence, replace(GOLD, answerable=answerable), got)
    assert sum(steps.values()) == pytest.approx(1 - score)
    assert steps.keys() <= set(STEPS)


def test_a_turn_is_held_verbatim_or_by_most_of_its_words() -> None:
    assert held(TURN, ["Notes: " + TURN])
    assert held(TURN, ["In spring Ines learned to weave: backstrap looms, in Oaxaca, last year."])
    assert not held(TURN, ["Ines lives in Oaxaca."])
    assert not held(TURN, [])


def test_evidence_is_followed_from_the_nodes_to_the_reader() -> None:
    other = "Somebody else said something entirely different."
    assert found([], [TURN], [TURN], [TURN]) is None
    assert found([TURN], [other], [other], [other]) == Found(stored=False, recalled=False, shown=False)
    assert found([TURN], [TURN, other], [other], [other]) == Found(stored=True, recalled=False, shown=False)
    assert found([TURN], [TURN], [TURN, other], [other]) == Found(stored=True, recalled=True, shown=False)
    assert found([TURN, other], [TURN, other], [TURN], [TURN]) == Found(stored=True, recalled=False, shown=False)
    assert found([TURN], None, [TURN], [TURN]) == ALL


def test_the_means_of_the_steps_and_of_the_score_add_up_to_one() -> None:
    losses = [
        Loss(f"c{number % 6}", f"q{number}", "x", score, loss_of(score, 0.75, GOLD, got))
        for number, (score, got) in enumerate(
            [(0.0, ALL), (0.5, Found(stored=False, recalled=False, shown=False)), (1.0, ALL), (0.75, None)] * 6
        )
    ]
    fall = waterfall(losses)
    assert fall.score.mean + sum(mean.mean for mean in fall.steps.values()) == pytest.approx(1.0)
    assert list(fall.steps) == ["reader", "not stored", "misread"]
    assert fall.steps["misread"].by_case is not None
