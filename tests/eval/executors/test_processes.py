"""Worker processes: the bytes of threads, one place for calls, and what a dying worker, a failing service and Ctrl-C leave behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from executed_runs import CASES, contents
from mortal_memories import Counted, CountedEmbedder, Mortal
from small_history import history

from data_loaders.schema import Case
from eval.executors import driver, processes
from eval.executors.channel import RemoteLLM, ServiceHost, WorkerFailure, runs_anywhere, sendable
from eval.executors.driver import Job, Jobs
from eval.executors.processes import in_processes
from eval.files.records import Prediction
from eval.files.run_folder import read_predictions
from eval.files.store import RunError, read_lines
from eval.running.case import answered_case
from eval.running.cells import ANSWERING, BETWEEN, WORKING
from eval.running.loop import run_all
from eval.running.run import Progress, Run
from eval.running.work import Build
from memsys.llm.endpoint import Unreachable
from memsys.llm.limits import BUILDS, CallQueue, urgency
from memsys.llm.meter import Metered
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.llm.pricing import SpendingCapReached
from memsys.llm.protocol import Completion, ContextOverflow, ModelError, Request
from memsys.llm.stopping import Stopped, end_process
from memsys.systems.bm25 import BM25
from memsys.systems.memtree import MemTree
from scripts.assembly.steps import executor_of

pytestmark = pytest.mark.slow
Make = Callable[..., Run]
ROOT = Path(__file__).resolve().parents[3]


def outcomes(run: Run, case: Case) -> Counter[str]:
    return Counter(line.outcome for line in read_predictions(run.case_folder(case.id)).values())


@pytest.mark.parametrize("online", [False, True], ids=["offline engines", "services of the driver"])
def test_processes_give_the_bytes_of_threads(make_run: Make, online: bool) -> None:
    def made(folder: str) -> Run:
        run = make_run(CASES, build=partial(MemTree), folder=folder, vectors=True)
        if not online:
            return run
        llm = Metered(Counted())
        services = replace(
            run.services, llm=llm, reader=llm, probe=replace(llm, role="probe"), embedder=CountedEmbedder()
        )
        return replace(run, services=services)

    one, other = made("threads"), made("processes")
    assert runs_anywhere(one.services) is not online
    steps: tuple[list[Progress], list[Progress]] = ([], [])
    run_all([one], on_progress=steps[0].append)
    run_all([other], on_progress=steps[1].append, executor=in_processes(2, 4))
    assert contents(one) == contents(other)
    assert Counter(replace(step, run=other.folder.name) for step in steps[0]) == Counter(steps[1])
    assert all(sum(step.seconds for step in own) > 0 for own in steps)


def test_processes_build_as_many_histories_at_once_as_keep_the_endpoint_busy(make_run: Make) -> None:
    offline = make_run(CASES)
    gauges = dict.fromkeys(("memory", "reader"), CallQueue(20))
    online = replace(offline, services=replace(offline.services, gauges=gauges))
    for run, given, wanted in ((offline, None, WORKING), (online, None, 20 + BETWEEN), (online, 3, 3)):
        cfg: Any = SimpleNamespace(
            executor="processes",
            workers=2,
            threads=given,
            logger=SimpleNamespace(name="none"),
            data=SimpleNamespace(source="sample"),
        )
        chosen = executor_of(cfg, [run])
        assert isinstance(chosen, partial)
        assert chosen.keywords["threads"] == wanted


def test_processes_are_chosen_for_an_endpoint_that_is_faster_than_one_interpreter(make_run: Make) -> None:
    run = make_run([history(f"c{number}") for number in range(20)], llm=Metered(Counted()))
    for latency, source, in_flight, chosen in (
        (0.005, "real", 16, True),
        (0.03, "real", 16, False),  # 1.9 ms a call
        (0.005, "sample", 16, False),
        (0.005, "real", 32, False),  # twenty cells do not fill it
        (None, "real", 16, False),
    ):
        cfg: Any = SimpleNamespace(
            executor="auto",
            workers=2,
            threads=None,
            logger=SimpleNamespace(name="none"),
            data=SimpleNamespace(source=source),
            endpoint=SimpleNamespace(in_flight=in_flight),
        )
        assert (executor_of(cfg, [run], latency) is not None) is chosen


@pytest.mark.parametrize(("size", "groups"), [(1, (1, 0, 1, 0)), (10, (0, 1, 0, 1))])
def test_of_the_cells_that_wait_the_longest_chain_goes_first(
    size: int, groups: tuple[int, ...], make_run: Make
) -> None:
    """A chain is as long as the calls for a unit of size times the size."""
    runs = [make_run(CASES, folder=name) for name in ("short", "long")]
    chains = zip(runs, (size, 1), (1.0, 9.0), strict=True)
    runs = [replace(run, sizes=(size,) * len(run.sizes), chain=chain) for run, size, chain in chains]
    jobs = Jobs([Job(number, Build((runs[number % 2],), number % 2, number // 2)) for number in range(4)])
    for group in groups:  # one of each, then the longest chain
        job = jobs.next()
        assert job.cell.group == group
        jobs.take(job)


def test_a_workers_call_is_as_urgent_as_it_was_there(make_run: Make) -> None:
    class Heard(Counted):
        def submit(self, request: Request) -> Future[Completion]:
            heard[request.purpose].add(urgency())
            return super().submit(request)

    heard: defaultdict[str, set[float]] = defaultdict(set)
    llm = Metered(Heard())
    run_all([make_run(CASES, build=partial(MemTree), llm=llm, reader=llm)], executor=in_processes(2, 4))
    built = [urgencies for purpose, urgencies in heard.items() if purpose.startswith("memtree.")]
    read = [urgencies for purpose, urgencies in heard.items() if not purpose.startswith("memtree.")]
    assert built
    assert all(min(urgencies) >= BUILDS for urgencies in built)
    assert read == [{ANSWERING}]


def test_the_driver_makes_every_call_and_each_once(make_run: Make) -> None:
    llm, embedder = Counted(), CountedEmbedder()
    run = make_run(CASES, build=partial(MemTree), llm=Metered(llm), reader=Metered(llm))
    run = replace(run, services=replace(run.services, embedder=embedder))
    run_all([run], executor=in_processes(2, 4))
    efforts = [line for case in CASES for line in read_lines(run.case_folder(case.id) / "effort.jsonl")]
    assert llm.threads == {os.getpid()}
    assert llm.calls == sum(sum(line["calls"].values()) for line in efforts) > len(CASES) * 6
    assert embedder.calls == sum(line["notes"].get("embedding_truncated", 0) for line in efforts) > 0


def test_each_new_answer_is_told_once_when_its_cell_is_finished(make_run: Make) -> None:
    told: list[tuple[str, str]] = []
    run = make_run(CASES, build=partial(BM25))
    run_all([run])
    shutil.rmtree(run.case_folder(CASES[0].id))

    def on_answer(run: Run, case: Case, prediction: Prediction) -> None:
        assert read_predictions(run.case_folder(case.id))[prediction.question_id] == prediction, "it is saved"
        told.append((case.id, prediction.question_id))

    run_all([run], on_answer=on_answer, executor=in_processes(2, 4))
    assert sorted(told) == sorted((CASES[0].id, question.id) for question, _ in CASES[0].questions)


def test_a_run_ends_when_judging_ahead_ends(make_run: Make) -> None:
    def on_answer(run: Run, case: Case, prediction: Prediction) -> None:
        raise SpendingCapReached("the cap is reached")

    with pytest.raises(SpendingCapReached):
        run_all([make_run(CASES, build=partial(BM25))], on_answer=on_answer, executor=in_processes(1, 1))


def test_runs_that_share_a_build_are_one_cell_and_leave_what_each_leaves_alone(make_run: Make) -> None:
    alone = [make_run(CASES, build=partial(BM25, k=k), folder=f"alone-{k}") for k in (1, 4)]
    shared = [make_run(CASES, build=partial(BM25, k=k), folder=f"shared-{k}", shared="bm25") for k in (1, 4)]
    run_all(alone)
    run_all(shared, executor=in_processes(2, 4))
    for one, other in zip(alone, shared, strict=True):
        assert contents(one) == contents(other)


def test_a_complete_run_starts_no_worker(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(CASES)
    run_all([run])
    before, steps, again = contents(run), [], []
    run_all([run], on_progress=again.append)
    monkeypatch.setattr(processes, "_Process", None)
    run_all([run], executor=in_processes(2, 4), on_progress=steps.append)
    assert contents(run) == before
    assert Counter(steps) == Counter(again)
    assert sum(step.kept for step in steps) == 6 * len(CASES)


def test_a_worker_that_dies_is_replaced_and_its_cell_tried_again(make_run: Make, tmp_path: Path) -> None:
    lives = tmp_path / "lives"
    lives.mkdir()
    undisturbed = make_run(CASES, build=partial(Mortal, str(lives)), folder="undisturbed")
    run_all([undisturbed])
    (lives / "1").touch()
    run = make_run(CASES, build=partial(Mortal, str(lives)))
    run_all([run], executor=in_processes(2, 4))
    assert not list(lives.iterdir()), "a worker was killed"
    assert contents(run) == contents(undisturbed)


def test_a_cell_that_kills_every_worker_is_counted_as_errors_and_answered_by_the_next_start(
    make_run: Make, tmp_path: Path
) -> None:
    lives = tmp_path / "lives"
    lives.mkdir()
    for life in "12":
        (lives / life).touch()
    run, steps = make_run(CASES, build=partial(Mortal, str(lives))), []
    run_all([run], executor=in_processes(2, 4), on_progress=steps.append)
    lines = read_predictions(run.case_folder("case-1")).values()
    assert {line.outcome for line in lines if line.question_id not in ("q0", "q1")} == {"error"}
    assert "its worker process was ended by signal 9" in next(line.error for line in lines if line.error)
    assert [outcomes(run, case)["answered"] for case in CASES if case.id != "case-1"] == [6] * 4
    assert sum(step.outcome == "complete" for step in steps) == len(CASES)
    run_all([run], executor=in_processes(2, 4))
    assert outcomes(run, CASES[1]) == {"answered": 6}


@pytest.mark.parametrize("error", [SpendingCapReached("no money left"), Unreachable("the server is gone")])
def test_what_ends_a_run_keeps_its_type_and_later_cells_are_not_begun(make_run: Make, error: ModelError) -> None:
    llm = Counted(fail_at=3, error=error)
    run = make_run(CASES, llm=Metered(llm), reader=Metered(llm))
    with pytest.raises(type(error), match=str(error)):
        run_all([run], executor=in_processes(1, 1))
    assert llm.calls <= 6, "the calls of one cell"
    assert not all(answered_case([run], index) is not None for index in range(len(CASES)))


def test_a_failed_call_is_the_error_that_threads_write_down(make_run: Make) -> None:
    failing = [Counted(fail_at=4, error=ContextOverflow("too long", attempts=3, seconds=1.5)) for _ in range(2)]
    one, other = (
        make_run([CASES[0]], reader=Metered(llm), folder=folder)
        for llm, folder in zip(failing, ("threads", "processes"), strict=True)
    )
    run_all([one])
    run_all([other], executor=in_processes(2, 4))
    assert contents(one) == contents(other)
    assert outcomes(one, CASES[0])["error"] == 1


def test_a_memory_that_cannot_be_sent_is_refused_with_the_remedy(make_run: Make) -> None:
    run = make_run(CASES, build=lambda: BM25(k=3))
    with pytest.raises(RunError, match=r"cannot be sent to another process.*executor=threads"):
        run_all([run], executor=in_processes(2, 4))


def test_workers_that_do_not_start_end_the_run_and_fail_no_question(
    make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "work", end_process)  # the pipe in place of a number: a TypeError, exit code 1
    run = make_run(CASES)
    with pytest.raises(RunError, match="worker processes do not start"):
        run_all([run], executor=in_processes(2, 4))
    assert not list(run.folder.glob("cases/*/predictions.jsonl"))


@pytest.mark.integration
def test_a_worker_that_has_grown_too_large_is_replaced(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "MOST_RESIDENT", 1)
    started: list[int] = []
    ended: list[int | None] = []
    begin, kill = processes._Process.__init__, processes._Process.kill

    def counted(self: Any, *given: Any) -> None:
        started.append(1)
        begin(self, *given)

    def seen(self: Any) -> None:
        ended.append(self.process.exitcode)
        kill(self)

    monkeypatch.setattr(processes._Process, "__init__", counted)
    monkeypatch.setattr(processes._Process, "kill", seen)
    run = make_run(CASES)
    run_all([run], executor=in_processes(2, 4))
    assert len(started) == len(CASES)
    assert ended == [0] * len(CASES), "each ended by itself, so that it left no semaphores behind"
    assert all(answered_case([run], index) is not None for index in range(len(CASES)))


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_signal_ends_all_workers_and_leaves_nothing_behind(tmp_path: Path, number: int) -> None:
    pids = tmp_path / "pids"
    program = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are started with the signal ignored
from executed_runs import CASES, contents
from mortal_memories import Slow
from scripts.setup.exits import guarded
from scripts.lab.lab import Lab

def work():
    lab = Lab("profile=smoke", "executor=processes", "workers=2", {f"results='{tmp_path}'"!r})
    lab.ask({{"name": "slow", "title": "Slow", "build": {{"_target_": "mortal_memories.Slow", "_partial_": True, "pids": {str(pids)!r}}}}})

if __name__ == "__main__":
    sys.exit(guarded(work))
"""
    script = tmp_path / "slow.py"
    script.write_text(program)
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "eval")])
    started = subprocess.Popen(
        [sys.executable, str(script)], env=os.environ | {"PYTHONPATH": path}, start_new_session=True
    )
    try:
        while not pids.is_file() or len(set(pids.read_text().split())) < 2:
            assert started.poll() is None
            time.sleep(0.05)
        os.killpg(started.pid, number) if number == signal.SIGINT else os.kill(started.pid, number)
        assert started.wait(60) == 128 + number
        for pid in set(pids.read_text().split()):
            with pytest.raises(ProcessLookupError):
                os.kill(int(pid), 0)
    finally:
        started.kill()


