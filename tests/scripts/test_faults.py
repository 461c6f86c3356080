"""What a disk, a folder or a damaged file refuses: one line with the file and the remedy, and nothing wrong written down."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from eval.files import store
from eval.running.failures import fatal_error
from memsys.llm.cache import CachedLLM
from memsys.llm.client import Client
from memsys.llm.endpoint import Endpoint
from memsys.llm.pricing import ModelSettings
from memsys.llm.protocol import Request
from memsys.llm.store import CacheStore
from scripts.command import verb
from scripts.mock.endpoint import Mock, application, serving
from scripts.setup.exits import REMEDIES, guarded
from scripts.setup.options import CONF
from tests.scripts.commands import composed, run_single

pytestmark = pytest.mark.slow


def failing(error: Exception) -> Callable[[], int]:
    def work() -> int:
        raise error

    return work


@pytest.mark.parametrize("number", REMEDIES, ids=errno.errorcode.get)
def test_what_the_system_refuses_is_one_line_with_file_and_remedy(number: int, capsys: Any) -> None:
    assert guarded(failing(OSError(number, os.strerror(number), "results/runs/x"))) == 2
    assert capsys.readouterr().err == f"error: results/runs/x: {REMEDIES[number]}\n"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (sqlite3.OperationalError("database or disk is full"), "the disk is full"),
        (sqlite3.OperationalError("attempt to write a readonly database"), "cache="),
        (sqlite3.OperationalError("unable to open database file"), "cache="),
        (sqlite3.DatabaseError("file is not a database"), "move it away"),
        (sqlite3.DatabaseError("database disk image is malformed"), "move it away"),
    ],
)
def test_what_the_cache_refuses_is_one_line_with_a_remedy(error: Exception, said: str, capsys: Any) -> None:
    assert guarded(failing(error)) == 2
    line = capsys.readouterr().err
    assert line.startswith("error: cache: ")
    assert said in line
    assert line.count("\n") == 1


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full", "x"), store.RunError("x")])
def test_developers_see_where_it_was_raised(error: Exception) -> None:
    with pytest.raises(type(error)):
        guarded(failing(error), traceback=True)


@pytest.mark.parametrize("error", [OSError("what?"), sqlite3.OperationalError("no such table: x")])
def test_an_error_without_a_remedy_is_a_bug_and_keeps_its_traceback(error: Exception) -> None:
    with pytest.raises(type(error)):
        guarded(failing(error))


def test_an_error_waits_for_the_calls_in_flight_and_keeps_their_answers_in_the_one_file(tmp_path: Path) -> None:
    mock, settings = Mock(latency=0.3), ModelSettings("mock")

    def work() -> int:
        cached = CacheStore(tmp_path / "cache.sqlite")
        client = Client(Endpoint(url, label="mock"), settings)
        CachedLLM(client, cached, settings, "mock").submit(Request((("user", "grade this"),), "judge"))
        while not mock.arrivals:
            time.sleep(0.01)
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), "items.jsonl")

    with serving(application(mock)) as url:
        assert guarded(work) == 2
        copy = shutil.copy(tmp_path / "cache.sqlite", tmp_path / "copy.sqlite")
        assert fatal_error(OSError(errno.ESTALE, "stale"))
    with closing(sqlite3.connect(copy)) as file:
        assert file.execute("SELECT count(*) FROM answers").fetchone() == (1,)


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (sqlite3.OperationalError("database or disk is full"), True),
        (sqlite3.OperationalError("attempt to write a readonly database"), True),
        (sqlite3.OperationalError("no such table: notes"), False),  # of a memory that keeps its own
        (sqlite3.IntegrityError("the list is full"), False),
    ],
)
def test_a_database_ends_the_run_only_if_its_disk_refuses_to_write(error: sqlite3.Error, ends: bool) -> None:
    assert (fatal_error(error) is error) == ends
    assert (fatal_error(ExceptionGroup("of a memory", [ValueError(), error])) is error) == ends


def test_a_file_that_the_disk_refuses_leaves_no_half_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="No space left"):
        store.replace_file(tmp_path / "table.md", "text")
    assert not [*tmp_path.iterdir()]


# --- in a run ----------------------------------------------------------------------------------------------------------


def run(tmp_path: Path, *overrides: str) -> int:
    return run_single(composed("config", [f"results={tmp_path / 'results'}", "data.size=6", *overrides]))


@pytest.mark.parametrize("memory", ["bm25", "memtree"])
@pytest.mark.parametrize("room", [0, 3, 40])
def test_a_full_disk_stops_the_run_and_the_next_start_finishes_it(
    memory: str, room: int, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = [room]
    add = store.Appender.add

    def full(self: store.Appender, record: Any, **how: bool) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "predictions.jsonl")
        add(self, record, **how)

    with monkeypatch.context() as patched:
        patched.setattr(store.Appender, "add", full)
        assert run(tmp_path, f"memory={memory}", "data.max_cases=1") == 2
    assert (
        capsys.readouterr()
        .err.splitlines()[-1]
        .startswith("error: predictions.jsonl: the disk is full; free some space")
    )
    (folder,) = (tmp_path / "results" / "runs" / "locomo").iterdir()
    written = [line for path in folder.glob("cases/*/predictions.jsonl") for line in store.read_lines(path)]
    assert not [line for line in written if line["outcome"] == "error"]
    assert run(tmp_path, f"memory={memory}", "data.max_cases=1") == 0


def test_results_that_are_a_file_are_one_line(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "results").write_text("here I stand")
    assert run(tmp_path, "memory=nothing") == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {tmp_path / 'results'}")
    assert "where a folder is needed" in said
    assert said.count("\n") == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only to root")
def test_a_folder_that_may_not_be_written_is_one_line(tmp_path: Path, capsys: Any) -> None:
    tmp_path.chmod(0o500)
    try:
        assert run(tmp_path, "memory=nothing") == 2
    finally:
        tmp_path.chmod(0o700)
    assert "permission denied; name a folder of your own (results=;" in capsys.readouterr().err


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a memory with a structure."""
    results = tmp_path_factory.mktemp("finished")
    overrides = [f"results={results}", "memory=segtree_cosine", "data.size=4", "data.max_cases=1", "nodes.vectors=true"]
    assert run_single(composed("config", overrides)) == 0
    (folder,) = (results / "runs" / "locomo").iterdir()
    return folder


