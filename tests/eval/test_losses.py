"""The steps at which points are lost: each simulated loss shows in exactly its step, and the steps add up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_history import history

from data_loaders.schema import Gold, Question, Unit
from eval.loop import run_all
from eval.losses import STEPS, Found, Loss, found, held, loss_of, waterfall
from eval.run import Run
from eval.run_losses import losses_of
from eval.store import write_lines
from memsys.interface import MemorySystem, NodeView, Recall, unit_item

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


class OneStep(MemorySystem):
    """Loses the evidence of every question at exactly one step: `stored`, `recalled` and `ranked` say how far it gets.

    A question about a fact names it, so that the memory can tell the evidence from the rest.
    """

    def __init__(self, stored: bool, recalled: bool, ranked: bool) -> None:
        self.stored, self.recalled, self.ranked = stored, recalled, ranked
        self._units: list[Unit] = []

    def write(self, unit: Unit) -> None:
        self._units.append(unit if self.stored else replace(unit, turns=unit.turns[1:]))  # Ann tells, Ben asks

    def read(self, question: Question) -> Recall:
        fact = question.text.split()[1]
        items = [unit_item(unit, float((fact in unit.text) == self.ranked)) for unit in self._units]
        return Recall(tuple(item for item in items if self.recalled or fact not in item.text))

    def nodes(self) -> Iterator[NodeView]:
        return (NodeView(unit.id, (), 0, "leaf", unit.text, None, unit.turn_ids) for unit in self._units)


@pytest.mark.parametrize(
    ("step", "reaches"),
    [
        ("not stored", (False, False, True)),
        ("not found", (True, False, True)),
        ("cut by the budget", (True, True, False)),
        ("misread", (True, True, True)),
    ],
)
def test_a_simulated_memory_that_loses_at_one_step_shows_it_in_exactly_that_bar(
    step: str, reaches: tuple[bool, bool, bool], make_run: Callable[..., Run], tmp_path: Path
) -> None:
    cases = [history(f"case-{number}") for number in range(6)]
    run = make_run(cases, build=partial(OneStep, *reaches))
    run = replace(run, reader=replace(run.reader, max_context_tokens=45))  # two of the six units
    run_all([run])
    keys = [(case.id, question.id) for case in cases for question, _ in case.questions]
    for name, value in (("wrong", 0.0), ("right", 1.0)):
        lines = [{"case_id": case, "question_id": question, "repeat": 0, "value": value} for case, question in keys]
        write_lines(tmp_path / f"{name}.jsonl", lines)
    losses = list(losses_of(run.folder, tmp_path / "wrong.jsonl", tmp_path / "right.jsonl", cases))
    fall = waterfall(losses)
    assert len(losses) == 36
    assert {name: mean.mean for name, mean in fall.steps.items()} == {step: 1.0}
