"""RealMem: questions in mid-history, and the gold that their replies carry."""

from __future__ import annotations

import copy
import json
import os
from collections import Counter
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mutations import BROKEN_BYTES, broken_copies, check_only_data_errors, mutated_json, write_json

from data_loaders.realmem import load
from data_loaders.schema import Case, DataError, Gold, Question

SAMPLE = Path(__file__).parents[2] / "data_loaders" / "samples" / "realmem"
DATA = Path(os.environ.get("MEMSYS_DATA") or Path(__file__).parents[3] / "shared" / "data") / "realmem" / "dataset"
FILE = "Ines_Calloway_dialogues_256k.json"
INES: Any = json.loads((SAMPLE / FILE).read_text(encoding="utf-8"))

PERSONAS = {
    # sessions, turns, queries, user turns with gold, their mean number of gold sessions (official script)
    "Adeleke_Okonjo": (197, 1376, 124, 136, 1.772059),
    "Ethan_Hunt": (207, 1330, 162, 167, 1.808383),
    "Kenta_Tanaka": (191, 1543, 153, 157, 1.535032),
    "Kim_Ji_young": (205, 1358, 168, 171, 1.754386),
    "Liam_O_Connor": (226, 1500, 121, 121, 1.528926),
    "Lin_Wanyu": (207, 1284, 126, 128, 1.859375),
    "Oliver_Smith": (177, 1270, 126, 128, 1.523438),
    "Pak_Budi": (234, 1516, 114, 115, 1.565217),
    "Sarah_Miller": (276, 1807, 158, 164, 1.609756),
    "Sophie_Dubois": (135, 1044, 163, 171, 1.461988),
}


def ines() -> Any:
    return copy.deepcopy(INES)


def written(path: Path, raw: Any) -> Path:
    write_json(path / FILE, raw)
    return path


def asked(case: Case, question_id: str) -> tuple[Question, Gold]:
    return next(each for each in case.questions if each[0].id == question_id)


@pytest.fixture(scope="module")
def data() -> Path:
    if not list(DATA.glob("*_dialogues_*.json")):
        pytest.skip(f"needs the real files in {DATA} (set MEMSYS_DATA)")
    return DATA


def test_every_persona_file_is_a_case_named_after_it() -> None:
    assert [case.id for case in load(SAMPLE)] == ["Ines_Calloway", "Tomas_Veil"]


def test_sessions_keep_the_order_of_the_file_although_days_go_back() -> None:
    sessions = load(SAMPLE)[0].sessions
    assert [session.id for session in sessions] == [each["session_identifier"] for each in INES["dialogues"]]
    assert sessions[3].time == datetime(2025, 3, 11)
    assert sessions[2].time == datetime(2025, 3, 19)
    assert sessions[3].time_text == "2025-03-11 (Tuesday)"


def test_a_turn_is_what_was_said_and_nothing_of_the_key() -> None:
    turns = load(SAMPLE)[0].turns
    said = [turn for session in INES["dialogues"] for turn in session["dialogue_turns"]]
    assert [(turn.speaker, turn.text) for turn in turns] == [(raw["speaker"], raw["content"]) for raw in said]
    assert {(turn.speaker, turn.role) for turn in turns} == {("User", "user"), ("Assistant", "assistant")}
    assert turns[0].id == "Gardening_1:S1_01:1"


def test_a_question_is_asked_when_the_session_before_its_own_has_ended() -> None:
    case = load(SAMPLE)[0]
    assert [(question.id, question.after) for question, _ in case.questions] == [
        ("Q-0001", "Enhanced:S90001:4"),
        ("Q-0002", "Gardening_1:S3_01:4"),
        ("Q-0003", "Gardening_1:S3_01:4"),
        ("Q-0004", "Gardening_1:S4_01:4"),
    ]
    assert case.questions[1][0].text == "I'm at the plot with the garlic. Which bed does it go into?"
    assert case.questions[1][0].time == datetime(2025, 10, 4)


def test_a_question_of_the_first_session_is_asked_before_anything_is_written() -> None:
    question, gold = load(SAMPLE, questions="all_gold_turns")[0].questions[0]
    assert question.after == ""
    assert gold.category == "not-a-query"


def test_an_empty_session_between_does_not_move_the_time_of_asking(tmp_path: Path) -> None:
    raw = ines()
    raw["dialogues"][1]["dialogue_turns"] = []
    case = load(written(tmp_path, raw))[0]
    assert case.questions[0][0].after == "Gardening_1:S1_01:4"


def test_asked_at_the_end_every_question_waits_for_the_whole_history() -> None:
    stream, end = load(SAMPLE)[0], load(SAMPLE, ask="end")[0]
    assert {question.after for question, _ in end.questions} == {None}
    assert [gold for _, gold in end.questions] == [gold for _, gold in stream.questions]


