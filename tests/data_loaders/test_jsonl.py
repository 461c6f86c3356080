"""One's own data: the format, and what an error in it says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hypothesis import given
from mutations import BROKEN_BYTES, broken_copies, check_only_data_errors, mutated_json, write_jsonl

from data_loaders import jsonl
from data_loaders.jsonl import load
from data_loaders.schema import Case, DataError, Turn
from tests.scripts.commands import run_single

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "data_loaders" / "samples" / "jsonl.jsonl"


def example() -> Any:
    """The history that the module's description shows."""
    found = re.search(r"```json\n(.+?)\n```", jsonl.__doc__ or "", re.DOTALL)
    assert found
    return json.loads(found[1])


def changed(tmp_path: Path, change: Callable[[Any], Any]) -> Path:
    """A file whose second line is the example, changed."""
    record = example()
    change(record)
    return write_jsonl(tmp_path / "mine.jsonl", [{**example(), "id": "first"}, record])


def loaded(tmp_path: Path, change: Callable[[Any], Any] = lambda record: None) -> Case:
    return load(changed(tmp_path, change))[1]


def test_the_example_of_the_description_is_read_as_it_says(tmp_path: Path) -> None:
    case = loaded(tmp_path)
    assert (case.id, case.cluster, case.speakers) == ("harbour", "harbour", ("Ines", "Tomas"))
    assert case.turns == (
        Turn("S1:1", "Ines", "I start at the harbour office on Monday.", "user"),
        Turn("S1:2", "Tomas", "Then we can have lunch at the fish market.", "assistant"),
        Turn("S2:1", "Ines", "They moved me to the night shift.", "user"),
    )
    assert [(each.id, each.time, each.time_text) for each in case.sessions] == [
        ("S1", datetime(2024, 3, 2, 18, 30), "2024-03-02T18:30"),
        ("S2", datetime(2024, 4, 11), "2024-04-11"),
    ]
    (early, workplace), (late, shift), (_, unknown) = case.questions
    assert (early.id, early.text, early.after) == ("q1", "Where does Ines work?", "S1:2")
    assert workplace.answers == ("at the harbour office", "harbour office")
    assert (workplace.evidence, workplace.category, workplace.answerable) == (("S1:1",), "single-hop", True)
    assert (late.id, late.after, shift.evidence, shift.category) == ("shift", None, ("S2:1",), "")
    assert (unknown.answerable, unknown.evidence) == (False, ())


def test_whoever_speaks_first_is_the_user_where_no_speakers_are_listed(tmp_path: Path) -> None:
    def three_people(record: Any) -> None:
        del record["speakers"]
        record["sessions"][0]["turns"].insert(0, ["Ada", "Tell me your news."])

    case = loaded(tmp_path, three_people)
    assert case.speakers == ("Ada", "Ines", "Tomas")
    assert [turn.role for turn in case.turns] == ["user", "assistant", "assistant", "assistant"]


def test_a_history_without_times_or_questions_is_read(tmp_path: Path) -> None:
    def bare(record: Any) -> None:
        record["questions"] = []
        for session in record["sessions"]:
            del session["time"]

    case = loaded(tmp_path, bare)
    assert case.questions == ()
    assert {(session.time, session.time_text) for session in case.sessions} == {(None, "")}


