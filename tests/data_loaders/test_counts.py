"""Counts of the released files: what a run on them says of a loader that nobody has tested."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from data_loaders.halumem import load
from data_loaders.source import UNTESTED, compared, counts_of, sample
from scripts.assembly import datasets
from scripts.assembly.datasets import data
from scripts.command import verb
from scripts.setup.launch import composed
from scripts.setup.options import load_option, options

SAMPLE = sample("halumem.jsonl").path
NEW = {
    *("halumem", "halumem_long", "longmemeval_v2", "longmemeval_v2_medium"),
    *("longmemeval_v2_unjudged", "personamem_v2"),
}


def held(root: Path, sessions: int = 2) -> Path:
    """A data root whose file of HaluMem is the sample, as if it were the release."""
    (root / "halumem").mkdir(parents=True)
    shutil.copyfile(SAMPLE, root / "halumem" / "HaluMem-Medium.jsonl")
    return root


def note(published: dict[str, int], *settings: str, root: Path | None = None) -> str:
    where = ["data.source=real", f"data.root={root}", "data.unpinned=true"] if root else []
    cfg = composed("config", ["dataset=halumem", "memory=bm25", *where, *settings])
    return data(cfg.data, {**load_option("dataset", "halumem"), "published": published}).note()


def test_counts_are_named_and_those_that_differ_are_printed_with_both_numbers() -> None:
    found = counts_of(load(SAMPLE))
    assert (found["histories"], found["sessions"], found["turns"], found["questions"]) == (2, 5, 16, 7)
    assert found["memory-boundary"] == 1
    assert compared({"histories": 2, "questions": 7}, found) == "counts as published (histories 2, questions 7)"
    assert compared({"histories": 20, "questions": 7, "riddles": 3}, found) == (
        "counts differ from the published ones: histories 2 (published 20), riddles 0 (published 3)"
    )


@pytest.mark.slow
def test_a_sample_is_not_compared_and_the_real_file_is_before_it_is_cut(tmp_path: Path) -> None:
    assert note({"questions": 7}) == UNTESTED
    root = held(tmp_path / "data")
    assert note({"questions": 7}, "data.size=2", root=root) == f"{UNTESTED}, counts as published (questions 7)"
    assert note({"questions": 8}, root=root).endswith("questions 7 (published 8)")


@pytest.mark.slow
def test_the_whole_file_is_counted_only_for_a_caption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    monkeypatch.setattr(datasets, "counts_of", lambda cases: counted.append(len(cases)) or counts_of(cases))
    root = held(tmp_path / "data")
    cfg = composed(
        "config", ["dataset=halumem", "memory=bm25", "data.source=real", f"data.root={root}", "data.unpinned=true"]
    )
    loaded = data(cfg.data, load_option("dataset", "halumem"))
    assert counted == []
    assert loaded.note() == loaded.note()
    assert counted == [2]  # histories of the file, counted once


def test_the_data_command_says_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verb("data", ["halumem", "--data", str(held(tmp_path / "data")), "--unpinned"]) == 0
    said = capsys.readouterr().out
    assert UNTESTED in said
    assert "published      counts differ from the published ones: histories 2 (published 20), sessions 5" in said


@pytest.mark.slow
def test_every_untested_set_is_marked_in_the_list_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    assert {name for name in options("dataset") if load_option("dataset", name).get("untested")} == NEW
    assert verb("list", ["datasets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines if UNTESTED in line} == NEW


def test_published_counts_of_a_set_add_up() -> None:
    for name in NEW:
        published: dict[str, Any] = load_option("dataset", name)["published"]
        kinds = [
            count for key, count in published.items() if key not in ("histories", "sessions", "turns", "questions")
        ]
        assert sum(kinds) == published["questions"], name
