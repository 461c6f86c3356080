"""A results card: what a reviewer asks, from the folder of a run alone, in the numbers of the report."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from eval.files.run_folder import RunFolder, read_predictions
from eval.files.store import write_lines
from eval.report.card import run_card, table_card
from eval.report.rendering import shown
from scripts.command import verb
from scripts.door import Lab, Scored

main = partial(verb, "card")


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab("profile=smoke", f"results={tmp_path / 'results'}")


@pytest.fixture
def bm25(lab: Lab) -> Scored:
    return lab.score(lab.ask("bm25", "locomo"), ["locomo_f1"], ["mem0"])


def card_of(folder: Path) -> str:
    return run_card(folder, RunFolder(folder).record())


@pytest.mark.slow
def test_a_card_says_what_a_reviewer_asks(bm25: Scored) -> None:
    folder, record = bm25.answers.folder, bm25.answers.runs[0].record
    text = card_of(folder)
    for wanted in (
        folder.name,
        "STAND-IN: reader filled by engines without a model",
        f"status sample, sha256 {record.dataset['sha256'][0]}",
        "the whole data set",
        "build seed 0, replicate 0; data seed 0",
        "48 questions: 48 answered, 0 errors",
        "Detectable difference from another memory at 80 % power: ",
        *(digest for digest in record.prompts.values()),
        '"k": 10',
        "| recalled tokens |",
        "| judge_mem0 | 48 |",
    ):
        assert wanted in text, wanted
    judge = next(line for line in text.splitlines() if line.startswith("| judge_mem0-"))
    assert "| extractive |" in judge
    assert "judge/mem0" in judge


@pytest.mark.slow
def test_the_scores_of_a_card_are_those_of_the_report(bm25: Scored) -> None:
    text = card_of(bm25.answers.folder)
    for cell in bm25.cells.values():
        assert f"| {shown(cell)} |" in text


@pytest.mark.slow
def test_a_card_takes_a_cluster_that_is_no_text_for_a_name(bm25: Scored) -> None:
    case = next(bm25.answers.folder.glob("cases/*/case.json"))
    case.write_text(json.dumps({**json.loads(case.read_text("utf-8")), "cluster": ["x"]}) + "\n")
    assert "48 questions: 48 answered" in card_of(bm25.answers.folder)


@pytest.mark.slow
def test_a_card_counts_errors_and_cuts_and_names_the_reasons(lab: Lab) -> None:
    run = lab.score(lab.ask("recency", "locomo"), ["locomo_f1"], [])
    case = next(run.answers.folder.glob("cases/*"))
    first, second, *rest = read_predictions(case).values()
    failed = replace(first, outcome="error", error="HTTP 500 | <b>no</b>\nsecond line", answer="")
    write_lines(case / "predictions.jsonl", [failed, replace(second, cut=True), *rest])
    (case / "case.json").unlink()
    text = card_of(run.answers.folder)
    assert "48 questions: 47 answered, 1 error, 0 aborted, 1 cut" in text
    assert "- 1 × HTTP 500 \\| &lt;b>no&lt;/b> second line" in text
    assert "Not finished: 1 case without a case.json" in text


@pytest.mark.slow
def test_a_card_of_a_table_repeats_its_cells_captions_and_adjusted_p(lab: Lab, bm25: Scored) -> None:
    nothing = lab.score(lab.ask("nothing", "locomo"), ["locomo_f1"], ["mem0"])
    table = lab.table(bm25, nothing)
    folders = {row.answers.folder: row.answers.runs[0].record for row in (bm25, nothing)}
    text = table_card(table, folders)
    assert all(line in text for line in table.caption)
    for row in table.rows:
        for cell in row.cells:
            assert f"| {shown(cell)} |" in text
    assert all(f"{pair.p:.3f}" in text for pair in table.pairs.values() if pair.p is not None)
    assert all(f"## {record.name} on locomo" in text for record in folders.values())


@pytest.mark.slow
def test_the_command_writes_the_card_without_the_data(
    bm25: Scored, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scripts.assembly.run_folders.data_of", lambda *_: pytest.fail("the data were read"))
    folder = bm25.answers.folder
    assert main([str(folder)]) == 0
    file = tmp_path / "results" / "cards" / f"{folder.name}.md"
    assert capsys.readouterr().out == f"{file.read_text()}\nwritten: {file}\n"
    assert str(tmp_path) not in file.read_text()
    assert main([str(tmp_path / "nothing/here")]) == 2
    assert "nor a table" not in capsys.readouterr().err
    assert main(["nothing_here"]) == 2
    assert "nothing_here is neither a run folder" in capsys.readouterr().err
    monkeypatch.chdir(folder.parent)
    assert main([folder.name, "--to", str(tmp_path / "card.md")]) == 0
    assert capsys.readouterr().out.endswith(f"written: {tmp_path / 'card.md'}\n")
    assert (tmp_path / "card.md").read_text() == file.read_text()
    assert main([str(folder), str(folder)]) == 0
    assert f"{folder.name}-and-1.md (one card of 2 runs" in capsys.readouterr().out.splitlines()[-1]


def test_the_card_of_a_table_has_its_settings_and_the_runs_that_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, gone = tmp_path / "there", tmp_path / "gone"
    there.mkdir()
    RunFolder(there).file.touch()
    given: list[tuple[str, list[str]]] = []

    def finished(name: str, settings: list[str]) -> tuple[SimpleNamespace, Path]:
        given.append((name, settings))
        return SimpleNamespace(rows=[SimpleNamespace(runs={"a": there, "b": gone})]), tmp_path / "tables" / "t4-smoke"

    monkeypatch.setattr("scripts.tables.table.finished_table", finished)
    monkeypatch.setattr("scripts.commands.card.table_card", lambda table, runs: str(runs))
    monkeypatch.setattr(RunFolder, "record", lambda self: "its record")
    assert main(["segtreemem_t4", "data.size=6"]) == 0
    assert given == [("segtreemem_t4", ["data.size=6"])]
    assert (tmp_path / "cards" / "t4-smoke.md").read_text() == str({there: "its record"})


@pytest.mark.slow
def test_a_card_of_imported_answers_says_what_nobody_recorded(lab: Lab, tmp_path: Path) -> None:
    from scripts.answers.formats import Origin

    line = {"case_id": "conv-901", "question_id": "conv-901_q4", "answer": "Brioche"}
    file = tmp_path / "ours.jsonl"
    file.write_text(json.dumps(line))
    run = lab.score(lab.imported(file, Origin("mine", by="Ines", licence="MIT"), "locomo"), ["locomo_f1"], [])
    text = card_of(run.answers.folder)
    assert "Imported answers: by Ines; ours.jsonl" in text
    assert "licence MIT" in text
    assert "Models: not recorded." in text
    assert "| recalled tokens | not recorded |" in text
    assert "47 of 48 questions have no answer in the file." in text