def put(*path: Any) -> Callable[[Any], None]:
    """Puts the last of the arguments at the place that the others name."""
    *parents, key, value = path

    def change(record: Any) -> None:
        for parent in parents:
            record = record[parent]
        record[key] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (put("id", " "), r"\.id: expected text, found ' '"),
        (put("id", "first"), r"id: expected unique ids, found 'first' twice"),
        (put("sessions", []), r"\.sessions: expected at least one turn, found none"),
        (put("sessions", 1, "id", "S1"), r"\.sessions: expected unique ids, found 'S1' twice"),
        (put("sessions", 1, "id", 2), r"\.sessions\[1\]\.id: expected string, found int 2"),
        (put("sessions", 0, "turns", 1, ["Tomas"]), r"\.sessions\[0\]\.turns\[1\]: expected a pair \[speaker, text\]"),
        (put("sessions", 0, "turns", 1, ["Thomas", "Hello."]), r"\.sessions\[0\]\.turns\[1\]: expected a speaker of .* found 'Thomas'"),
        (put("sessions", 0, "time", "2 March"), r"\.sessions\[0\]\.time: expected a time such as 2024-03-02T18:30"),
        (put("sessions", 0, "time", "2024-03-02T18:30+02:00"), r"\.sessions\[0\]\.time: expected a time without an offset"),
        (put("speakers", ["Ines", "Ines"]), r"\.speakers: expected unique ids, found 'Ines' twice"),
        (put("questions", 0, "evidence", ["S1:3"]), r"\.questions\[0\]\.evidence\[0\]: expected the id of a turn .* found 'S1:3'"),
        (put("questions", 0, "after", "S1"), r"\.questions\[0\]\.after: expected the id of a turn .* found 'S1'"),
        (put("questions", 0, "answers", []), r"\.questions\[0\]\.answers: expected at least one answer"),
        (put("questions", 0, "answers", "harbour"), r"\.questions\[0\]\.answers: expected list, found string 'harbour'"),
        (put("questions", 0, "id", "shift"), r"\.questions: expected unique ids, found 'shift' twice"),
        (put("questions", 0, "evidense", []), r"\.questions\[0\]: expected only the fields id, .* found 'evidense'"),
        (put("session", []), r": expected only the fields id, sessions, questions, speakers, found 'session'"),
        (put("questions", 2, "answerable", "no"), r"\.questions\[2\]\.answerable: expected true/false, found string 'no'"),
    ],
)  # fmt: skip
def test_an_error_names_file_line_and_field(tmp_path: Path, change: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(DataError, match=r"^mine\.jsonl: (line 2)?" + message):
        loaded(tmp_path, change)


def test_lines_are_counted_with_blank_ones(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(f"\n\n{json.dumps(example())}\n\n{json.dumps({'id': 'x', 'sessions': 1})}\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"^mine\.jsonl: line 5\.sessions: expected list"):
        load(path)


def test_an_empty_file_is_an_error_that_says_where_the_format_stands(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text("\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"found no line \(data_loaders/jsonl\.py has an example\)"):
        load(path)


def test_the_answer_key_is_in_no_question(tmp_path: Path) -> None:
    (question, gold) = loaded(tmp_path).questions[0]
    assert not [answer for answer in gold.answers if answer in repr(question)]
    assert gold.category not in repr(question)


@broken_copies()
@given(raw=mutated_json([json.loads(SAMPLE.read_text(encoding="utf-8")), example()]))
def test_a_broken_record_is_read_or_refused_with_a_reason(tmp_path: Path, raw: Any) -> None:
    check_only_data_errors(load, write_jsonl(tmp_path / "mine.jsonl", raw))


@pytest.mark.parametrize("damage", BROKEN_BYTES)
def test_a_broken_file_is_read_or_refused_with_a_reason(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(BROKEN_BYTES[damage](SAMPLE.read_bytes()))
    check_only_data_errors(load, path)


@pytest.mark.slow
@pytest.mark.parametrize("named", ["folder", "file"])
def test_a_file_of_ones_own_runs_with_the_commands_of_the_description(
    named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "own.jsonl" if named == "folder" else "mine.jsonl"
    write_jsonl(tmp_path / name, [example()])
    where = f"data.root={tmp_path}" if named == "folder" else f"dataset.file={tmp_path / name}"
    options = [
        "memory=bm25",
        "dataset=jsonl",
        "data.source=real",
        "data.unpinned=true",
        where,
        f"results={tmp_path}",
        "print=plain",
    ]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose("config", options)
    assert run_single(cfg) == 0
    printed = capsys.readouterr().out
    assert "own data (JSONL): unpinned data" in printed
    assert ", 3 questions" in printed
