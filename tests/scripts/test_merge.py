"""Shards and their merge: together they are one run, and what contradicts itself is refused by name."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from data_loaders.lazy import LazyCases
from eval.run import Run
from eval.store import RunError, read_lines
from memsys.llm.protocol import Completion
from memsys.llm.store import Store
from scripts.commands.merge import COMPARED, main, merge
from scripts.experiment.executors import in_shard
from scripts.experiment.lab import Lab, Scored


def scored(results: Path, *settings: str) -> Scored:
    lab = Lab("profile=smoke", f"results='{results}'", *settings)
    return lab.score(lab.ask("bm25", "locomo"))


def files_of(results: Path) -> dict[str, bytes]:
    """Cases and scores by their place below the results folder; costs hold measured seconds."""
    scores = [path for path in results.rglob("scores/*.jsonl") if not path.name.endswith(".effort.jsonl")]
    paths = [path for name in COMPARED for path in results.rglob(name)] + scores
    return {str(path.relative_to(results)): path.read_bytes() for path in paths}


@pytest.mark.slow
def test_two_shards_merged_are_one_run_and_nothing_is_answered_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = scored(tmp_path / "whole")
    parts = [scored(tmp_path / name, f"shard={name}/2") for name in "12"]
    assert [part.answers.capped.split(";")[0] for part in parts] == [f"Shard {i}/2 of the histories" for i in (1, 2)]
    cases = [{path.parent.name for path in (tmp_path / name).rglob("case.json")} for name in "12"]
    assert cases[0]
    assert cases[1]
    assert not cases[0] & cases[1]
    into = tmp_path / "into"
    assert main([*(str(tmp_path / name) for name in "12"), str(into)]) == 0
    assert capsys.readouterr().out.startswith(f"{into}: {len(cases[0] | cases[1])} cases")
    efforts = {path: path.read_bytes() for path in into.rglob("effort.jsonl")}
    merged = scored(into)
    assert {path: path.read_bytes() for path in into.rglob("effort.jsonl")} == efforts
    assert files_of(into) == files_of(tmp_path / "whole")
    assert merged.cells["locomo_f1"].estimate() == whole.cells["locomo_f1"].estimate()


def test_merging_again_adds_nothing(tmp_path: Path) -> None:
    scored(tmp_path / "1", "shard=1/2")
    assert merge([tmp_path / "1"], tmp_path / "into")[0] > 0
    assert merge([tmp_path / "1"], tmp_path / "into") == (0, 0)


def test_a_case_that_two_folders_answer_differently_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    for name in "12":
        scored(tmp_path / name, "shard=1/2")
    damaged = next((tmp_path / "2").rglob("predictions.jsonl"))
    lines = read_lines(damaged)
    damaged.write_text("".join(json.dumps({**line, "answer": "another"}) + "\n" for line in lines))
    with pytest.raises(RunError, match=f"{damaged} and .* differ"):
        merge([tmp_path / "1", tmp_path / "2"], tmp_path / "into")
    assert not (tmp_path / "into").exists()


def test_an_unfinished_case_gives_way_to_a_finished_one(tmp_path: Path) -> None:
    for name in "12":
        scored(tmp_path / name, "shard=1/2")
    unfinished = next((tmp_path / "1").rglob("case.json"))
    unfinished.unlink()
    (unfinished.parent / "predictions.jsonl").write_bytes(b"")
    merge([tmp_path / "1", tmp_path / "2"], tmp_path / "into")
    (merged,) = (tmp_path / "into").rglob(f"{unfinished.parent.name}/predictions.jsonl")
    assert merged.read_bytes()


def cache_of(results: Path, text: str, seconds: float = 1.0) -> None:
    (results / "runs").mkdir(parents=True)
    store = Store(results / "cache.sqlite")
    for key in (b"shared" * 6, text.encode() * 6):
        store.keep_answer(
            key, Completion(text if key.startswith(b"shared") else "own", seconds=seconds), lambda error: None
        )
    store.close()


def answers_in(results: Path) -> list[str]:
    with sqlite3.connect(results / "cache.sqlite") as connection:
        rows = connection.execute("SELECT completion FROM answers ORDER BY key").fetchall()
    return [json.loads(row)["text"] for (row,) in rows]


def test_two_caches_with_different_answers_are_refused_unless_the_first_is_right(tmp_path: Path) -> None:
    cache_of(tmp_path / "a", "red")
    cache_of(tmp_path / "b", "blue")
    with pytest.raises(RunError, match="differ in 1 answers and 0 vectors"):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "into")
    assert merge([tmp_path / "a", tmp_path / "b"], tmp_path / "into", first=True) == (0, 3)
    assert sorted(answers_in(tmp_path / "into")) == ["own", "own", "red"]


def test_an_answer_that_only_took_longer_elsewhere_is_the_same_answer(tmp_path: Path) -> None:
    cache_of(tmp_path / "a", "red", seconds=1.0)
    cache_of(tmp_path / "b", "red", seconds=2.0)
    assert merge([tmp_path / "a", tmp_path / "b"], tmp_path / "into") == (0, 2)


def test_what_is_no_results_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is no results folder"):
        merge([tmp_path / "typo"], tmp_path / "into")


@pytest.mark.parametrize("shards", [1, 2, 3, 7])
def test_every_case_is_in_one_shard_and_shards_are_about_equally_large(shards: int) -> None:
    sizes = [(7 * number) % 50 + 10 for number in range(40)]

    def parse(index: int) -> None:
        raise AssertionError("no case is parsed")

    cases = LazyCases([f"c{number}" for number in range(40)], sizes, parse)  # type: ignore[arg-type]
    run = Run("a", Path(), cases, tuple(sizes), None, None, {}, None)  # type: ignore[arg-type]
    parts = [in_shard(run, number, shards) for number in range(1, shards + 1)]
    ids = [case_id for part in parts for case_id in part.cases.ids]  # type: ignore[attr-defined]
    assert sorted(ids) == sorted(cases.ids)
    totals = [sum(part.sizes) for part in parts]
    assert max(totals) - min(totals) <= max(sizes)
