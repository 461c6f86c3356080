"""LongMemEval-V2: histories that questions share, states as turns, what is left out, and damaged files."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from mutations import broken_copies, check_only_data_errors, mutated_json, read_values, write_json, write_jsonl

from data_loaders.longmemeval_v2 import load
from data_loaders.raw import read_raw
from data_loaders.schema import DataError
from data_loaders.source import sample

SAMPLE = sample("longmemeval_v2").path
QUESTIONS, TRAJECTORIES, HAYSTACK = "questions.jsonl", "trajectories.jsonl", "haystacks/lme_v2_small.json"


def changed(folder: Path, file: str, *path: str | int, value: Any) -> Path:
    """A copy of the sample with one value of one file changed."""
    shutil.copytree(SAMPLE, folder, dirs_exist_ok=True)
    lines = file.endswith("jsonl")
    raw = read_values(SAMPLE / file) if lines else read_raw(SAMPLE / file).value
    place = raw
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    (write_jsonl if lines else write_json)(folder / file, raw)
    return folder


def test_questions_with_the_same_list_of_trajectories_share_a_history() -> None:
    small, medium = load(SAMPLE), load(SAMPLE, tier="medium")
    assert small.ids == ("web-1", "enterprise-1")
    assert [question.id for question, _ in small[0].questions] == ["q01", "q02", "q03", "q04"]
    assert medium.ids == ("web-1", "web-2", "enterprise-1")
    assert [question.id for question, _ in medium[1].questions] == ["q03"]
    assert [turn.id for turn in medium[1].turns] == ["w3:0", "w3:1", "w1:0", "w1:1", "w1:2"]


def test_a_trajectory_is_a_session_and_a_state_a_turn_with_address_thought_action_and_tree() -> None:
    session = load(SAMPLE)[0].sessions[0]
    assert session.heading == "Task: Hide the product Tar brush (outcome: success)"
    lines = session.turns[1].text.split("\n")
    assert lines[:3] == [
        "Page: http://shop.invalid/admin/catalogue",
        "Thought: Products are listed in the catalogue.",
        "Action: click('5')",
    ]
    assert lines[3].startswith("RootWebArea 'Catalogue'")
    assert load(SAMPLE)[1].sessions[1].heading == "Task: List the open incidents with priority 2"


def test_without_observations_the_trees_are_gone_and_nothing_else() -> None:
    kept, dropped = load(SAMPLE)[0], load(SAMPLE, observations="drop")[0]
    assert [turn.id for turn in kept.turns] == [turn.id for turn in dropped.turns]
    assert all(full.text.startswith(bare.text) for full, bare in zip(kept.turns, dropped.turns, strict=True))
    assert "RootWebArea" not in repr(dropped.turns)


def test_a_question_with_a_screenshot_is_left_out_and_counted_in_the_notes() -> None:
    case = load(SAMPLE)[1]
    assert [question.id for question, _ in case.questions] == ["q05", "q06", "q07"]
    assert case.notes == ("Left out, because they show a screenshot: 1 of 4 questions.",)


def test_without_judged_questions_those_with_a_false_premise_are_gone() -> None:
    golds = [gold for case in load(SAMPLE) for _, gold in case.questions]
    unjudged = [gold for case in load(SAMPLE, judged="drop") for _, gold in case.questions]
    assert [gold for gold in golds if gold.answerable] == unjudged
    assert {gold.category for gold in golds if not gold.answerable} == {"static-abs", "procedure-abs"}


def test_a_reader_is_told_the_environment_and_not_the_type_of_the_question() -> None:
    question, gold = load(SAMPLE)[0].questions[3]
    assert question.instruction.startswith("Environment: a web shop")
    assert gold.category == "static-abs"
    assert "premise" not in repr(question)


def test_a_choice_that_does_not_exist_is_refused(subtests: pytest.Subtests) -> None:
    for choice in ({"tier": "large"}, {"observations": "some"}, {"judged": "maybe"}):
        with subtests.test(choice=choice), pytest.raises(ValueError, match=f"{next(iter(choice))}: expected one of"):
            load(SAMPLE, **choice)  # type: ignore[arg-type]


def test_a_broken_field_is_named_with_its_place(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for file, path, value, message in [
        (QUESTIONS, (0, "domain"), "phone", r"questions.jsonl: line 1\.domain: expected one of web, enterprise"),
        (QUESTIONS, (1, "id"), "q01", r"questions.jsonl: id: expected unique ids, found 'q01' twice"),
        (QUESTIONS, (0, "question_type"), "riddle", r"line 1\.question_type: expected one of static-environment"),
        (QUESTIONS, (0, "answer"), " ", r"line 1: expected a question and an answer"),
        (QUESTIONS, (0, "question"), {"text": "a", "image": "b"}, r"line 1\.question: expected string, found object"),
        (QUESTIONS, (0, "id"), "q99", r"lme_v2_small.json\.q99: expected a value, found no such field"),
        (TRAJECTORIES, (1, "id"), "w1", r"trajectories.jsonl: line 2\.id: expected unique ids, found 'w1' twice"),
        (TRAJECTORIES, (0, "domain"), "enterprise", r"line 1\.domain: expected web, as question q01"),
        (TRAJECTORIES, (0, "states", 1, "url"), None, r"line 1\.states\[1\]\.url: expected string, found null"),
        (TRAJECTORIES, (0, "states", 1, "action"), 4, r"line 1\.states\[1\]\.action: expected string, found int"),
        (HAYSTACK, ("q01",), ["w1", "w1"], r"lme_v2_small.json\.q01: expected unique ids"),
        (HAYSTACK, ("q01",), ["w9"], r"expected the trajectories of the haystacks, found none called 'w9'"),
        (HAYSTACK, ("q77",), ["w1"], r"expected ids of questions.jsonl, found 'q77'"),
    ]:
        with subtests.test(message=message), pytest.raises(DataError, match=message):
            list(load(changed(tmp_path, file, *path, value=value)))


@broken_copies(tests=3)
@given(raw=mutated_json(read_values(SAMPLE / QUESTIONS)))
def test_mutated_questions_load_or_are_refused(tmp_path: Path, raw: Any) -> None:
    shutil.copytree(SAMPLE, tmp_path, dirs_exist_ok=True)
    write_jsonl(tmp_path / QUESTIONS, raw)
    check_only_data_errors(load, tmp_path)


@broken_copies(tests=3)
@given(raw=mutated_json(read_values(SAMPLE / TRAJECTORIES)))
def test_mutated_trajectories_load_or_are_refused(tmp_path: Path, raw: Any) -> None:
    shutil.copytree(SAMPLE, tmp_path, dirs_exist_ok=True)
    write_jsonl(tmp_path / TRAJECTORIES, raw)
    check_only_data_errors(load, tmp_path)


@broken_copies(tests=3)
@given(raw=mutated_json(read_raw(SAMPLE / HAYSTACK).value))
def test_a_mutated_haystack_loads_or_is_refused(tmp_path: Path, raw: Any) -> None:
    shutil.copytree(SAMPLE, tmp_path, dirs_exist_ok=True)
    write_json(tmp_path / HAYSTACK, raw)
    check_only_data_errors(load, tmp_path)


def test_a_file_that_changed_since_it_was_indexed_is_a_data_error(tmp_path: Path) -> None:
    cases = load(changed(tmp_path, TRAJECTORIES, 0, "goal", value="Another goal"))
    (tmp_path / TRAJECTORIES).write_text(json.dumps({}), encoding="utf-8")
    with pytest.raises(DataError, match=r"trajectories.jsonl: line"):
        cases[0]
