"""Workers without a shared disk: a case's files travel as bytes, and the driver's run folder holds what threads would leave there."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pytest
from executed_runs import CASES, contents
from mortal_memories import Counted

from eval.executors import case_files
from eval.executors.case_files import commit, files_of
from eval.executors.cluster import drained, packed
from eval.executors.driver import Died, Worker, work_on
from eval.executors.worker import Cells, Done, Ready
from eval.files.store import RunError
from eval.running.loop import run_all
from eval.running.run import Progress, Run
from memsys.llm.meter import Metered
from memsys.systems.bm25 import BM25
from memsys.systems.memtree import MemTree

Make = Callable[..., Run]


class _Near(Worker):
    """A worker in this process; what is sent is packed and unpacked, as on its way to another machine."""

    def __init__(self, slots: int) -> None:
        super().__init__(slots)
        self.messages: SimpleQueue[Any] = SimpleQueue()
        self._cells = Cells(self.messages.put, slots)
        self.messages.put(Ready())

    def send(self, message: Any) -> None:
        if message is not None:
            self._cells.take(ForkingPickler.loads(packed(message)))

    def wait(self, seconds: float) -> None:
        pass

    def kill(self) -> None:
        self.messages = SimpleQueue()


class Nearby:
    """A transport to workers in this process, of which the first dies as often as wanted when it has finished a cell."""

    shares_disk = False
    tries = 5

    def __init__(self, deaths: int = 0) -> None:
        self.started, self.deaths = 0, deaths

    def wanted(self) -> int:
        return 1

    def start(self, slots: int, files: int) -> _Near:
        self.started += 1
        return _Near(slots)

    def hear(self, workers: Sequence[_Near], seconds: float) -> Iterator[tuple[_Near, Any]]:
        for worker in workers:
            try:
                messages = [worker.messages.get(timeout=seconds)]
            except Empty:
                continue
            for message in messages:
                dies = isinstance(message, Done) and self.deaths > 0
                self.deaths -= dies
                yield worker, Died("fell over") if dies else ForkingPickler.loads(packed(message))


def executor(transport: Nearby) -> Any:
    return partial(work_on, transport=transport, threads=1)


@pytest.mark.slow
def test_what_workers_send_back_is_what_threads_write(make_run: Make, tmp_path: Path) -> None:
    def made(folder: str) -> list[Run]:
        llm = Metered(Counted())
        return [
            make_run(CASES[:2], build=partial(MemTree), folder=f"{folder}-tree", vectors=True, llm=llm, reader=llm),
            *(make_run(CASES[:2], build=partial(BM25, k=k), folder=f"{folder}-{k}", shared="bm25") for k in (1, 4)),
        ]

    undisturbed, disturbed = made("threads"), made("workers")
    run_all(undisturbed)
    transport = Nearby(deaths=2)
    run_all(disturbed, executor=executor(transport))
    assert [contents(run) for run in disturbed] == [contents(run) for run in undisturbed]
    assert transport.started == 3, "two died"


def test_a_half_answered_case_goes_on_from_its_files(make_run: Make) -> None:
    complete, llm = make_run(CASES[:1], folder="complete"), Counted()
    run_all([complete])
    run = make_run(CASES[:1], reader=Metered(llm), folder="resumed")
    folder = run.case_folder(CASES[0].id)
    folder.mkdir(parents=True)
    for name, content in files_of(complete.case_folder(CASES[0].id)).items():
        if name != "case.json":
            lines = content.splitlines(keepends=True)
            (folder / name).write_bytes(b"".join(lines[:-1]) if name == "predictions.jsonl" else content)
    steps: list[Progress] = []
    run_all([run], executor=executor(Nearby()), on_progress=steps.append)
    assert llm.calls == 1, "one question was open"
    assert {step.run for step in steps} == {"resumed"}, "not the scratch folder's name"
    assert contents(run)["cases/case-0/predictions.jsonl"] == contents(complete)["cases/case-0/predictions.jsonl"]


def test_a_cell_that_loses_too_many_workers_is_an_error_that_says_how(make_run: Make) -> None:
    run = make_run(CASES[:1])
    run_all([run], executor=executor(Nearby(deaths=5)))
    assert "its worker process fell over, 5 times" in (run.case_folder("case-0") / "predictions.jsonl").read_text()


def test_committed_files_are_all_that_a_folder_holds_and_equal_vectors_are_stored_once(tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    folders[0].mkdir()
    (folders[0] / "errors.log").write_text("of an earlier run")
    commit(folders, [{"vectors.npy": b"same", "case.json": b"1"}, {"vectors.npy": b"same", "case.json": b"2"}])
    assert [files_of(folder) for folder in folders] == [
        {"vectors.npy": b"same", "case.json": b"1"},
        {"vectors.npy": b"same", "case.json": b"2"},
    ]
    assert os.path.samefile(folders[0] / "vectors.npy", folders[1] / "vectors.npy")


def test_case_json_is_written_last_and_removed_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit([tmp_path], [{"case.json": b"old", "effort.jsonl": b"old"}])
    written: list[str] = []

    def fails(path: Path, content: bytes) -> None:
        written.append(path.name)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("eval.executors.case_files.replace_file", fails)
    with pytest.raises(OSError, match="No space"):
        commit([tmp_path], [{"case.json": b"new", "effort.jsonl": b"new"}])
    assert written == ["effort.jsonl"]
    assert not (tmp_path / "case.json").exists(), "a case that is not whole is not complete"


def test_a_file_cannot_leave_its_case(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.\./outside"):
        commit([tmp_path / "case"], [{"../outside": b"content"}])
    assert not (tmp_path / "outside").exists()


@pytest.mark.slow
def test_scratch_folders_of_dead_processes_are_removed_and_those_of_living_ones_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    case_files._made.cache_clear()
    begin = threading.Barrier(8)

    def own_folder(_: int) -> Path:
        begin.wait()
        return case_files._folder()

    with ThreadPoolExecutor(8) as cells:
        (own,) = set(cells.map(own_folder, range(8)))  # however many cells begin at once
    code = "import os\nfrom eval.executors import case_files\nprint(case_files._folder(), flush=True)\nos._exit(9)"
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    dead = [
        Path(subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False).stdout.decode().strip())
        for _ in range(2)
    ]  # fmt: skip
    assert not dead[0].exists(), "the second process removed it"
    assert dead[1].is_dir()
    assert own.is_dir()
    case_files._made().handle.close()
    case_files._made.cache_clear()


def test_messages_are_taken_in_their_order_and_all_at_once() -> None:
    queue: SimpleQueue[int] = SimpleQueue()
    for number in range(3):
        queue.put(number)
    assert drained(queue) == [0, 1, 2]
    assert RunError is type(ForkingPickler.loads(packed(RunError("as it was"))))
