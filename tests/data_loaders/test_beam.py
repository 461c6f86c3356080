"""BEAM: plan markers, truncated copies, evidence of every shape, and the counts of the real tiers."""

from __future__ import annotations

import copy
import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from mutations import broken_copies, check_only_data_errors, mutated_json, write_json

from data_loaders.beam import EVENT_ORDERING, MARKER, REFERENCES, caption, load
from data_loaders.schema import Case, DataError, Gold
from data_loaders.source import find, sample

SAMPLE = sample("beam").path
GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "next_beam_stats.json").read_text(encoding="utf-8"))
ASKED = json.loads((SAMPLE / "1" / "probing_questions" / "probing_questions.json").read_text(encoding="utf-8"))
CHAT = json.loads((SAMPLE / "2" / "chat.json").read_text(encoding="utf-8"))


@pytest.fixture
def tier(tmp_path: Path) -> Path:
    shutil.copytree(SAMPLE, tmp_path, dirs_exist_ok=True)
    return tmp_path


def gold_of(case: Case, question_id: str) -> Gold:
    return next(gold for question, gold in case.questions if question.id == question_id)


def test_a_chat_is_a_case_and_a_batch_a_session_dated_by_its_first_message() -> None:
    bees, boat = load(SAMPLE)
    assert (bees.id, boat.id) == ("1", "2")
    assert [session.time for session in bees.sessions] == [datetime(2024, 3, 4), datetime(2024, 4, 15)]
    assert bees.sessions[1].time_text == "April-15-2024"
    assert [turn.id for turn in bees.turns] == [str(number) for number in range(16)]


def test_a_plan_marker_is_cut_with_all_that_follows_and_kept_when_asked_for() -> None:
    assert not any(MARKER in turn.text for case in load(SAMPLE) for turn in case.turns)
    boat = load(SAMPLE)[1]
    assert boat.turns[4].text == "I replaced the planks and named the boat Wren."
    assert "3 messages hold a marker of the generation plan, which is cut off." in boat.notes
    raw = load(SAMPLE, markers="raw")[1]
    assert raw.turns[4].text.endswith("->-> 2,1, (Note: this question rests on the plan.)")


def test_a_marker_that_the_assistant_took_up_is_cut_too() -> None:
    assert load(SAMPLE)[0].turns[11].text == "Blue helps the bees find home."


def test_the_truncated_copy_is_read_unless_the_whole_chat_is_asked_for() -> None:
    assert len(load(SAMPLE)[1].sessions) == 2
    assert "The last 2 messages are left out, as in chat_trunecated.json." in load(SAMPLE)[1].notes
    assert len(load(SAMPLE, chats="whole")[1].sessions) == 3


def test_a_truncated_copy_that_says_something_else_is_an_error(tier: Path) -> None:
    other = copy.deepcopy(CHAT[:2])
    other[0]["turns"][0][0]["content"] = "Something else."
    write_json(tier / "2" / "chat_trunecated.json", other)
    with pytest.raises(DataError, match=r"2: chat_trunecated\.json: expected the beginning of chat\.json"):
        load(tier)[1]


def test_evidence_is_found_in_lists_nested_lists_and_dicts() -> None:
    bees, boat = load(SAMPLE)
    assert gold_of(bees, "event_ordering_0").evidence == ("2", "0", "8")
    assert gold_of(bees, "contradiction_resolution_0").evidence == ("6", "10")
    assert gold_of(boat, "event_ordering_0").evidence == ("4", "0", "2")


def test_a_question_without_evidence_is_noted_and_an_abstention_is_not() -> None:
    bees, boat = load(SAMPLE)
    assert "summarization_0: it names no evidence." in bees.notes
    assert "knowledge_update_0: it names no evidence." in boat.notes
    assert not any("abstention" in note for note in bees.notes)


def test_a_rubric_of_another_length_than_total_mentions_is_noted() -> None:
    assert "event_ordering_0: total_mentions is 3, the rubric has 4 events." in load(SAMPLE)[1].notes


def test_the_reference_comes_from_the_field_of_its_ability() -> None:
    for question, gold in load(SAMPLE)[0].questions:
        assert gold.answers == (ASKED[gold.category][0][REFERENCES[gold.category]],)
        assert gold.answerable == (gold.category != "abstention")
        assert gold.detail["rubric"] == tuple(ASKED[gold.category][0]["rubric"])
        assert question.id == f"{gold.category}_0"


