"""What a sweep prints, and the sweep of CONTRIBUTING, run as printed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.command import main
from scripts.tables.sweep import SweepLine, best_lines, mean_text


def line(k: int, mean: float, *, by_case: bool = True, n: int = 48) -> SweepLine:
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
    return SweepLine({"k": k}, {**values, **empty, **ends}, 0.0)


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
    assert ", over 3 questions where the settings have scores for 3 to 48, chosen on" in fewer


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


@pytest.mark.parametrize("head", ["", "defaults:\n  - override /memory: bm25\n"])
def test_a_sweep_without_its_package_line_is_told_which_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], head: str
) -> None:
    (tmp_path / "conf" / "sweep").mkdir(parents=True)
    (tmp_path / "conf" / "sweep" / "mine.yaml").write_text(f"{head}sweep: {{name: mine}}\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "sweep=mine"]) == 2
    assert capsys.readouterr().err.endswith("conf/sweep/mine.yaml: its first line must be: # @package _global_\n")
