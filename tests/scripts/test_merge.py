"""Shards and their merge: together they are one run, and what contradicts itself is refused by name."""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections import Counter
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from data_loaders.raw import LazyCases
from eval.files.run_folder import TIMELESS
from eval.files.store import RunError, read_lines
from eval.running.run import Run
from memsys.llm.batching.journal import Journal, JournalledCall
from memsys.llm.protocol import Completion
from memsys.llm.store import CacheStore, DamagedCache
from scripts.assembly.steps import in_shard
from scripts.command import verb
from scripts.commands.merge import merge
from scripts.lab.lab import Lab, Scored

main = partial(verb, "merge")


def scored(results: Path, *settings: str) -> Scored:
    lab = Lab("profile=smoke", f"results='{results}'", *settings)
    return lab.score(lab.ask("bm25", "locomo"))


def files_of(results: Path) -> dict[str, bytes]:
    """Cases and scores by their place below the results folder; costs hold measured seconds."""
    scores = [path for path in results.rglob("scores/*.jsonl") if not path.name.endswith(".effort.jsonl")]
    paths = [path for name in TIMELESS for path in results.rglob(name)] + scores
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


@pytest.mark.slow
def test_merging_again_adds_nothing(tmp_path: Path) -> None:
    scored(tmp_path / "1", "shard=1/2")
    assert merge([tmp_path / "1"], tmp_path / "into")[0] > 0
    assert merge([tmp_path / "1"], tmp_path / "into") == (0, 0)


@pytest.mark.slow
def test_a_source_on_a_read_only_file_system_is_merged_without_a_file_written_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache_of(tmp_path / "1", "red")
    scored(tmp_path / "1", "shard=1/2")
    before = sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "1").rglob("*"))
    for module in ("memsys.llm.store", "scripts.commands.merge"):
        monkeypatch.setattr(f"{module}.read_only", lambda path: tmp_path / "1" in path.resolve().parents)
    cases, rows = merge([tmp_path / "1"], tmp_path / "into")
    assert cases > 0
    assert rows > 0
    assert sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "1").rglob("*")) == before


def test_a_case_that_two_folders_answer_differently_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    for name in "12":
        scored(tmp_path / name, "shard=1/2")
    damaged = next((tmp_path / "2").rglob("predictions.jsonl"))
    lines = read_lines(damaged)
    damaged.write_text("".join(json.dumps({**line, "answer": "another"}) + "\n" for line in lines))
    with pytest.raises(RunError, match=f"{damaged} and .* differ"):
        merge([tmp_path / "1", tmp_path / "2"], tmp_path / "into")
    assert not (tmp_path / "into").exists()


@pytest.mark.slow
def test_an_unfinished_case_gives_way_to_a_finished_one(tmp_path: Path) -> None:
    for name in "12":
        scored(tmp_path / name, "shard=1/2")
    unfinished = next((tmp_path / "1").rglob("case.json"))
    unfinished.unlink()
    (unfinished.parent / "predictions.jsonl").write_bytes(b"")
    merge([tmp_path / "1", tmp_path / "2"], tmp_path / "into")
    (merged,) = (tmp_path / "into").rglob(f"{unfinished.parent.name}/predictions.jsonl")
    assert merged.read_bytes()


def key_of(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


def cache_of(results: Path, text: str, seconds: float = 1.0) -> None:
    (results / "runs").mkdir(parents=True)
    store = CacheStore(results / "cache.sqlite")
    for key in (key_of("shared"), key_of(text)):
        store.keep_answer(key, Completion(text if key == key_of("shared") else "own", seconds=seconds))
    store.close()


def answers_in(results: Path) -> list[str]:
    with sqlite3.connect(results / "cache.sqlite") as connection:
        rows = connection.execute("SELECT completion FROM answers ORDER BY key").fetchall()
    return [json.loads(row)["text"] for (row,) in rows]


def test_two_caches_with_different_answers_are_refused_unless_the_first_is_right(tmp_path: Path) -> None:
    cache_of(tmp_path / "a", "red")
    cache_of(tmp_path / "b", "blue")
    with pytest.raises(RunError, match="differ in 1 answer and 0 vectors"):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "into")
    assert merge([tmp_path / "a", tmp_path / "b"], tmp_path / "into", first=True) == (0, 3)
    assert sorted(answers_in(tmp_path / "into")) == ["own", "own", "red"]


def test_the_answers_that_the_first_folder_overrules_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, text in (("a", "red"), ("b", "blue"), ("c", "red")):
        cache_of(tmp_path / folder, text)
    assert main(["--first", *(str(tmp_path / folder) for folder in "abc"), str(tmp_path / "into")]) == 0
    assert capsys.readouterr().out.endswith("left out: 1 answer in conflict with a folder before\n")


