"""The report of real run folders: what judges were sent, waterfalls and ceilings, from the same files as the tables."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from eval.files.run_folder import RunFolder, read_predictions
from eval.files.store import read_lines
from eval.judging.judge import Judge, judge_requests
from eval.report.html.build import Wanted, build
from eval.report.html.sources import read_sources
from memsys.prompts import SHIPPED, Prompts
from scripts.assembly.run_folders import data_of
from scripts.command import verb
from scripts.door import Lab
from tests.scripts.test_report import data

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("judged")
    lab = Lab("profile=smoke", "data.size=12", f"results={folder}", "executor=threads")
    for name in ("gold_evidence", "recency"):
        lab.score(lab.ask(name, "locomo"), ["locomo_f1"], ["mem0"])
    return folder


def report_of(results: Path) -> Path:
    return build(read_sources(results, lambda record: data_of(record, None).cases), results / "report", Wanted()).parent


def answers(report: Path) -> list[tuple[Mapping[str, Any], Mapping[str, Any], list[str]]]:
    """Question, answer and texts of every answer of the only set."""
    blocks = [data(report, f"set0-block{number}") for number in range(data(report, "index")["sets"][0]["blocks"])]
    return [
        (page, answer, block["texts"]) for block in blocks for page in block["questions"] for answer in page["runs"]
    ]


def test_every_judges_prompt_is_the_request_that_was_sent(results: Path) -> None:
    report = report_of(results)
    index, prompts = data(report, "index"), Prompts()
    (judge,) = [place for place, scorer in enumerate(index["sets"][0]["scorers"]) if scorer["judge"]]
    cases = {
        case.id: case for case in data_of(RunFolder(results / "runs" / index["runs"][0]["key"]).record(), None).cases
    }
    shown = answers(report)
    assert len(shown) == 24
    for page, answer, texts in shown:
        folder = results / "runs" / index["runs"][answer["run"]]["key"]
        (question, gold) = next(pair for pair in cases[page["case"]].questions if pair[0].id == page["id"])
        prediction = read_predictions(folder / "cases" / page["case"])[page["id"]]
        (request,) = judge_requests(judge_named(results), prompts, question, gold, prediction.answer)
        (messages,) = answer["judged"][str(judge)]["requests"]
        assert [(role, "".join(texts[part] for part in parts)) for role, parts in messages] == list(request.messages)


def test_a_second_report_of_a_process_sees_a_prompt_file_that_has_changed(tmp_path: Path) -> None:
    own, results = tmp_path / "prompts" / "judge" / "mem0.md", tmp_path / "results"
    own.parent.mkdir(parents=True)
    own.write_text((SHIPPED / "judge" / "mem0.md").read_text(encoding="utf-8"), encoding="utf-8")
    lab = Lab("profile=smoke", "data.size=2", f"results={results}", "executor=threads", f"prompts_dir={own.parents[1]}")
    lab.score(lab.ask("recency", "locomo"), [], ["mem0"])
    assert all("requests" in each for _, answer, _ in answers(report_of(results)) for each in answer["judged"].values())
    own.write_text(own.read_text(encoding="utf-8").replace("CORRECT", "RIGHT"), encoding="utf-8")
    reasons = {each["why"] for _, answer, _ in answers(report_of(results)) for each in answer["judged"].values()}
    assert reasons == {"the prompt file judge/mem0.md has changed since the verdict"}


def judge_named(results: Path) -> Judge:
    file = next(path for path in results.glob("runs/*/*/scores/judge_*.json") if "effort" not in path.name)
    return Judge(**json.loads(file.read_text())["judge"])


def test_a_prompt_of_another_answer_or_another_file_is_not_shown(results: Path) -> None:
    (scores,) = (
        path for path in results.glob("runs/locomo/recency-*/scores/judge_mem0-*.jsonl") if "effort" not in path.name
    )
    settings, lines = scores.with_suffix(".json"), scores.read_text()
    before = settings.read_text()
    try:
        scores.write_text("".join(json.dumps({**line, "answer": "0" * 12}) + "\n" for line in read_lines(scores)))
        reasons = {
            each["why"]
            for _, answer, _ in answers(report_of(results))
            for each in answer["judged"].values()
            if "why" in each
        }
        assert reasons == {"the verdict was given on another answer"}
        scores.write_text(lines)
        settings.write_text(before.replace(json.loads(before)["prompts"]["judge/mem0"], "0" * 64))
        reasons = {
            each["why"]
            for _, answer, _ in answers(report_of(results))
            for each in answer["judged"].values()
            if "why" in each
        }
        assert reasons == {"the prompt file judge/mem0.md has changed since the verdict"}
    finally:
        scores.write_text(lines)
        settings.write_text(before)


def test_waterfalls_and_ceilings_are_in_the_report_and_add_up(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder,) = (results / "runs" / "locomo").glob("recency-*")
    (file,) = folder.glob("scores/locomo_f1-*.jsonl")
    scores = {(line["case_id"], line["question_id"]): line["value"] for line in read_lines(file)}
    wrong = [key for key, value in scores.items() if value < 0.5][:3]
    errata = results / "mine.csv"
    with errata.open("w", newline="") as handle:
        csv.writer(handle).writerows([("case", "question", "gold"), *((*key, "") for key in wrong)])
    assert verb("ceilings", [str(folder), "--scores", "locomo_f1", "--errata", str(errata)]) == 0
    capsys.readouterr()
    report = report_of(results)
    index = data(report, "index")
    falls = [data(report, f"table{number}") for number, _ in index["losses"]]
    assert len(falls) == 2
    for fall in falls:
        assert all((results / name).is_file() for name in fall["from"].split(" and "))
        assert sum(step["value"] for step in fall["steps"]) == pytest.approx(1.0, abs=1e-4)
    ((number, _),) = index["ceilings"]
    every = data(report, f"table{number}")["rows"][0]
    assert (every["n"], every["faulty"], every["ceiling"]) == (12, 3, pytest.approx(9 / 12))
    assert every["released"]["mean"] == pytest.approx(sum(scores.values()) / 12)