def test_the_gold_is_what_the_next_reply_says_it_used() -> None:
    _, gold = asked(load(SAMPLE)[0], "Q-0002")
    assert gold.answers == ("The first bed: you moved it there because the third one floods.",)
    assert gold.detail["gold_sessions"] == ("Gardening_1:S3_01", "Gardening_1:S1_01")
    assert gold.detail["evidence_raw"] == ("a1000005", "a1000001")
    assert [text.partition("】")[0] for text in gold.detail["gold_memories"]] == ["【Change", "【State", "【Plan"]
    assert (gold.detail["reference"],) == gold.answers
    assert (gold.detail["topic"], gold.detail["session_type"]) == ("Gardening", "single_session")
    assert gold.category == "dynamic-updating"


def test_without_named_sessions_those_of_the_used_memories_are_gold(tmp_path: Path) -> None:
    raw = ines()
    raw["dialogues"][5]["dialogue_turns"][1]["memory_session_uuids"] = []
    _, gold = asked(load(written(tmp_path, raw))[0], "Q-0002")
    assert gold.detail["gold_sessions"] == ("Gardening_1:S3_01", "Gardening_1:S1_01")


def test_evidence_is_the_turn_a_gold_memory_was_taken_from_whether_counted_from_one_or_zero() -> None:
    ines_case, tomas = load(SAMPLE)
    assert asked(ines_case, "Q-0002")[1].evidence == ("Gardening_1:S3_01:3", "Gardening_1:S1_01:3")
    assert asked(ines_case, "Q-0001")[1].evidence == ("Gardening_1:S1_01:3",)
    zero_based = INES["dialogues"][2]["extracted_memory"][0]
    assert zero_based["source_turn"] == 2
    assert INES["dialogues"][2]["dialogue_turns"][2]["content"] == zero_based["source_content_snapshot"]
    assert asked(tomas, "Q-0002")[1].evidence == ("Music_2:S1_01:1", "Music_2:S3_01:1")


@pytest.mark.parametrize(
    "copied", [lambda text: text[:40], lambda text: text + " And more.", lambda text: text + "\n\n "]
)
def test_a_cut_or_overrunning_copy_of_the_source_still_finds_its_turn(tmp_path: Path, copied: Any) -> None:
    raw = ines()
    memory = raw["dialogues"][4]["extracted_memory"][0]
    memory["source_content_snapshot"] = copied(memory["source_content_snapshot"])
    _, gold = asked(load(written(tmp_path, raw))[0], "Q-0002")
    assert gold.evidence[0] == "Gardening_1:S3_01:3"


def test_a_gold_memory_that_cannot_be_traced_has_no_evidence_and_a_note() -> None:
    case = load(SAMPLE)[0]
    assert "Q-0002: 1 of its 3 gold memories cannot be traced to a turn." in case.notes
    assert sum("traced" in note for note in case.notes) == 1


def test_gold_in_the_session_of_the_question_is_noted_unless_it_is_asked_at_the_end() -> None:
    note = "Q-0003: its gold session Music_2:S4_01 is not over when it is asked."
    assert note in load(SAMPLE)[1].notes
    assert note not in load(SAMPLE, ask="end")[1].notes


def test_gold_sessions_that_do_not_exist_are_dropped_and_noted(tmp_path: Path) -> None:
    raw = ines()
    raw["dialogues"][5]["dialogue_turns"][1]["memory_session_uuids"].append("deadbeef")
    case = load(written(tmp_path, raw))[0]
    _, gold = asked(case, "Q-0002")
    assert gold.detail["gold_sessions"] == ("Gardening_1:S3_01", "Gardening_1:S1_01")
    assert gold.detail["evidence_raw"] == ("a1000005", "a1000001", "deadbeef")
    assert "Q-0002: its gold session deadbeef does not exist." in case.notes


def test_turns_with_gold_count_only_when_asked_for_and_ids_of_no_query_do_not() -> None:
    few, more = load(SAMPLE)[0], load(SAMPLE, questions="all_gold_turns")[0]
    assert [question.id for question, _ in more.questions] == [
        "Gardening_1:S1_01:3",
        *(f"Q-000{n}" for n in (1, 2, 3, 4)),
    ]
    assert more.questions[1:] == few.questions
    assert "Q-0099" in json.dumps(INES)


def test_empty_turns_and_turns_without_a_mark_are_kept_and_noted() -> None:
    case = load(SAMPLE)[0]
    assert case.sessions[2].turns[3].text == ""
    assert case.notes[:2] == (
        "Gardening_1:S2_01:4: the turn is empty.",
        "Gardening_1:S2_01:6: the turn does not say whether it is a query; taken as none.",
    )


