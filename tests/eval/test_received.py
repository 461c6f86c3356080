"""Run folders from elsewhere: links, FIFOs and odd records end in a sentence, in every command that reads them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from eval.analysis.watching import Watcher
from eval.files.run_folder import RunFolder
from eval.files.store import RunError
from eval.report.html.sources import read_sources
from scripts.answers.declared import Parsed, forms, read_declared
from scripts.answers.matching import amount_of
from scripts.command import verb
from scripts.commands import card, inspect, runs

RECORD: dict[str, Any] = {
    "name": "bm25",
    "memory": {"build": {"_target_": "memsys.systems.bm25.BM25"}},
    "dataset": {"name": "locomo"},
    "models": {"reader": {"engine": "extractive"}},
    "data_status": "sample",
    "prompts_dir": None,
}


TABLE: dict[str, Any] = {
    "title": "T",
    "caption": [],
    "columns": [{"dataset": "d", "title": "D", "metric": "m", "aggregate": "question", "questions": 1}],
    "rows": [{"title": "x", "runs": {}, "cells": [{"kind": "text", "text": "–"}]}],
}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    write(tmp_path / "results" / "runs" / "locomo" / "bm25-0123456789ab", RECORD)
    return tmp_path / "results"


def write(folder: Path, record: Any) -> Path:
    (folder / "cases" / "c").mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(record))
    return folder


def only(results: Path) -> Path:
    (folder,) = (results / "runs" / "locomo").iterdir()
    return folder


def printed(command: Any, *arguments: object, capsys: Any) -> str:
    """What a command that must refuse says: one line, exit code 2."""
    assert verb(command.__name__.rpartition(".")[2], [str(each) for each in arguments]) == 2
    said = str(capsys.readouterr().err)
    assert said.startswith("error: ") and "Traceback" not in said  # noqa: PT018
    return said


def a_link(folder: Path) -> None:
    (folder / "cases" / "c" / "notes").symlink_to(Path.home())


def a_loop(folder: Path) -> None:
    (folder / "cases" / "round").symlink_to(folder)


def a_pipe(folder: Path) -> None:
    os.mkfifo(folder / "cases" / "c" / "predictions.jsonl")


def a_lock_elsewhere(folder: Path) -> None:
    (folder / ".lock").symlink_to(folder.parents[3] / "authorized_keys")


@pytest.mark.parametrize("foreign", [a_link, a_loop, a_pipe, a_lock_elsewhere])
def test_links_loops_and_pipes_are_refused_by_inspect_card_report_and_list(
    foreign: Any, results: Path, capsys: Any
) -> None:
    folder = only(results)
    assert RunFolder(folder).record().name == "bm25"
    foreign(folder)
    assert "run folders hold files and folders only" in printed(inspect, folder, "q", capsys=capsys)
    assert "run folders hold files and folders only" in printed(card, folder, capsys=capsys)
    with pytest.raises(RunError, match="no runs and no tables"):
        read_sources(results, lambda record: ())
    (run,) = runs.folders(results)
    assert run.state == "damaged"
    assert "run folders hold files" in run.detail


def test_a_linked_run_is_left_out_of_the_report_and_its_target_is_never_removed(
    results: Path, tmp_path: Path, capsys: Any
) -> None:
    away = write(tmp_path / "away", RECORD)
    (results / "runs" / "locomo" / "linked-0123456789ab").symlink_to(away)
    said = printed(runs, "rm", "linked-0123456789ab", "--yes", "--results", results, capsys=capsys)
    assert "remove the link itself" in said
    assert (away / "run.json").is_file()
    sources = read_sources(results, lambda record: ())
    assert [run.title for each in sources.sets for run in each.runs] == ["bm25"]
    assert "it is a link" in sources.damaged[0]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("models", []),
        ("models", {"reader": []}),
        ("prompts_dir", 7),
        ("dataset", {"name": []}),
        ("dataset", "locomo"),
        ("name", None),
        ("memory", "bm25"),
        ("seed", 3),
        ("cases", True),
    ],
)
def test_odd_fields_of_run_json_are_one_sentence(field: str, value: Any, results: Path, capsys: Any) -> None:
    folder = write(only(results), {**RECORD, field: value})
    for command, arguments in ((inspect, [folder, "q"]), (card, [folder])):
        assert f"is damaged: {field}" in printed(command, *arguments, capsys=capsys)
    assert Watcher().run(folder) is None
    assert runs.folders(results)[0].state == "damaged"
    with pytest.raises(RunError, match="no runs"):
        read_sources(results, lambda record: ())


def test_a_card_of_a_received_run_begins_no_html_and_acts_on_no_terminal(results: Path, capsys: Any) -> None:
    active = "<img src=x onerror=alert(1)>\x1b[2J\u202e|"
    record = {**RECORD, "name": active, "models": {"reader": {"model": active}}, "prompts": {active: active}}
    assert verb("card", [str(write(only(results), record))]) == 0
    (file,) = (results / "cards").iterdir()
    for text in (capsys.readouterr().out, file.read_text("utf-8")):
        assert "&lt;img src=x onerror=alert(1)>" in text
        assert not {"\x1b", "\u202e"} & set(text)
        assert "<img" not in text


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        ([], "it holds no JSON object"),
        ({}, "title: Field required"),
        ({**TABLE, "rows": [{"title": "x", "runs": {}, "cells": 7}]}, "rows.0.cells"),
        ({**TABLE, "rows": [{"title": "x", "runs": {}, "cells": []}]}, "another number of cells"),
        ({**TABLE, "rows": [{"title": "x", "runs": {}, "cells": [{"kind": "score"}]}]}, "no estimate"),
    ],
)
def test_a_table_file_of_another_form_is_left_out_of_the_report_with_a_sentence(
    odd: Any, why: str, results: Path
) -> None:
    (results / "tables").mkdir()
    for name, content in (("whole", TABLE), ("odd", odd)):
        (results / "tables" / f"{name}.json").write_text(json.dumps(content))
    sources = read_sources(results, lambda record: ())
    assert [table.stem for table in sources.tables] == ["whole"]
    (said,) = [each for each in sources.missing if "odd.json" in each]
    assert why in said


def test_nothing_is_written_through_a_link_in_a_results_folder(results: Path, tmp_path: Path, capsys: Any) -> None:
    (away := tmp_path / "away").mkdir()
    (results / "cards").symlink_to(away)
    assert "cards is a link" in printed(card, write(only(results), RECORD), capsys=capsys)
    assert not list(away.iterdir())


def test_an_ordinary_record_passes(results: Path) -> None:
    record = RunFolder(only(results)).record()
    assert record.content == RECORD
    assert (record.name, record.dataset["name"], record.stand_ins) == ("bm25", "locomo", ["reader"])
    assert (record.prompts, record.cases, record.imported) == ({}, None, {}), "what an old file lacks has a value"


def test_numbers_of_five_thousand_digits_in_imported_answers_are_no_positions_times_or_grades() -> None:
    record = {"question": "Q?", "response": "x", "llm_score": 10**5000}
    contents = read_declared([Parsed("f.json", {"7": [record], "7" * 5000: [record]}, "")], forms()["mem0"])
    assert [answer.position for answer in contents.answers] == [7, None]
    assert (contents.counts["judge error"], amount_of(10**5000)) == (2, None)