@pytest.mark.integration
def test_what_a_memory_prints_in_a_worker_acts_on_no_terminal(tmp_path: Path) -> None:
    script = tmp_path / "loud.py"
    script.write_text(f"""
from scripts.lab.lab import Lab

if __name__ == "__main__":
    lab = Lab("profile=smoke", "executor=processes", "workers=1", {f"results='{tmp_path}'"!r})
    lab.ask({{"name": "loud", "title": "Loud", "build": {{"_target_": "mortal_memories.Loud", "_partial_": True}}}})
""")
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "eval")])
    environment = os.environ | {"PYTHONPATH": path}
    ended = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=True)
    for text in (ended.stdout, ended.stderr):
        assert r"told\x1b[2J" in text
        assert "\x1b" not in text


def test_a_worker_ends_with_its_driver(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    program = f"""
import sys
from functools import partial
sys.path[:0] = {[str(ROOT), str(ROOT / "tests" / "eval")]!r}
from small_history import history
from executed_runs import CASES, contents
from mortal_memories import Slow
from eval.executors.worker import work
from multiprocessing import get_context
from eval.executors import processes

if __name__ == "__main__":
    worker = processes._Process(1, 256)
    worker.connection.recv()
    with open({str(pids)!r}, "w") as file:
        file.write(str(worker.process.pid))
    import time
    time.sleep(60)
"""
    script = tmp_path / "driver.py"
    script.write_text(program)
    driver = subprocess.Popen([sys.executable, str(script)])
    while not pids.is_file() or not pids.read_text():
        assert driver.poll() is None
        time.sleep(0.05)
    pid = int(pids.read_text())
    driver.kill()
    driver.wait()
    for _ in range(600):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail("the worker outlives its driver")


def test_errors_keep_type_message_and_cost_when_they_are_sent() -> None:
    overflow = ContextOverflow("too long", attempts=3, seconds=1.5)
    assert sendable(overflow) is overflow
    assert isinstance(sendable(Stopped()), Stopped)

    class Local(Exception):
        """Cannot be imported anywhere else."""

    sent = sendable(Local("what happened"))
    assert isinstance(sent, WorkerFailure)
    assert str(sent) == "Local: what happened"


def test_a_worker_gets_the_offline_engines_themselves_and_asks_for_every_other_service(make_run: Make) -> None:
    own = make_run([], llm=Metered(ExtractiveLLM()), reader=Counted()).services
    sent = ServiceHost().stand_ins(own)
    assert isinstance(sent.llm, Metered)
    assert isinstance(sent.llm.inner, ExtractiveLLM)
    assert isinstance(sent.reader, RemoteLLM)


def test_the_longest_case_of_each_build_comes_first_and_then_the_most_expensive_cell(make_run: Make) -> None:
    cheap, dear = (replace(make_run(CASES[:3]), sizes=sizes) for sizes in ((3, 9, 6), (1, 3, 2)))
    cells = [Build((run,), build, index) for build, run in enumerate((cheap, dear)) for index in range(3)]
    jobs = Jobs([Job(number, cell) for number, cell in enumerate(cells)])
    order = []
    while jobs.waiting:
        job = jobs.next()
        jobs.take(job)
        jobs.took(job, job.cell.size * (1.0 if job.cell.group else 0.1))
        order.append((job.cell.group, job.cell.size))
    assert order == [(0, 9), (1, 3), (1, 2), (1, 1), (0, 6), (0, 3)]
    jobs.took(Job(0, cells[0]), 0.0)
    assert jobs.rates == {0: pytest.approx(0.1), 1: 1.0}, "the greatest so far"
    (small, large), known = cells[4:1:-2], {0, 1}  # sizes 3 and 6
    begun = Jobs([Job(0, small), Job(1, large)], rates={0: 0.1}, begun=known)
    assert begun.next().number == 1, "a build without a finished cell counts as the slowest of the others"
    assert Jobs([Job(0, large), Job(1, small, deaths=1)], begun=known).next().number == 1, "it lost its worker"
