"""PerLTQA: both layouts, sections, times, reference memories."""

from __future__ import annotations

import copy
import json
import os
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from mutations import BROKEN_BYTES, broken_copies, check_only_data_errors, mutated_json, write_json

from data_loaders.perltqa import MAX_LITERAL, load, parse_references
from data_loaders.schema import DataError

SAMPLE = Path(__file__).parents[2] / "data_loaders" / "samples" / "perltqa"
DATA = Path(os.environ.get("MEMSYS_DATA") or Path(__file__).parents[3] / "shared" / "data") / "perltqa"
FILES = ("perltmem_en_v2.json", "perltqa_en_v2.json")


def raw(name: str) -> Any:
    return json.loads((SAMPLE / name).read_text(encoding="utf-8"))


MEMORY, ASKED = (raw(name) for name in FILES)


def folder(path: Path, memory: Any = MEMORY, asked: Any = ASKED) -> Path:
    write_json(path / FILES[0], memory)
    write_json(path / FILES[1], asked)
    return path


def held(name: str) -> str:
    if not (DATA / name).exists():
        pytest.skip(f"needs the real file {DATA / name} (set MEMSYS_DATA)")
    return name


def test_every_character_with_questions_is_a_case() -> None:
    cases = load(SAMPLE)
    assert [case.id for case in cases] == ["Livia Marchetti", "Bram Okoro", "Nobody Remembered"]
    assert [len(case.questions) for case in cases] == [14, 7, 2]


def test_profile_relations_events_and_dialogues_are_sessions_in_this_order() -> None:
    sessions = load(SAMPLE)[0].sessions
    assert [session.id for session in sessions] == [
        "profile",
        "social_relationship",
        *("7_0_0", "7_0_1", "7_1_0", "7_2_0"),
        *("7_0_0#1", "7_1_0#1@2022-06-18 09:00", "7_1_0#1@2022-06-18 13:15"),
    ]
    assert [len(session.turns) for session in sessions] == [15, 3, 1, 1, 1, 1, 6, 2, 2]


def test_a_profile_field_and_a_relation_are_a_turn_each_and_an_event_opens_with_its_summary() -> None:
    texts = {turn.id: turn.text for turn in load(SAMPLE)[0].turns}
    assert texts["profile:Age"] == "Age: 41"
    assert texts["profile:profile_description"].startswith("**Protagonist: Livia Marchetti**")
    assert texts["7_1"] == "Sunniva Hale (neighbor): Livia Marchetti's neighbor, a pilot"
    assert texts["7_0_1"].startswith("Keys lost on a train — Mishaps\nOttavio Renn lost the keys")


def test_event_times_are_read_as_day_month_or_year_and_else_left_open() -> None:
    events = {session.id: session for session in load(SAMPLE)[0].sessions}
    assert events["7_0_0"].time == datetime(2021, 3, 3)
    assert events["7_0_1"].time == datetime(2019, 1, 1)
    assert events["7_1_0"].time == datetime(2022, 6, 1)
    assert events["7_2_0"].time is None
    assert events["7_2_0"].time_text == "during a long winter"


def test_a_dialogue_has_its_time_and_the_character_is_the_user() -> None:
    session = load(SAMPLE)[0].sessions[6]
    assert session.time == datetime(2021, 3, 10, 18, 30)
    assert [(turn.speaker, turn.role) for turn in session.turns[:2]] == [
        ("Livia Marchetti", "user"),
        ("Ottavio Renn", "assistant"),
    ]
    assert session.turns[5].text == "Fine. But I choose the cases, and they will be orange."


def test_a_dialogue_of_two_times_is_two_sessions_whose_lines_are_numbered_through() -> None:
    first, second = load(SAMPLE)[0].sessions[7:]
    assert (first.time, second.time) == (datetime(2022, 6, 18, 9, 0), datetime(2022, 6, 18, 13, 15))
    assert [turn.id for turn in (*first.turns, *second.turns)] == [f"7_1_0#1:{n}" for n in (1, 2, 3, 4)]


