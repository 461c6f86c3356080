"""The run folders on this disk: what is shown of them, and which may go."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from eval.files.provenance import identity
from eval.files.store import locked
from scripts.assembly.runs import NOT_IDENTIFYING, modules_of
from scripts.command import verb
from scripts.commands import runs
from scripts.setup.launch import composed
from tests.scripts.commands import run_single

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results with two finished runs."""
    results = tmp_path_factory.mktemp("made")
    for memory in ("bm25", "segtree_cosine"):
        overrides = [f"results={results}", f"memory={memory}", "data.size=4", "data.max_cases=1"]
        assert run_single(composed("config", overrides)) == 0
    return results


@pytest.fixture
def results(made: Path, tmp_path: Path) -> Path:
    """The same, to be changed."""
    return Path(shutil.copytree(made, tmp_path / "results"))


def folder_of(results: Path, memory: str) -> Path:
    (found,) = (results / "runs" / "locomo").glob(f"{memory}-*")
    return found


def change(folder: Path, **values: Any) -> Path:
    """The run with another record, in a folder of another name."""
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**record, **values}))
    return folder.rename(folder.with_name(f"{record['name']}-000000000000"))


def unfinished(folder: Path) -> Path:
    next(folder.glob("cases/*/case.json")).unlink()
    return folder


def test_the_list_shows_memory_data_set_date_state_and_size(results: Path, capsys: Any) -> None:
    unfinished(folder_of(results, "bm25"))
    capsys.readouterr()
    assert verb("runs", ["list", "--results", str(results)]) == 0
    head, first, second, total = capsys.readouterr().out.splitlines()
    assert head.split() == ["memory", "data", "set", "started", "state", "size", "folder"]
    assert first.startswith("bm25 ")
    assert "unfinished (0 of 1 case)" in first
    assert second.split()[:2] == ["segtree_cosine", "locomo"]
    assert "finished (1 of 1 case)" in second
    assert second.endswith(str(folder_of(results, "segtree_cosine")))
    assert total.startswith("2 runs, ")


def test_what_tells_two_runs_apart_is_shown_place_by_place(results: Path, capsys: Any) -> None:
    overrides = [f"results={results}", "memory=bm25", "data.size=4", "data.max_cases=1"]
    assert run_single(composed("config", [*overrides, "memory.build.b=0.5", "prompts_dir=null"])) == 0
    capsys.readouterr()
    folders = sorted((results / "runs" / "locomo").glob("bm25-*"))
    names = [path.name for path in folders]
    for folder in folders:
        record = json.loads((folder / "run.json").read_text())
        parts = {name: value for name, value in record.items() if name not in NOT_IDENTIFYING}
        assert folder.name == f"bm25-{identity(parts)}"
    assert verb("runs", ["compare", *map(str, folders)]) == 0  # paths, below another results folder than the default
    paths_said = capsys.readouterr().out
    assert verb("runs", ["compare", *names, "--results", str(results)]) == 0
    names_said = capsys.readouterr().out
    assert paths_said == names_said
    _, _, *said = names_said.splitlines()
    assert [line.partition(":")[0] for line in said if "not part" not in line] == ["memory.build.b"]
    assert sorted(said[0].partition(": ")[2].split(" | ")) == ["0.5", "0.75"]


def test_two_runs_that_can_be_read_are_compared_and_no_others(results: Path, capsys: Any) -> None:
    name = folder_of(results, "bm25").name
    assert verb("runs", ["compare", name, "nobody", "--results", str(results)]) == 2
    assert "nobody is no run below" in capsys.readouterr().err
    (folder_of(results, "segtree_cosine") / "run.json").write_text("{")
    assert verb("runs", ["compare", name, folder_of(results, "segtree_cosine").name, "--results", str(results)]) == 2
    assert "there is nothing to compare" in capsys.readouterr().err


def test_a_file_of_two_names_counts_once(results: Path) -> None:
    folder = folder_of(results, "bm25")
    content = folder / "large"
    content.write_bytes(b"x" * 1_000_000)
    once = sum(runs.sizes(runs.folders(results)))
    os.link(content, folder_of(results, "segtree_cosine") / "large")
    assert sum(runs.sizes(runs.folders(results))) == once


def test_a_damaged_run_is_listed_as_such(results: Path, capsys: Any) -> None:
    (folder_of(results, "bm25") / "run.json").write_text("[")
    assert verb("runs", ["list", "--results", str(results)]) == 0
    assert "damaged" in capsys.readouterr().out.splitlines()[1]


def test_a_run_is_removed_by_its_name_or_its_folder_and_no_other(results: Path) -> None:
    first, second = folder_of(results, "bm25"), folder_of(results, "segtree_cosine")
    assert verb("runs", ["rm", first.name, "--results", str(results), "--yes"]) == 0
    assert not first.exists()
    assert second.exists()
    assert verb("runs", ["rm", str(second), "--results", str(results), "--yes"]) == 0
    assert not second.exists()