def test_an_answer_that_only_took_longer_elsewhere_is_the_same_answer(tmp_path: Path) -> None:
    cache_of(tmp_path / "a", "red", seconds=1.0)
    cache_of(tmp_path / "b", "red", seconds=2.0)
    assert merge([tmp_path / "a", tmp_path / "b"], tmp_path / "into") == (0, 2)


def fill_journal(results: Path) -> None:
    """Give a results folder one reply that the cache lacks, one collected call and one batch at a provider."""
    journal = Journal(results / "cache.sqlite")
    journal.add([JournalledCall(name, "/chat/completions", b'{"model": "m"}') for name in ("a", "b", "c")])
    journal.keep({"a": (200, b'{"choices": []}')})
    journal.accepted(journal.begin([call for call in journal.open_calls() if call.name == "b"], "here"), "batch-7")
    journal.close()


def test_caches_with_batches_under_way_are_not_merged_and_replies_not_yet_in_a_cache_are_carried(
    tmp_path: Path,
) -> None:
    cache_of(tmp_path / "a", "red")
    fill_journal(tmp_path / "a")
    with pytest.raises(RunError, match="batches under way: 1;"):
        merge([tmp_path / "a"], tmp_path / "into")
    with closing(Journal(tmp_path / "a" / "cache.sqlite")) as journal:
        journal.drop("batch-7")
    merge([tmp_path / "a"], tmp_path / "into")
    with closing(Journal(tmp_path / "into" / "cache.sqlite")) as journal:
        assert journal.replied() == {"a"}
        assert [call.name for call in journal.open_calls()] == ["c"]


def test_rows_without_a_whole_key_are_left_out_and_counted(tmp_path: Path) -> None:
    cache_of(tmp_path / "a", "red")
    with closing(sqlite3.connect(tmp_path / "a" / "cache.sqlite")) as file, file:
        file.execute("INSERT INTO answers VALUES (x'01', '{}')")
    left_out = Counter[tuple[str, str]]()
    assert merge([tmp_path / "a"], tmp_path / "into", left_out=left_out) == (0, 2)
    assert left_out["row", "of answers whose key has not 32 bytes"] == 1


@pytest.mark.parametrize("trap", ["linked notes", "linked cache", "linked runs", "pipe", "pipe of SQLite"])
def test_a_received_folder_with_links_or_pipes_is_refused_and_nothing_is_copied(trap: str, tmp_path: Path) -> None:
    received, private = tmp_path / "received", tmp_path / "private"
    cache_of(received, "red")
    case = received / "runs" / "locomo" / "r" / "cases" / "c"
    private.mkdir()
    (private / "secret").write_text("mine")
    if trap == "linked runs":
        (received / "runs").rmdir()
        (received / "runs").symlink_to(private)
    else:
        case.mkdir(parents=True)
        (case.parent.parent / "run.json").write_text("{}")
        (case / "case.json").write_text("{}")
    if trap == "linked notes":
        (case / "notes").symlink_to(private)
    elif trap == "linked cache":
        (received / "cache.sqlite").rename(private / "cache.sqlite")
        (received / "cache.sqlite").symlink_to(private / "cache.sqlite")
    elif trap == "pipe":
        os.mkfifo(case / "pipe")
    elif trap == "pipe of SQLite":
        os.mkfifo(received / "cache.sqlite-journal")
    with pytest.raises(RunError, match="is a link or no plain file"):
        merge([received], tmp_path / "into")
    assert not (tmp_path / "into").exists()


@pytest.mark.parametrize(
    "planted",
    [
        "CREATE TRIGGER t BEFORE INSERT ON answers BEGIN SELECT RAISE(IGNORE); END",
        "CREATE VIEW more AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x FROM n) SELECT x FROM n",
        "ALTER TABLE answers ADD COLUMN third",
        "CREATE INDEX i ON answers (abs(completion))",
    ],
)
def test_a_received_cache_with_a_schema_of_its_own_is_refused(planted: str, tmp_path: Path) -> None:
    cache_of(tmp_path / "a", "red")
    with closing(sqlite3.connect(tmp_path / "a" / "cache.sqlite")) as file:
        file.execute(planted)
    with pytest.raises(RunError, match="is no part of a cache, or has other columns"):
        merge([tmp_path / "a"], tmp_path / "into")
    with pytest.raises(DamagedCache, match="is no part of a cache, or has other columns"):
        CacheStore(tmp_path / "a" / "cache.sqlite")


def test_what_is_no_results_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is no results folder"):
        merge([tmp_path / "typo"], tmp_path / "into")


def test_a_target_that_is_also_a_source_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with pytest.raises(RunError, match="is also a source"):
        merge([tmp_path / "runs" / "..", tmp_path], tmp_path)


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
