"""The growth command on the shipped samples."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from scripts.commands.growth import INTERVALS
from tests.scripts.commands import growth

pytestmark = pytest.mark.slow

CONF = str(Path(__file__).resolve().parents[2] / "conf")


@pytest.fixture
def measured(tmp_path: Path) -> Callable[..., tuple[int, list[dict[str, Any]]]]:
    """Measure as the command line does: exit code and lines."""

    def run(*overrides: str) -> tuple[int, list[dict[str, Any]]]:
        with initialize_config_dir(CONF, version_base="1.3"):
            cfg: DictConfig = compose("growth", [f"results={tmp_path}", "window=4", *overrides])
        code = growth(cfg)
        files = sorted((tmp_path / "growth").glob("*.csv"))
        return code, list(csv.DictReader(files[0].open(encoding="utf-8"))) if files else []

    return run


def column(rows: list[dict[str, Any]], what: str, name: str) -> list[float]:
    return [float(row[name]) for row in rows if row["what"] == what]


def test_an_online_tree_pays_the_path_not_the_history(measured: Callable[..., Any]) -> None:
    code, rows = measured("memory=segtree", "sizes=[24,6,12,20]")
    assert code == 0
    assert [row["n"] for row in rows] == ["6"] * 3 + ["12"] * 3 + ["20"] * 3 + ["24"] * 3
    assert {row["rebuilds"] for row in rows} == {"false"}
    calls, spent = column(rows, "one_more", "calls"), column(rows, "cumulative", "calls")
    assert 0 < calls[-1] <= 2 * calls[0]
    assert spent[0] < spent[1] < spent[2] < spent[3]
    assert 4 * calls[3] == pytest.approx(spent[3] - spent[2]), (
        "one more unit costs the mean of the window's four writes"
    )


def test_an_offline_tree_pays_a_whole_rebuild(measured: Callable[..., Any]) -> None:
    code, rows = measured("memory=raptor", "memory.build.reducer=pca", "sizes=[10,20,40]")  # UMAP compiles for long
    assert code == 0
    assert {row["rebuilds"] for row in rows} == {"true"}
    first, second, third = column(rows, "one_more", "embedding_tokens")
    assert first < second < third
    assert column(rows, "cumulative", "embedding_tokens")[-1] == pytest.approx(first + second + third)


@pytest.mark.parametrize("override", ["sizes=[]", "sizes=[0,5]", "window=0", "sizes=[9999]"])
def test_sizes_that_cannot_be_measured_are_refused(
    override: str, measured: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert measured("memory=bm25", override) == (2, [])
    assert capsys.readouterr().err.startswith("error: ")


def test_a_growth_curve_is_rehearsed_before_its_first_unit(
    measured: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eval.running.work._done", rehearsed := set())
    assert measured("memory=bm25", "sizes=[5]")[0] == 0
    assert len(rehearsed) == 1


def test_with_questions_recall_is_measured_and_summed_up(
    measured: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    code, rows = measured("memory=recency", "sizes=[10,160]", "questions=20")
    assert code == 0
    first, last = column(rows, "read", "covered")
    assert first > 0.5 > last
    said = capsys.readouterr().out
    asked = rows[0]["first_questions"]
    assert (
        f"160 units (301 turns): 20 questions of 3 histories with their evidence written, and the {asked} of the first size\n"
        in said
    )
    assert said.count(INTERVALS) == 1
    assert "score: locomo_f1 of the reader's answers\n" in said
    assert len(column(rows, "read", "score")) == 2
    assert f"covered: 10: {first:.4g} [" in said
    (power,) = column(rows, "cumulative_exponent", "object_bytes")
    assert f"; exponent {power:.4g}\n" in said


def test_a_memory_whose_reads_fail_is_an_error(
    measured: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("planted")

    monkeypatch.setattr("memsys.systems.bm25.BM25.read", fail)
    assert measured("memory=bm25", "sizes=[40]", "questions=4")[0] == 1
    assert capsys.readouterr().err.count("error: 40 units: questions failed: 4, without a score: 0 (limit 1.0%)\n") == 1
    assert measured("memory=bm25", "sizes=[40]", "questions=4", "max_unscored=1")[0] == 0


def test_every_choice_of_questions_has_a_file_of_its_own(measured: Callable[..., Any], tmp_path: Path) -> None:
    for override in ("questions=0", "questions=3", "questions=4", "k_evidence=3"):
        assert measured("memory=bm25", "sizes=[20]", override)[0] == 0
    assert measured("memory=bm25", "sizes=[20]", "questions=3", "score=false")[0] == 0
    assert len(list((tmp_path / "growth").glob("*.csv"))) == 4  # without questions, nothing counts recalled items