@pytest.mark.parametrize("command", ["rm", "gc"])
def test_without_a_yes_nothing_is_removed(
    command: str, results: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = change(unfinished(folder_of(results, "bm25")), source="other code")
    monkeypatch.setattr("sys.stdin", None)
    monkeypatch.setattr("builtins.input", lambda _: "n")

    class Terminal:
        @staticmethod
        def isatty() -> bool:
            return True

    chosen = [folder.name] if command == "rm" else []
    monkeypatch.setattr("sys.stdin", Terminal)
    assert verb("runs", [command, *chosen, "--results", str(results)]) == 1
    monkeypatch.setattr(Terminal, "isatty", staticmethod(lambda: False))
    assert verb("runs", [command, *chosen, "--results", str(results)]) == 2
    assert "repeat with --yes" in capsys.readouterr().err
    assert folder.exists()


def test_a_run_that_begins_during_the_question_is_kept(
    results: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    never, folder = (folder_of(results, name) for name in ("bm25", "segtree_cosine"))
    record = (folder / "run.json").read_text(encoding="utf-8")
    for each in (never, folder):
        (each / "run.json").unlink()

    def begun(count: int, yes: bool) -> bool:
        (folder / "run.json").write_text(record, encoding="utf-8")
        return True

    monkeypatch.setattr(runs, "agreed", begun)
    assert verb("runs", ["gc", "--results", str(results)]) == 0
    assert capsys.readouterr().out.count("never began") == 2
    assert folder.exists()
    assert not never.exists()


@pytest.mark.parametrize("name", ["nonesuch", "..", "/", "../../..", "runs"])
def test_what_is_no_run_is_never_removed(name: str, results: Path, capsys: Any) -> None:
    assert verb("runs", ["rm", name, "--results", str(results), "--yes"]) == 2
    assert "is no run below" in capsys.readouterr().err
    assert len(runs.folders(results)) == 2


def test_a_run_that_another_process_writes_is_left_alone(results: Path, capsys: Any) -> None:
    folder = change(unfinished(folder_of(results, "bm25")), source="other code")
    with locked(folder):
        assert verb("runs", ["rm", folder.name, "--results", str(results), "--yes"]) == 2
        assert "another process is writing" in capsys.readouterr().err
        assert verb("runs", ["gc", "--results", str(results), "--yes"]) == 0
        assert verb("runs", ["list", "--results", str(results)]) == 0
        assert "in use" in capsys.readouterr().out
    assert folder.exists()


def test_what_today_can_still_finish_or_has_finished_stays(results: Path, capsys: Any) -> None:
    unfinished(folder_of(results, "bm25"))
    assert verb("runs", ["gc", "--results", str(results), "--yes"]) == 0
    assert capsys.readouterr().out == "0 runs and 0 drafts, 0 B\n"
    assert len(runs.folders(results)) == 2


@pytest.mark.parametrize(
    "changed", [{"source": "other code"}, {"distributions": {"numpy": "1"}}, {"prompts": {"reader/gone": "x"}}]
)
def test_an_unfinished_run_of_other_code_goes(changed: dict[str, Any], results: Path, capsys: Any) -> None:
    folder = change(unfinished(folder_of(results, "bm25")), **changed)
    assert verb("runs", ["gc", "--results", str(results), "--yes"]) == 0
    assert "unfinished, and its code or prompts have changed since" in capsys.readouterr().out
    assert not folder.exists()
    assert folder_of(results, "segtree_cosine").exists()


def test_a_finished_run_of_other_code_goes_once_a_newer_one_has_superseded_it(results: Path, capsys: Any) -> None:
    newer = folder_of(results, "bm25")
    copied = Path(shutil.copytree(newer, newer.with_name("bm25-copy")))
    older = change(copied, source="other code")
    unfinished(newer)
    assert verb("runs", ["gc", "--results", str(results), "--yes"]) == 0
    assert older.exists(), "nothing has superseded it yet"
    shutil.copy(next(older.glob("cases/*/case.json")), next(newer.glob("cases/*")) / "case.json")
    assert verb("runs", ["gc", "--results", str(results), "--yes"]) == 0
    assert f"superseded by {newer.name}" in capsys.readouterr().out
    assert newer.exists()
    assert not older.exists()


def test_a_finished_run_with_other_settings_is_not_superseded(results: Path) -> None:
    newer = folder_of(results, "bm25")
    copied = Path(shutil.copytree(newer, newer.with_name("bm25-copy")))
    older = change(copied, source="other code", seed=[1, 0])
    assert verb("runs", ["gc", "--results", str(results), "--yes"]) == 0
    assert older.exists()


def test_a_memory_that_this_process_does_not_see_is_no_garbage(results: Path) -> None:
    folder = folder_of(results, "bm25")
    memory = {"build": {"_target_": "kept_elsewhere.Mine", "_partial_": True}}
    changed = change(unfinished(folder), memory=memory, source="unknown here")
    assert verb("runs", ["gc", "--results", str(results), "--yes"]) == 0
    assert changed.exists()


def test_starts_that_never_began_and_drafts_of_the_dead_go(results: Path) -> None:
    empty = results / "runs" / "locomo" / "bm25-111111111111"
    empty.mkdir()
    (empty / ".lock").touch()
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True
    )
    here = folder_of(results, "segtree_cosine")
    gone, alive = here / f"run.json.{dead.stdout.strip()}.draft", here / f"run.json.{os.getpid()}.draft"
    impossible = here / f"run.json.{10**20}.draft"  # in a folder from elsewhere
    for draft in (gone, alive, impossible):
        draft.touch()
    assert verb("runs", ["gc", "--results", str(results), "--yes"]) == 0
    assert not empty.exists()
    assert (gone.exists(), alive.exists(), impossible.exists()) == (False, True, True)


def test_every_module_of_a_configuration_is_part_of_the_code_of_a_run() -> None:
    build = {
        "_target_": "memsys.systems.pruned.Pruned",
        "inner": {"_target_": "memsys.systems.memtree.MemTree"},
        "parts": [{"_target_": "a.b.C"}],
    }
    assert {"memsys.systems.pruned", "memsys.systems.memtree", "a.b", "data_loaders.locomo"} <= set(
        modules_of(build, "data_loaders.locomo.load")
    )
