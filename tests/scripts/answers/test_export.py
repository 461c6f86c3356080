"""A run in the form of others: what is written can be read there, and says what the run says."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from eval.files.run_folder import RunFolder, judge_metric, read_predictions
from eval.files.store import RunError, read_lines, write_lines
from scripts.answers import scoring
from scripts.answers.declared import parsed
from scripts.answers.finished import finished_run
from scripts.answers.formats import Origin
from scripts.answers.manifest import FOLDER, AnswersFile, Claim
from scripts.answers.matching import of_cases
from scripts.answers.scoring import score_claim
from scripts.command import verb
from scripts.commands import check_answers
from scripts.commands.export import LOWER_IS_BETTER, write_every_eval_ever
from scripts.door import Lab, Scored
from scripts.setup.options import metric_options, options

pytestmark = pytest.mark.slow

main = partial(verb, "export")

METRICS = ["mem0_f1", "locomo_f1", "bleu1_mem0"]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab("profile=smoke", f"results={tmp_path_factory.mktemp('export') / 'results'}")


@pytest.fixture(scope="module")
def bm25(lab: Lab) -> Scored:
    return lab.score(lab.ask("bm25", "locomo"), METRICS, ["mem0"])


def exported(run: Scored, form: str, to: Path) -> Path:
    assert main([str(run.answers.folder), "--format", form, "--to", str(to)]) == 0
    return to


def test_an_import_of_the_mem0_form_gives_the_same_scores(lab: Lab, bm25: Scored, tmp_path: Path) -> None:
    (file,) = exported(bm25, "mem0", tmp_path).iterdir()
    again = lab.score(lab.imported(file, Origin("again"), "locomo"), METRICS, ["mem0"])
    assert again.answers.runs[0].record.imported["mismatches"] == ()
    for metric, cell in bm25.cells.items():
        assert again.cells[metric].scores == cell.scores, metric


def test_the_mem0_form_leaves_out_what_failed_and_counts_it(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = lab.score(lab.ask("recency", "locomo", k=3), ["mem0_f1"], [])
    case = next(run.answers.folder.glob("cases/*"))
    first, *rest = read_predictions(case).values()
    write_lines(case / "predictions.jsonl", [replace(first, outcome="error", error="HTTP 500", answer=""), *rest])
    (file,) = exported(run, "mem0", tmp_path).iterdir()
    assert "left out: 1 question without an answer" in capsys.readouterr().out
    assert sum(map(len, json.loads(file.read_text()).values())) == 47


def test_every_eval_ever_gets_the_number_of_verdicts_that_are_missing_among_repeats(
    bm25: Scored, tmp_path: Path
) -> None:
    """A question with one verdict of two is scored, so no other count shows what is missing."""
    folder = Path(
        shutil.copytree(bm25.answers.folder, tmp_path / "results" / "runs" / "locomo" / bm25.answers.folder.name)
    )
    (file,) = RunFolder(folder).score_files("judge_mem0")
    lines = read_lines(file)
    again = [{**line, "repeat": 1, "value": line["value"] if place else None} for place, line in enumerate(lines)]
    write_lines(file, [each for pair in zip(lines, again, strict=True) for each in pair])
    write_every_eval_ever(finished_run(folder, None), tmp_path)
    (written,) = (path for path in (tmp_path / "data").rglob("*.json"))
    results = {one["metric_config"]["metric_id"]: one for one in json.loads(written.read_text())["evaluation_results"]}
    details = {name: one["score_details"]["details"] for name, one in results.items()}
    assert details["judge_mem0"]["missing"] == f"1 of {2 * len(lines)} verdicts missing, 2 an answer"
    assert "missing" not in details["mem0_f1"]


@pytest.mark.parametrize("form", ["eee", "hf", "mem0"])
def test_an_answer_that_ends_in_half_an_emoji_is_exported(lab: Lab, tmp_path: Path, form: str) -> None:
    run = lab.score(lab.ask("recency", "locomo", k=4), ["mem0_f1"], [])
    case = next(run.answers.folder.glob("cases/*"))
    first, *rest = read_predictions(case).values()
    write_lines(case / "predictions.jsonl", [replace(first, answer="a cut \ud83d", outcome="answered"), *rest])
    files = [file for file in exported(run, form, tmp_path).rglob("*") if file.is_file()]
    assert any("a cut " in file.read_text(encoding="utf-8") for file in files)


def test_an_exported_run_passes_check_answers_and_its_audit_gives_the_runs_own_scores(
    bm25: Scored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file,) = exported(bm25, "mem0", tmp_path / FOLDER).iterdir()
    cases = bm25.answers.dataset.cases
    questions = of_cases("LoCoMo", [cases[index] for index in range(len(cases))])
    for module in (check_answers, scoring):
        monkeypatch.setattr(module, "questions_of", lambda title, root: questions)
    assert verb("check-answers", [str(file)]) == 0
    own = AnswersFile("a.json", file.name, parsed(file).sha256, 1)
    facts = dict.fromkeys(
        ("product", "system", "by", "repository", "commit", "date", "licence", "answer_model", "judge"), ""
    )
    scored = score_claim(Claim("ours", "LoCoMo", form="mem0", files=(own,), **facts), tmp_path)
    assert scored.joined == 1.0
    for measure, metric in (("f1", "locomo_f1"), ("verdict", "judge_mem0"), ("bleu1", "bleu1_mem0")):
        ours = bm25.cells[metric].scores
        pairs = [pair for pair in zip(scored.asked, scored.measures[measure], strict=True) if pair[0].answerable]
        audited = {(each.case_id, each.question_id): value for each, value in pairs}
        assert audited == pytest.approx({key: ours[key] for key in audited}, abs=1e-6), metric


def test_the_hugging_face_folder_loads_offline_with_every_question(bm25: Scored, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    folder = exported(bm25, "hf", tmp_path / "set")
    loaded = datasets.load_dataset(str(folder), cache_dir=str(tmp_path / "cache"))["test"]
    assert len(loaded) == 48
    scores = {row["question_id"]: row["scores"] for row in loaded}
    (name,) = [name for name in next(iter(scores.values())) if name.startswith("mem0_f1-")]
    ours = {question: score for (_, question), score in bm25.cells["mem0_f1"].scores.items()}
    assert {question: row[name] for question, row in scores.items()} == ours
    readme = (folder / "README.md").read_text()
    assert "STAND-IN: reader" in readme
    assert "no licence that is known" in readme


def test_every_eval_ever_gets_our_means_intervals_and_answers(bm25: Scored, tmp_path: Path) -> None:
    folder = exported(bm25, "eee", tmp_path)
    (aggregate,) = folder.glob("data/locomo/memsys-bench/bm25/*-*.json")
    (samples,) = folder.glob("data/locomo/memsys-bench/bm25/*_samples.jsonl")
    record, lines = json.loads(aggregate.read_text()), [json.loads(line) for line in samples.read_text().splitlines()]
    assert record["detailed_evaluation_results"]["file_path"] == samples.relative_to(folder).as_posix()
    assert record["detailed_evaluation_results"]["total_rows"] == len(lines) == 48 * 4
    assert "extractive" in record["model_info"]["additional_details"]["model_reader"]
    by_metric = {result["metric_config"]["metric_id"]: result for result in record["evaluation_results"]}
    for metric, cell in bm25.cells.items():
        ours, details = cell.estimate(), by_metric[metric]["score_details"]
        assert ours is not None
        assert ours.by_question is not None
        assert details["score"] == ours.mean
        assert details["uncertainty"]["confidence_interval"]["lower"] == ours.by_question.low
        assert details["details"]["scored"] == "48"
    assert not any(result["metric_config"]["lower_is_better"] for result in by_metric.values())
    assert {*LOWER_IS_BETTER} <= {*metric_options(), *map(judge_metric, options("judge"))}, "names of scores"
    again = exported(bm25, "eee", tmp_path / "again")
    assert [path.name for path in again.rglob("*.json")] == [aggregate.name]


@pytest.mark.integration
def test_the_validator_of_every_eval_ever_passes_both_files(
    bm25: Scored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    validate = pytest.importorskip(
        "every_eval_ever.validate", reason="needs every-eval-ever (Python 3.12): pip install every-eval-ever"
    )
    exported(bm25, "eee", tmp_path)
    monkeypatch.chdir(tmp_path)
    files = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.json*")]
    assert len(files) == 2
    assert validate.main([*files, "--format", "github"]) == 0


def test_a_run_that_is_not_finished_is_not_exported(lab: Lab, tmp_path: Path) -> None:
    run = lab.ask("nothing", "locomo")
    next(run.folder.glob("cases/*/case.json")).unlink()
    with pytest.raises(RunError, match="1 case not finished"):
        finished_run(run.folder, None)
    assert main([str(run.folder), "--format", "eee", "--to", str(tmp_path)]) == 2


def test_a_run_whose_score_lost_its_answer_is_damaged(bm25: Scored, tmp_path: Path) -> None:
    run = Path(shutil.copytree(bm25.answers.folder, tmp_path / bm25.answers.folder.name))
    case = next(run.glob("cases/*"))
    write_lines(case / "predictions.jsonl", list(read_predictions(case).values())[1:])
    with pytest.raises(RunError, match="has a score and no answer"):
        write_every_eval_ever(finished_run(run, None), tmp_path / "to")


@pytest.mark.parametrize("form", ["eee", "hf", "mem0"])
def test_a_folder_whose_name_is_not_utf_8_is_refused_in_a_sentence(
    bm25: Scored, tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(bm25.answers.folder, tmp_path / os.fsdecode(b"caf\xe9")))
    assert main([str(run), "--format", form, "--to", str(tmp_path / "to")]) == 2
    assert "is not UTF-8" in capsys.readouterr().err