def test_an_unknown_ability_role_or_choice_is_refused(tier: Path) -> None:
    write_json(tier / "1" / "probing_questions" / "probing_questions.json", {"guessing": []})
    with pytest.raises(DataError, match="guessing"):
        load(tier)[0]
    broken = copy.deepcopy(CHAT)
    broken[0]["turns"][0][0]["role"] = "system"
    write_json(tier / "2" / "chat.json", broken)
    (tier / "2" / "chat_trunecated.json").unlink()
    with pytest.raises(DataError, match="expected user or assistant, found 'system'"):
        load(tier)[1]
    with pytest.raises(ValueError, match="'half'"):
        load(tier, chats="half")  # type: ignore[arg-type]


def test_a_chat_whose_messages_are_not_held_is_left_out_and_counted(tier: Path) -> None:
    (tier / "2" / "chat.json").unlink()
    assert [case.id for case in load(tier)] == ["1"]
    assert caption(tier).startswith("1 of 2 chats, 0 with a truncated copy")
    assert caption(SAMPLE, markers="raw").endswith(
        "plan markers at the end of messages kept, as by the official runners"
    )


@broken_copies(tests=2)
@given(raw=mutated_json(CHAT))
def test_a_broken_chat_is_loaded_or_is_a_data_error(raw: Any, tmp_path: Path) -> None:
    shutil.copytree(SAMPLE, tmp_path, dirs_exist_ok=True)
    (tmp_path / "2" / "chat_trunecated.json").unlink()
    write_json(tmp_path / "2" / "chat.json", raw)
    check_only_data_errors(load, tmp_path)


@broken_copies(tests=2)
@given(raw=mutated_json(ASKED))
def test_broken_questions_are_loaded_or_are_a_data_error(raw: Any, tmp_path: Path) -> None:
    shutil.copytree(SAMPLE, tmp_path, dirs_exist_ok=True)
    write_json(tmp_path / "1" / "probing_questions" / "probing_questions.json", raw)
    check_only_data_errors(load, tmp_path)


# --- the real tiers ----------------------------------------------------------------------------------------------------


def held(root: Path, name: str) -> Sequence[Case]:
    if not (root / "beam" / "chats" / name).is_dir():
        pytest.skip(f"no real data: beam/chats/{name} is not below {root}")
    return load(find(f"beam/chats/{name}", root=root).path, chats="whole")


@pytest.mark.data
@pytest.mark.parametrize("name", ["100K", "500K"])
def test_the_real_chats_have_the_recorded_counts(data_root: Path, name: str) -> None:
    cases = {case.id: case for case in held(data_root, name)}
    recorded = [chat for chat in GOLDEN[name]["per_chat"] if "chat.json" in chat]
    assert recorded
    for chat in recorded:
        case, raw = cases[chat["chat"]], chat["chat.json"]
        assert counted(case) == {
            "category": chat["category"],
            "questions": chat["questions"],
            "rubric_items": chat["rubric_items"],
            "batches": raw["batches"],
            "messages": raw["messages"],
            "messages_with_marker": raw["messages_with_marker"],
            "dates": raw["dates"],
            "evidence_ids": chat["evidence_ids"],
        }


def counted(case: Case) -> Mapping[str, Any]:
    golds = [gold for _, gold in case.questions]
    marked = next(note for note in case.notes if "marker" in note)
    return {
        "category": golds[0].detail["chat_category"],
        "questions": len(golds),
        "rubric_items": sum(len(gold.detail["rubric"]) for gold in golds),
        "batches": len(case.sessions),
        "messages": len(case.turns),
        "messages_with_marker": int(marked.split()[0]),
        "dates": [session.time_text for session in case.sessions],
        "evidence_ids": sum(len(gold.detail["evidence_raw"]) for gold in golds),
    }


@pytest.mark.data
def test_all_evidence_of_100k_lies_in_the_truncated_chats(data_root: Path) -> None:
    held(data_root, "100K")
    cases = load(data_root / "beam" / "chats" / "100K")
    golds = [gold for case in cases for _, gold in case.questions]
    assert len(golds) == 400
    assert sum(len(gold.detail["rubric"]) for gold in golds) == 1051
    assert all(set(gold.evidence) == set(gold.detail["evidence_raw"]) for gold in golds)
    assert sum(not gold.evidence and gold.answerable for gold in golds) == 5
    assert Counter(gold.category for gold in golds) == dict.fromkeys(REFERENCES, 40)
    assert not any(MARKER in turn.text for case in cases for turn in case.turns)
    assert sum(len(gold.detail["rubric"]) for gold in golds if gold.category == EVENT_ORDERING) == 213
