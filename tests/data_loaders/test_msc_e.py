from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hydra.utils import instantiate
from hypothesis import given
from mutations import BROKEN_BYTES, broken_copies, check_only_data_errors, mutated_json, write_jsonl
from omegaconf import OmegaConf

from data_loaders import msc_e
from data_loaders.msc_e import load
from data_loaders.schema import Case, DataError

SAMPLE = Path(msc_e.__file__).parent / "samples" / "msc_e.jsonl"
ROWS: list[Any] = [json.loads(line) for line in SAMPLE.read_text(encoding="utf-8").splitlines()]


def question(**changes: Any) -> dict[str, Any]:
    return {"id": "q1", "question": "What?", "response": "That.", "evidence": ["R1:1"], "bin": [0, 2], **changes}


def only(tmp_path: Path, *questions: dict[str, Any], **changes: Any) -> Case:
    conversation = {
        "id": "c1",
        "speakers": ["Alex", "Bob"],
        "rounds": [["One.", "Two."], ["Three.", "Four."], ["Five.", "Six."]],
        "questions": list(questions),
        **changes,
    }
    (case,) = load(write_jsonl(tmp_path / "set.jsonl", [conversation]))
    return case


def test_a_conversation_is_one_session_of_rounds() -> None:
    loaded = load(SAMPLE)
    assert loaded.ids == ("msc_e_sample_0", "msc_e_sample_1")
    assert loaded.sizes == (40, 32)
    assert [len(case.turns) for case in loaded] == [40, 32]
    assert [len(case.sessions) for case in loaded] == [1, 1]
    assert not any(case.notes for case in loaded)


def test_the_two_speakers_take_turns_and_the_first_is_the_user(tmp_path: Path) -> None:
    case = only(tmp_path)
    assert case.speakers == ("Alex", "Bob")
    assert [(turn.id, turn.speaker, turn.role, turn.text) for turn in case.turns][:3] == [
        ("R1:1", "Alex", "user", "One."),
        ("R1:2", "Bob", "assistant", "Two."),
        ("R2:1", "Alex", "user", "Three."),
    ]


def test_the_second_speaker_asks_the_first() -> None:
    asked, gold = load(SAMPLE)[0].questions[0]
    assert asked.instruction == "Bob asks this of Alex. Answer as Alex, in the first person."
    assert asked.text == "Where did you get your hammock?"
    assert gold.answers == ("From a sailor in Tarbrook.",)


def test_the_category_is_the_position_of_the_evidence() -> None:
    golds = [gold for _, gold in load(SAMPLE)[0].questions]
    assert [gold.category for gold in golds] == ["0-10"] * 4 + ["10-20"] * 4
    assert golds[4].detail["bin"] == (10, 20)


def test_the_evidence_of_the_sample_is_what_the_asked_speaker_said() -> None:
    for case in load(SAMPLE):
        turns = {turn.id: turn for turn in case.turns}
        for _, gold in case.questions:
            assert gold.evidence
            assert {turns[each].speaker for each in gold.evidence} == {"Alex"}


def test_a_question_may_be_asked_after_any_round(tmp_path: Path) -> None:
    case = only(tmp_path, question(after_round=2), question(id="q2", after_round=None), question(id="q3"))
    assert [asked.after for asked, _ in case.questions] == ["R2:2", None, None]


def test_evidence_that_is_no_turn_is_dropped_and_noted(tmp_path: Path) -> None:
    case = only(tmp_path, question(evidence=["R9:1", "R1:1", "R1:1"]))
    gold = case.questions[0][1]
    assert gold.evidence == ("R1:1",)
    assert gold.detail["evidence_raw"] == ("R9:1", "R1:1", "R1:1")
    assert case.notes == ("question q1: evidence R9:1 is not a turn",)


def test_evidence_outside_its_bin_is_kept_and_noted(tmp_path: Path) -> None:
    case = only(tmp_path, question(evidence=["R1:1", "R2:1", "R3:1"], bin=[1, 2]))
    assert case.questions[0][1].evidence == ("R1:1", "R2:1", "R3:1")
    assert case.notes == (
        "question q1: evidence R1:1 is outside rounds 1-2",
        "question q1: evidence R3:1 is outside rounds 1-2",
    )


def test_a_broken_field_is_named_with_its_conversation(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for changes, message in [
        ({"speakers": ["Alex", "Alex"]}, r"set\.jsonl: c1\.speakers: expected two different names"),
        ({"speakers": ["Alex"]}, r"c1\.speakers: expected two different names"),
        ({"rounds": []}, r"c1\.rounds: expected at least one round"),
        ({"rounds": [["One."]]}, r"c1\.rounds\[0\]: expected two texts, one by each speaker, found 1"),
        ({"rounds": [["One.", None]]}, r"c1\.rounds\[0\]\[1\]: expected string, found null"),
        ({"questions": [question(), question()]}, r"c1\.questions: expected unique ids, found 'q1' twice"),
        ({"questions": [question(bin=[2, 1])]}, r"c1\.questions\[0\]\.bin: expected two rising round numbers"),
        ({"questions": [question(bin=[0, "2"])]}, r"c1\.questions\[0\]\.bin\[1\]: expected int, found string"),
        ({"questions": [question(after_round=4)]}, r"after_round: expected one of the 3 rounds, found 4"),
        ({"questions": [question(after_round=True)]}, r"after_round: expected int or null, found true/false"),
        ({"questions": [question(evidence=[1])]}, r"evidence\[0\]: expected string, found int 1"),
        ({"questions": [question(response=None)]}, r"c1\.questions\[0\]\.response: expected string, found null"),
    ]:
        with subtests.test(changes=changes, message=message), pytest.raises(DataError, match=message):
            only(tmp_path, **changes)


def test_two_conversations_of_one_id_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"set\.jsonl: id: expected unique ids, found 'msc_e_sample_0' twice"):
        load(write_jsonl(tmp_path / "set.jsonl", [ROWS[0], ROWS[0]]))


@broken_copies()
@given(mutated=mutated_json(ROWS))
def test_a_mutated_sample_loads_or_is_refused(tmp_path: Path, mutated: Any) -> None:
    check_only_data_errors(load, write_jsonl(tmp_path / "set.jsonl", mutated))


def test_damaged_bytes_load_or_are_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for damage in BROKEN_BYTES:
        with subtests.test(damage=damage):
            path = tmp_path / "set.jsonl"
            path.write_bytes(BROKEN_BYTES[damage](SAMPLE.read_bytes()))
            check_only_data_errors(load, path)


def test_the_configuration_loads_its_sample(root: Path) -> None:
    conf = OmegaConf.load(root / "conf" / "dataset" / "msc_e.yaml")
    assert "not comparable" in conf.title
    assert len(instantiate(conf.load)(SAMPLE.parent / conf.sample)) == 2
