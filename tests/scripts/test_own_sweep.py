"""What a sweep prints, and the sweep of CONTRIBUTING, run as printed."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from statistics import fmean

import pytest

from data_loaders.locomo import load
from eval.files.store import read_lines
from scripts.command import main
from scripts.tables.sweep import SweepLine, best_lines, mean_text


def line(k: int, mean: float, *, by_case: bool = True, n: int = 48, first: int = 0) -> SweepLine:
    empty = dict.fromkeys(("case_low", "case_high", "cautious_low", "cautious_high"))
    ends = {
        f"{'case' if by_case else 'cautious'}_{end}": mean + (0.1 if end == "high" else -0.1) for end in ("low", "high")
    }
    values = {
        "dataset": "locomo",
        "metric": "judge",
        "category": "all",
        "mean": mean,
        "n": n,
        "question_low": 0.0,
        "question_high": 1.0,
    }
    return SweepLine({"k": k}, {**values, **empty, **ends}, 0.0, frozenset(range(first, first + n)))


def test_a_sweep_prints_its_means_with_their_intervals() -> None:
    assert mean_text(line(1, 0.125)) == "mean 0.125 {0.025, 0.225}"
    assert mean_text(line(1, 0.125, by_case=False)) == "mean 0.125 [0.025, 0.225]"


def test_a_sweep_names_the_best_setting_and_says_that_it_was_chosen() -> None:
    assert best_lines([line(1, 0.125), line(5, 0.5)]) == [
        "best on locomo judge: k=5 (mean 0.500 {0.400, 0.600}), chosen on these questions, so on average too high"
    ]
    (tied,) = best_lines([line(1, 0.5), line(5, 0.5), line(9, 0.5)])
    assert tied.endswith(
        "0.600}), 2 other settings with the same mean, chosen on these questions, so on average too high"
    )
    assert best_lines([line(1, 0.125)]) == []
    (fewer,) = best_lines([line(1, 0.5), line(5, 1.0, n=3)])
    assert ", over 3 of 48 questions, not the same ones for each setting, chosen on" in fewer


def test_settings_scored_on_as_many_but_other_questions_are_said_to_be_so() -> None:
    (others,) = best_lines([line(1, 0.5, n=47), line(5, 1.0, n=47, first=1)])
    assert ", over 47 of 48 questions, not the same ones for each setting, chosen on" in others


@pytest.mark.slow
def test_the_sweep_of_contributing_runs_as_printed(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (block,) = [block for block in re.findall(r"^```yaml\n(.*?)^```$", page, re.M | re.S) if "\nsweep:\n" in block]
    (tmp_path / "conf" / "sweep").mkdir(parents=True)
    (tmp_path / "conf" / "sweep" / "mine.yaml").write_text(block, encoding="utf-8")
    monkeypatch.chdir(tmp_path)  # its folder `conf` is searched before the shipped one
    assert main(["sweep", "sweep=mine", "data.size=6"]) == 0
    printed = capsys.readouterr().out
    assert re.findall(r"^k=(\d+) ", printed, re.MULTILINE) == ["1", "5", "10"]
    assert "\nbest on locomo locomo_f1: k=" in printed


@pytest.mark.slow
def test_a_sweep_by_category_names_each_line_and_counts_its_questions(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "conf" / "sweep").mkdir(parents=True)
    metric = "{metric: locomo_f1, by: {all: null, temporal: null}}"
    (tmp_path / "conf" / "sweep" / "mine.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /memory: bm25\nsweep:\n  name: mine\n  title: k\n  models: {}\n"
        f"  read: [{{k: [1, 5]}}]\n  columns:\n    - {{dataset: locomo, reader: mem0, metrics: [{metric}]}}\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "sweep=mine"]) == 0
    printed = capsys.readouterr().out
    assert re.findall(r"^(k=\d+) · (.*): mean .*, n (\d+),", printed, re.MULTILINE) == [
        (f"k={k}", f"locomo locomo_f1{category}", n)
        for k in (1, 5)
        for category, n in (("", "48"), (" (temporal)", "13"))
    ]
    assert re.findall(r"^best on locomo locomo_f1( \(temporal\))?: ", printed, re.MULTILINE) == ["", " (temporal)"]
    with Path("results/sweeps/mine-smoke.csv").open(encoding="utf-8") as file:
        lines = {(line["k"], line["category"]): line for line in csv.DictReader(file)}
    for k in ("1", "5"):
        scores = Path("results/runs", lines[k, "all"]["run"], "scores")
        found = {line["question_id"]: line["value"] for line in read_lines(next(scores.glob("locomo_f1-*.jsonl")))}
        questions = [each for case in load(root / "data_loaders/samples/locomo.json") for each in case.questions]
        own = [found[question.id] for question, gold in questions if gold.category == "temporal"]
        assert float(lines[k, "temporal"]["mean"]) == pytest.approx(fmean(own), abs=1e-6)


@pytest.mark.parametrize("head", ["", "defaults:\n  - override /memory: bm25\n"])
def test_a_sweep_without_its_package_line_is_told_which_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], head: str
) -> None:
    (tmp_path / "conf" / "sweep").mkdir(parents=True)
    (tmp_path / "conf" / "sweep" / "mine.yaml").write_text(f"{head}sweep: {{name: mine}}\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "sweep=mine"]) == 2
    assert capsys.readouterr().err.endswith("conf/sweep/mine.yaml: its first line must be: # @package _global_\n")