DAMAGE = {
    "cut": lambda content: content[: len(content) // 2] + b"\n",
    "binary": lambda content: b"\xff\xfe\x00" + content,
    "a list": lambda content: b"[1, 2]\n" + content,
    "a number": lambda content: b"7\n",
    "other fields": lambda content: b'{"x": 1}\n' + content,
    "null": lambda content: b"null\n",
}


@pytest.mark.parametrize(
    "name", ["predictions.jsonl", "items.jsonl", "effort.jsonl", "nodes.jsonl", "case.json", "run.json", "scores", "vectors.npy"]
)  # fmt: skip
def test_a_damaged_file_is_one_line_with_its_name_or_is_made_again(
    name: str, finished: Path, tmp_path: Path, capsys: Any, subtests: pytest.Subtests
) -> None:
    for damage in DAMAGE:
        with subtests.test(damage):
            results = tmp_path / damage.replace(" ", "-") / "results"
            shutil.copytree(finished.parents[2], results)
            spoil_and_run(results, results / "runs" / "locomo" / finished.name, name, damage, capsys)


def spoil_and_run(results: Path, folder: Path, name: str, damage: str, capsys: Any) -> None:
    where = {"run.json": "run.json", "scores": "scores/mem0_f1*.jsonl"}.get(name, f"cases/*/{name}")
    (path,) = folder.glob(where)
    question = store.read_lines(next(folder.glob("cases/*/predictions.jsonl")))[0]["question_id"]
    path.write_bytes(DAMAGE[damage](path.read_bytes()))
    capsys.readouterr()
    overrides = [f"results={results}", "memory=segtree_cosine", "data.size=4", "data.max_cases=1", "nodes.vectors=true"]
    commands: list[Callable[[], int]] = [
        lambda: verb("inspect", [str(folder), question]),
        lambda: verb("structure", [str(folder), "--revenue", "--trials", "1"]),
        lambda: run_single(composed("config", overrides)),
    ]
    for command in commands:
        code = command()
        said = capsys.readouterr().err
        assert "Traceback" not in said
        if code:
            assert code == 2
            assert path.name in said
            assert said.count("\n") == 1


def test_too_many_open_files_are_one_line(tmp_path: Path) -> None:
    limited = f"""
import os, resource, sys
import eval.running.loop
from tests.scripts.commands import composed, run_single
from scripts.mock.endpoint import Mock, application, serving
few = lambda count: resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 1,) * 2) or count
eval.running.loop.allow_files = few  # called when the cells are about to start
sys.exit(run_single(composed("config", ["results={tmp_path}", "memory=bm25", "data.size=4"])))
"""
    done = subprocess.run([sys.executable, "-c", limited], cwd=CONF.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "too many open files; raise the limit" in done.stderr
    assert done.stderr.count("\n") == 1