def test_a_line_without_a_speaker_is_kept(tmp_path: Path) -> None:
    memory = copy.deepcopy(MEMORY)
    memory["Bram Okoro"]["dialogues"]["9_0_0#2"]["contents"]["2020-11-13 07:45"][1] = "(laughter)"
    turn = load(folder(tmp_path, memory))[1].sessions[-1].turns[1]
    assert (turn.speaker, turn.text) == ("", "(laughter)")


def test_html_entities_are_unescaped_in_history_questions_and_answers() -> None:
    case = load(SAMPLE)[0]
    question, gold = case.questions[2]
    assert question.text == "Who is Livia Marchetti's role model?"
    assert gold.answers == ('Her role model is her aunt "Zita".',)
    assert gold.detail["anchors"] == ('aunt "Zita"',)
    assert "&" not in "".join(turn.text for turn in case.turns)


def test_a_section_written_as_a_python_literal_reads_like_the_object(tmp_path: Path) -> None:
    memory = copy.deepcopy(MEMORY)
    assert isinstance(memory["Bram Okoro"]["social_relationship"], str)
    memory["Bram Okoro"]["events"] = repr(memory["Bram Okoro"]["events"])
    case = load(folder(tmp_path, memory))[1]
    assert case.sessions == load(SAMPLE)[1].sessions
    assert [turn.id for turn in case.sessions[1].turns] == ["9_0", "9_1"]


@pytest.mark.parametrize(
    "literal",
    [
        pytest.param("{'9_0': ", id="unfinished"),
        pytest.param("__import__('os').getcwd()", id="a call"),
        pytest.param("[" * 1000, id="too many brackets"),
        pytest.param("not " * 20_000 + "1", id="too deep for the parser"),
        pytest.param("+1" * 50_000, id="too deep for Python"),
        pytest.param("0" * (MAX_LITERAL + 1), id="too long"),
        pytest.param("\x00", id="a null byte"),
    ],
)
def test_a_section_that_is_no_literal_or_too_long_is_refused_and_nothing_is_run(tmp_path: Path, literal: str) -> None:
    memory = copy.deepcopy(MEMORY)
    memory["Bram Okoro"]["social_relationship"] = literal
    with pytest.raises(DataError, match=r"Bram Okoro\.social_relationship: expected a .*literal"):
        load(folder(tmp_path, memory))[1]


def test_the_list_layout_reads_like_the_dict_layout(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    expected = list(load(SAMPLE))
    assert list(load(folder(tmp_path / "a", list(MEMORY.values())))) == expected
    assert list(load(folder(tmp_path / "b", [{name: each} for name, each in MEMORY.items()]))) == expected


def test_a_character_described_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="'Livia Marchetti' twice"):
        load(folder(tmp_path, [*MEMORY.values(), MEMORY["Livia Marchetti"]]))


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("['4_0_0']", ("4_0_0",)),
        ("Gender", ("Gender",)),
        ("['1_0_0', '1_0_1']", ("1_0_0", "1_0_1")),
        ("Awards and Role Models", ("Awards and Role Models",)),
    ],
)
def test_a_reference_is_a_field_name_or_a_list_written_in_python(text: str, ids: tuple[str, ...]) -> None:
    assert parse_references(text) == ids


@pytest.mark.parametrize("text", ["['4_0_0'", "[1]", "[open('x')]"])
def test_a_reference_that_opens_a_list_and_is_none_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="Reference Memory"):
        parse_references(text)


def test_evidence_is_every_turn_of_the_referenced_memories() -> None:
    golds = {question.id: gold for question, gold in load(SAMPLE)[0].questions}
    assert golds["profile_1"].evidence == ("profile:Age",)
    assert golds["social_0"].evidence == ("7_0",)
    assert golds["events_0"].evidence == ("7_0_0",)
    assert golds["events_3"].evidence == ("7_1_0", *(f"7_1_0#1:{n}" for n in (1, 2, 3, 4)))
    assert golds["dialogues_0"].evidence == tuple(f"7_0_0#1:{n}" for n in range(1, 7))


