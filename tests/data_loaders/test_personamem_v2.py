"""PersonaMem v2: queries in two notations, options in a stable order, histories by their links, and damaged files."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from mutations import broken_copies, check_only_data_errors, mutated_json, write_json

from data_loaders.personamem_v2 import BENCHMARK, length_caption, load
from data_loaders.raw import read_raw
from data_loaders.schema import DataError
from data_loaders.source import sample

SAMPLE = sample("personamem_v2").path
HISTORY = "data/chat_history_32k/chat_history_persona4.json"


def records() -> list[dict[str, str]]:
    with (SAMPLE / BENCHMARK).open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


def folder(path: Path, rows: Any) -> Path:
    """A copy of the sample with these records."""
    shutil.copytree(SAMPLE, path, dirs_exist_ok=True)
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    rows = [row if isinstance(row, dict) else {"": row} for row in (rows if isinstance(rows, list) else [rows])]
    for row in [list(rows[0])] if rows else []:
        writer.writerow(row)
    writer.writerows([str(value) for value in row.values()] for row in rows)
    (path / BENCHMARK).write_bytes(out.getvalue().encode("utf-8", "surrogatepass"))
    return path


def changed(path: Path, number: int, **fields: str) -> Path:
    rows = records()
    rows[number] |= fields
    return folder(path, rows)


def test_a_persona_is_a_case_with_one_history_and_its_questions_after_all_of_it() -> None:
    cases = load(SAMPLE)
    assert cases.ids == ("4", "9")
    assert [question.id for case in cases for question, _ in case.questions] == ["1", "2", "3", "4"]
    assert all(question.after is None for case in cases for question, _ in case.questions)
    assert [turn.role for turn in cases[0].turns[5:8]] == ["user", "user", "assistant"]


def test_the_persona_is_a_turn_without_a_speaker_unless_it_is_dropped() -> None:
    kept, dropped = load(SAMPLE)[0], load(SAMPLE, persona="drop")[0]
    assert kept.turns[0].speaker == ""
    assert "ferry mate" in kept.turns[0].text
    assert kept.turns[1:] == dropped.turns


def test_a_query_is_json_or_a_python_literal_or_else_text_with_a_note(tmp_path: Path) -> None:
    questions = [question for question, _ in load(SAMPLE)[0].questions]
    assert questions[1].text == "I cannot sleep in my quiet cabin ashore. What could help?"
    case = load(changed(tmp_path, 0, user_query="What suits my hall?"))[0]
    assert case.questions[0][0].text == "What suits my hall?"
    assert case.notes == ("1: its query is no message, and is taken as text.",)


def test_options_stand_in_an_order_that_is_the_same_for_everybody() -> None:
    question, gold = load(SAMPLE)[0].questions[0]
    assert question.options == (
        "Something for the kitchen, say a pan.",
        "A big bunch of lilies for the hall.",
        "A set of cushions.",
        "Perhaps a brass barometer: it brightens the hall without any scent.",
    )
    assert gold.answers == ("Final Answer: D", question.options[3])
    letters = [gold.detail["letter"] for case in load(SAMPLE) for _, gold in case.questions]
    assert letters == ["(d)", "(c)", "(d)", "(c)"]


def test_the_caption_says_what_the_longest_option_scores() -> None:
    assert length_caption(SAMPLE) == "without any memory, always the longest option scores 75.0 %"


def test_a_link_may_not_lead_out_of_the_folder(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for link in ("../secret.json", "/etc/hosts", "data/../../x.json", "a\\b.json", ""):
        with subtests.test(link=link), pytest.raises(DataError, match="expected a path below the folder"):
            load(folder(tmp_path, [row | {"chat_history_32k_link": link} for row in records()]))


def test_a_broken_field_is_named_with_its_record(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for fields, message in [
        ({"incorrect_answers": "[1, 2, 3]"}, r"record 1\.incorrect_answers\[0\]: expected string"),
        ({"incorrect_answers": '["a", "b"]'}, r"record 1\.incorrect_answers: expected three texts"),
        ({"incorrect_answers": "none"}, r"record 1\.incorrect_answers: expected list"),
        ({"correct_answer": " "}, r"record 1\.incorrect_answers: expected three texts, and a correct_answer"),
        ({"pref_type": ""}, r"record 1: expected a user_query and a pref_type"),
        ({"persona_id": ""}, r"record 1\.persona_id: expected a persona, found none"),
        ({"user_query": '{"content": 3}'}, r"record 1\.user_query\.content: expected string"),
        ({"chat_history_32k_link": "data/none.json"}, r"record 2\.chat_history_32k_link: expected one history"),
    ]:
        with subtests.test(fields=fields), pytest.raises(DataError, match=message):
            list(load(changed(tmp_path, 0, **fields)))


def test_a_history_that_is_missing_or_broken_is_refused(tmp_path: Path) -> None:
    shutil.copytree(SAMPLE, tmp_path, dirs_exist_ok=True)
    (tmp_path / HISTORY).unlink()
    with pytest.raises(DataError, match=r"record 1\.chat_history_32k_link: expected a history file, found none at"):
        load(tmp_path)
    write_json(tmp_path / HISTORY, {"metadata": {}})
    with pytest.raises(DataError, match=r"chat_history_persona4.json\.chat_history: expected a value"):
        load(tmp_path)[0]


@broken_copies(tests=2)
@given(rows=mutated_json(records()))
def test_mutated_questions_load_or_are_refused(tmp_path: Path, rows: Any) -> None:
    check_only_data_errors(load, folder(tmp_path, rows))


@broken_copies(tests=2)
@given(raw=mutated_json(read_raw(SAMPLE / HISTORY).value))
def test_a_mutated_history_loads_or_is_refused(tmp_path: Path, raw: Any) -> None:
    shutil.copytree(SAMPLE, tmp_path, dirs_exist_ok=True)
    (tmp_path / HISTORY).write_text(json.dumps(raw), encoding="utf-8")
    check_only_data_errors(load, tmp_path)
