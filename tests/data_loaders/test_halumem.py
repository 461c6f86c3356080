"""HaluMem: users, sessions, questions after their sessions, memory points that only the judge sees, and damaged files."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from mutations import broken_copies, check_only_data_errors, mutated_json, read_values, write_jsonl

from data_loaders.halumem import load
from data_loaders.schema import DataError
from data_loaders.source import sample

SAMPLE = sample("halumem.jsonl").path


def changed(path: Path, *steps: str | int, value: Any) -> Path:
    raw = read_values(SAMPLE)
    place = raw
    for step in steps[:-1]:
        place = place[step]
    place[steps[-1]] = value
    return write_jsonl(path, raw)


def test_a_user_is_a_case_whose_turns_have_the_users_name() -> None:
    case = load(SAMPLE)[0]
    assert case.speakers == ("Maren Aalto", "Assistant")
    assert [session.time for session in case.sessions][1] == datetime(2026, 5, 11, 18, 40, 10)
    assert [(turn.id, turn.speaker, turn.role) for turn in case.turns[:2]] == [
        ("S1:1", "Maren Aalto", "user"),
        ("S1:2", "Assistant", "assistant"),
    ]


def test_a_question_is_asked_after_its_session_and_before_the_next() -> None:
    questions = [question for question, _ in load(SAMPLE)[0].questions]
    assert [(question.id, question.after) for question in questions] == [
        ("S1.1", "S1:4"),
        ("S1.2", "S1:4"),
        ("S1.3", "S1:4"),
        ("S2.1", "S2:4"),
        ("S2.2", "S2:4"),
    ]


def test_a_question_of_a_session_without_turns_is_asked_after_the_turn_before(tmp_path: Path) -> None:
    case = load(changed(tmp_path / "a.jsonl", 0, "sessions", 1, "dialogue", value=[]))[0]
    assert [question.after for question, _ in case.questions][3:] == ["S1:4", "S1:4"]
    first = load(changed(tmp_path / "b.jsonl", 0, "sessions", 0, "dialogue", value=[]))[0]
    assert [question.after for question, _ in first.questions][:3] == ["", "", ""]


def test_the_judge_sees_the_memory_points_and_a_boundary_question_has_none() -> None:
    golds = [gold for _, gold in load(SAMPLE)[0].questions]
    assert golds[0].detail["reference"] == "Maren Aalto hired an apprentice called Jussi in March 2026."
    assert [(gold.category, gold.answerable) for gold in golds[1:3]] == [
        ("generalization-application", True),
        ("memory-boundary", False),
    ]
    assert golds[2].detail["reference"] == ""
    last = load(SAMPLE)[1].questions[1][1]
    assert last.detail["reference"].count("\n") == 1
    assert (last.category, last.groups) == ("multi-hop-inference", ("hard",))


def test_a_user_without_a_name_is_called_user_and_a_note_says_so(tmp_path: Path) -> None:
    case = load(changed(tmp_path / "a.jsonl", 0, "persona_info", value="Gender: Female"))[0]
    assert case.turns[0].speaker == "User"
    assert case.notes == ("The user's name was not found in persona_info.",)


def test_a_session_of_noise_is_read_without_memory_points(tmp_path: Path) -> None:
    raw = read_values(SAMPLE)
    noise = raw[0]["sessions"][2]
    noise |= {"is_generated_qa_session": True}
    del noise["memory_points"]
    assert len(load(write_jsonl(tmp_path / "long.jsonl", raw))[0].sessions) == 3


def test_a_broken_field_is_named_with_its_place(tmp_path: Path, subtests: pytest.Subtests) -> None:
    at = (0, "sessions", 0)
    for steps, value, message in [
        ((*at, "start_time"), "2026-03-02", r"line 1\.sessions\[0\]\.start_time: expected a time such as Sep 04, 2025"),
        (
            (*at, "dialogue", 1, "role"),
            "system",
            r"sessions\[0\]\.dialogue\[1\]\.role: expected one of user, assistant",
        ),
        ((*at, "dialogue", 1, "content"), 3, r"dialogue\[1\]\.content: expected string, found int"),
        ((*at, "questions", 0, "answer"), "", r"questions\[0\]: expected a question and an answer"),
        ((*at, "questions", 0, "evidence", 0), "text", r"questions\[0\]\.evidence\[0\]: expected object"),
        ((*at, "questions"), {}, r"sessions\[0\]\.questions: expected list"),
        ((1, "uuid"), read_values(SAMPLE)[0]["uuid"], "broken.jsonl: uuid: expected unique ids"),
    ]:
        with subtests.test(message=message), pytest.raises(DataError, match=message):
            list(load(changed(tmp_path / "broken.jsonl", *steps, value=value)))


@broken_copies()
@given(raw=mutated_json(read_values(SAMPLE)))
def test_mutated_users_load_or_are_refused(tmp_path: Path, raw: Any) -> None:
    check_only_data_errors(load, write_jsonl(tmp_path / "mutated.jsonl", raw))


def test_the_sample_has_the_fields_that_the_release_lists() -> None:
    """README.md and eval/evaluation.py of the release at 59402b9."""
    for user in read_values(SAMPLE):
        for session in user["sessions"]:
            for point in session["memory_points"]:
                assert point["is_update"] in ("True", "False")
                assert bool(point["original_memories"]) == (point["is_update"] == "True")
            json.dumps(session["dialogue"][0]["dialogue_turn"])
            assert session["dialogue_turn_num"] * 2 == len(session["dialogue"])