def test_a_session_identifier_used_twice_is_made_unique_and_noted(tmp_path: Path) -> None:
    raw = ines()
    raw["dialogues"][4]["session_identifier"] = "Gardening_1:S1_01"
    case = load(written(tmp_path, raw))[0]
    assert case.sessions[4].id == "Gardening_1:S1_01~2"
    assert asked(case, "Q-0002")[0].after == "Gardening_1:S1_01~2:4"
    assert any(note.startswith("Gardening_1:S1_01: the session identifier occurs again") for note in case.notes)


def test_a_query_without_gold_is_refused(tmp_path: Path) -> None:
    raw = ines()
    del raw["dialogues"][2]["dialogue_turns"][1]["memory_used"]
    with pytest.raises(DataError, match=r"dialogues\[2\]\.dialogue_turns\[0\] \(its reply\)\.memory_used"):
        load(written(tmp_path, raw))[0]


def test_a_query_that_nobody_answers_is_refused(tmp_path: Path) -> None:
    raw = ines()
    del raw["dialogues"][2]["dialogue_turns"][1:]
    with pytest.raises(DataError, match=r"dialogues\[2\]\.dialogue_turns\[0\] \(its reply\)"):
        load(written(tmp_path, raw))[0]


def test_a_query_id_used_twice_is_refused(tmp_path: Path) -> None:
    raw = ines()
    raw["dialogues"][5]["dialogue_turns"][0]["query_id"] = "Q-0001"
    with pytest.raises(DataError, match="'Q-0001' twice"):
        load(written(tmp_path, raw))[0]


def test_a_folder_without_persona_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="found none"):
        load(tmp_path)


@broken_copies()
@given(
    raw=mutated_json(INES),
    ask=st.sampled_from(["stream", "end"]),
    questions=st.sampled_from(["queries", "all_gold_turns"]),
)
def test_a_broken_persona_is_read_or_refused_with_a_reason(tmp_path: Path, raw: Any, ask: Any, questions: Any) -> None:
    check_only_data_errors(lambda path: load(path, ask=ask, questions=questions), written(tmp_path, raw))


def test_a_broken_file_is_read_or_refused_with_a_reason(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for damage in BROKEN_BYTES:
        with subtests.test(damage=damage):
            (tmp_path / FILE).write_bytes(BROKEN_BYTES[damage]((SAMPLE / FILE).read_bytes()))
            check_only_data_errors(load, tmp_path)


@pytest.fixture(scope="module")
def real(data: Path) -> list[Case]:
    return list(load(data))


@pytest.mark.data
def test_the_ten_personas_have_their_sessions_turns_and_queries(real: list[Case]) -> None:
    found = {case.id: (len(case.sessions), len(case.turns), len(case.questions)) for case in real}
    assert found == {persona: numbers[:3] for persona, numbers in PERSONAS.items()}
    assert tuple(map(sum, zip(*found.values(), strict=True))) == (2055, 14028, 1415)


@pytest.mark.data
def test_the_gold_of_all_such_turns_is_that_of_the_official_script(data: Path) -> None:
    for case in load(data, questions="all_gold_turns"):
        sizes = [len(gold.detail["gold_sessions"]) for _, gold in case.questions]
        assert len(sizes) == PERSONAS[case.id][3]
        assert sum(sizes) / len(sizes) == pytest.approx(PERSONAS[case.id][4], abs=1e-6)


@pytest.mark.data
def test_the_oddities_of_the_real_files_are_counted(real: list[Case]) -> None:
    notes = [note for case in real for note in case.notes]
    assert sum(note.endswith("the turn is empty.") for note in notes) == 6
    assert sum("taken as none" in note for note in notes) == 1
    assert sum("is not over" in note for note in notes) == 3
    assert sum(session.id.startswith("Enhanced") for case in real for session in case.sessions) == 985
    assert sum(not gold.evidence for case in real for _, gold in case.questions) == 64


@pytest.mark.data
def test_user_turns_followed_by_the_assistant_are_as_many_as_counted_before(real: list[Case]) -> None:
    pairs = [
        sum((a.role, b.role) == ("user", "assistant") for session in case.sessions for a, b in pairwise(session.turns))
        for case in real
    ]
    assert sum(pairs) / len(pairs) == pytest.approx(701.3, abs=0.05)


@pytest.mark.data
def test_real_queries_fall_into_four_categories_and_none_into_the_first_session(real: list[Case]) -> None:
    questions = [each for case in real for each in case.questions]
    assert Counter(gold.category for _, gold in questions) == {
        "dynamic-incremental": 1075,
        "implicit-preference": 160,
        "dynamic-updating": 156,
        "temporal-reasoning": 24,
    }
    assert all(question.after for question, _ in questions)