def test_a_reference_to_nothing_is_noted_and_kept_raw() -> None:
    case = load(SAMPLE)[0]
    gold = next(gold for question, gold in case.questions if question.id == "events_5")
    assert (gold.evidence, gold.detail["evidence_raw"]) == ((), ("7_3_0",))
    assert case.notes == ("events_5: its reference memory does not exist (7_3_0).",)


def test_a_character_without_memory_keeps_its_questions_and_says_so() -> None:
    case = load(SAMPLE)[2]
    assert case.sessions == ()
    assert [question.id for question, _ in case.questions] == ["profile_0", "events_0"]
    assert case.notes[0] == "Nobody Remembered: has questions but no memory."


def test_a_missing_section_of_a_memory_is_noted(tmp_path: Path) -> None:
    memory = copy.deepcopy(MEMORY)
    del memory["Bram Okoro"]["events"]
    case = load(folder(tmp_path, memory))[1]
    assert case.notes[0] == "Bram Okoro: its memory has no section events."
    assert [session.id for session in case.sessions] == ["profile", "social_relationship", "9_0_0#2"]


def test_a_section_of_questions_under_another_name_is_noted(tmp_path: Path) -> None:
    asked = copy.deepcopy(ASKED)
    asked[1]["Bram Okoro"]["Events"] = asked[1]["Bram Okoro"].pop("events")
    notes = load(folder(tmp_path, asked=asked))[1].notes
    assert "Bram Okoro: the section 'Events' of its questions is not read." in notes


def test_sections_become_categories() -> None:
    assert Counter(gold.category for case in load(SAMPLE) for _, gold in case.questions) == {
        "profile": 6,
        "social": 3,
        "events": 10,
        "dialogues": 4,
    }


@broken_copies(tests=2)
@given(memory=mutated_json(MEMORY))
def test_a_broken_memory_is_read_or_refused_with_a_reason(tmp_path: Path, memory: Any) -> None:
    check_only_data_errors(load, folder(tmp_path, memory))


@broken_copies(tests=2)
@given(asked=mutated_json(ASKED))
def test_a_broken_question_is_read_or_refused_with_a_reason(tmp_path: Path, asked: Any) -> None:
    check_only_data_errors(load, folder(tmp_path, asked=asked))


def test_a_broken_file_is_read_or_refused_with_a_reason(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for name in FILES:
        for damage in BROKEN_BYTES:
            with subtests.test(name=name, damage=damage):
                path = folder(tmp_path) / name
                path.write_bytes(BROKEN_BYTES[damage](path.read_bytes()))
                check_only_data_errors(load, tmp_path)


@pytest.mark.data
def test_the_held_excerpt_has_its_sections_questions_and_evidence() -> None:
    memory, asked = held("perltmem_en_v2.excerpt.json"), held("perltqa_en_v2.excerpt.json")
    (case,) = load(DATA, memory=memory, questions=asked)
    assert [len(session.turns) for session in case.sessions] == [15, 9, 1, 1, 1, 1, 19]
    golds = [gold for _, gold in case.questions]
    assert Counter(gold.category for gold in golds) == {"profile": 13, "social": 10, "events": 11, "dialogues": 3}
    assert all(gold.evidence for gold in golds)
    assert case.notes == ()


@pytest.mark.data
def test_the_full_release_has_its_published_sizes() -> None:
    held(FILES[0])
    held(FILES[1])
    cases = list(load(DATA))
    assert len(cases) == 32
    assert Counter(gold.category for case in cases for _, gold in case.questions) == {
        "profile": 357,
        "social": 897,
        "events": 4501,
        "dialogues": 2838,
    }
