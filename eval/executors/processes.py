"""Cells in worker processes of this machine: one interpreter uses one core, so an offline run needs one process for each.

Workers are forked from Python's fork server, which has a single thread: a fork of this process could copy a lock that the cache's or the
event loop's thread holds. The driver keeps the run folders locked, reads the cases, and owns the services (`eval.executors.desk`).

A worker that dies is replaced. Each cell that it worked on is tried once more, in a worker that has nothing else to do; a cell whose
worker dies twice becomes an error for each of its open questions, and the run goes on.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing import connection as connections
from multiprocessing.reduction import ForkingPickler
from queue import SimpleQueue
from typing import Any

from eval.case import fail_case, is_answered, report_kept
from eval.executors.cells import Cell, Executor, Job, Jobs, order_of, template
from eval.executors.channel import Ask
from eval.executors.desk import Desk, runs_anywhere
from eval.executors.worker import Done, Ready, Steps, Template, work
from eval.run import OnProgress, Run
from eval.store import RunError
from memsys.llm import network, stopping

PAUSE = 0.25
"""Seconds after which the driver looks whether a stop was requested."""
TRIES = 2
"""Workers that a cell may lose before its questions become errors."""
STILLBORN = 3
"""Workers that may die in a row before they have started."""
MOST_RESIDENT = 1 << 30
"""A worker that occupies more bytes after a cell is replaced."""
FAREWELL = 5.0
"""Seconds that a worker without work gets to end by itself."""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_processes(workers: int, threads: int) -> Executor:
    """An executor with so many worker processes.

    Args:
        threads: cells that are open at once over all workers where services are online; offline, each worker has one.
    """
    return partial(_run, workers=workers, threads=threads)


def _run(cells: Sequence[Cell], on_progress: OnProgress, *, workers: int, threads: int) -> None:
    online = not all(runs_anywhere(cell.runs[0].services) for cell in cells)
    slots = max(1, threads // workers) if online else 1
    pool = _Pool(cells, on_progress, workers, slots)
    try:
        pool.work()
    finally:
        pool.close()


_END = object()
"""Ends the thread that sends messages to a worker."""


class _Worker:
    """A worker process as the driver sees it."""

    def __init__(self, slots: int, files: int) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["eval.executors.preloaded"])
        self.connection, theirs = context.Pipe()
        arguments = (theirs, slots, files, network.forbidden())
        self.process = context.Process(target=work, args=arguments, name="cells", daemon=True)
        self.process.start()
        theirs.close()
        self.jobs: dict[int, Job] = {}
        self.templates: set[int] = set()
        self.ready = self.retiring = False
        self._slots = slots
        self._outgoing: SimpleQueue[Any] = SimpleQueue()
        threading.Thread(target=self._send_all, name="to worker", daemon=True).start()

    def send(self, message: Any) -> None:
        """Send a message, without waiting for the worker to take it; a worker that has died gets none."""
        self._outgoing.put(message)

    def takes(self, job: Job) -> bool:
        """Whether it has room for a job; one that has lost a worker is worked on alone."""
        alone = job.deaths > 0 or any(other.deaths for other in self.jobs.values())
        return not self.retiring and len(self.jobs) < (1 if alone else self._slots)

    def kill(self) -> None:
        """End the process at once."""
        self.process.kill()
        self.process.join()
        self._outgoing.put(_END)
        self.connection.close()

    def _send_all(self) -> None:
        with suppress(OSError, ValueError):  # the worker, or our end of its connection, is gone
            for message in iter(self._outgoing.get, _END):
                self.connection.send(message)


class _Pool:
    """The driver: hands cells out, answers the workers' calls, passes their progress on."""

    def __init__(self, cells: Sequence[Cell], on_progress: OnProgress, workers: int, slots: int) -> None:
        self._on_progress, self._wanted, self._slots = on_progress, workers, slots
        self._files = 256 + 3 * slots * max((len(cell.runs) for cell in cells), default=0)
        self._jobs = Jobs([Job(number, cell) for number, cell in enumerate(cells)])
        self._workers: list[_Worker] = []
        self._desk = Desk()
        self._templates: dict[int, int] = {}
        self._stillborn = 0
        self._error: BaseException | None = None

    def work(self) -> None:
        """Work on all cells; once a cell ends the run, no other is begun, and its error is raised when those under way have ended."""
        self._hand_out()
        while any(worker.jobs for worker in self._workers):
            stopping.check()
            self._hear()
            self._hand_out()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End all workers: those that are idle by themselves, the others at once."""
        self._desk.close()
        idle = [worker for worker in self._workers if not worker.jobs]
        for worker in idle:
            worker.send(None)
        deadline = time.monotonic() + FAREWELL
        for worker in idle if not stopping.requested() else ():
            worker.process.join(max(0.0, deadline - time.monotonic()))
        for worker in self._workers:
            worker.kill()

    # --- handing out ------------------------------------------------------------------------------------------------------

    def _hand_out(self) -> None:
        while self._jobs.waiting and self._error is None:
            job = self._jobs.next()
            if self._answered(job):
                self._jobs.take(job)
            elif (worker := self._free(job)) is not None:
                self._jobs.take(job)
                self._give(worker, job)
            else:
                return

    def _answered(self, job: Job) -> bool:
        """Whether a job has been done in an earlier run; if so, its progress is reported."""
        if job.looked_at or not job.cell.may_be_answered():
            return False
        job.looked_at, case = True, job.cell.case()
        if not is_answered(job.cell.runs, case):
            return False
        report_kept(job.cell.runs, case, self._on_progress)
        return True

    def _free(self, job: Job) -> _Worker | None:
        """The worker that gets a job: a new one while there may be more, else the one with the fewest cells that has room."""
        idle = next((worker for worker in self._workers if not worker.jobs and worker.takes(job)), None)
        if idle is None and len(self._workers) < self._wanted:
            self._workers.append(_Worker(self._slots, self._files))
            return self._workers[-1]
        free = [worker for worker in self._workers if worker.takes(job)]
        return idle or min(free, key=lambda worker: len(worker.jobs), default=None)

    def _give(self, worker: _Worker, job: Job) -> None:
        numbers = tuple(self._template(worker, run) for run in job.cell.runs)
        job.started = time.monotonic()
        worker.jobs[job.number] = job
        worker.send(order_of(job, numbers))

    def _template(self, worker: _Worker, run: Run) -> int:
        """The number of a run's template, which the worker is sent if it has not got it."""
        number = self._templates.setdefault(id(run), len(self._templates))
        if number not in worker.templates:
            worker.templates.add(number)
            worker.send(Template(number, _sendable_run(self._desk, run)))
        return number

    # --- hearing ----------------------------------------------------------------------------------------------------------

    def _hear(self) -> None:
        """Take the messages that have arrived, and notice who has died."""
        by_source: dict[Any, _Worker] = {worker.connection: worker for worker in self._workers}
        for source in connections.wait(list(by_source), PAUSE):
            worker = by_source[source]
            try:
                message = worker.connection.recv()
            except (EOFError, OSError):
                self._died(worker)
            else:
                self._take(worker, message)

    def _take(self, worker: _Worker, message: Any) -> None:
        if isinstance(message, Ask):
            self._desk.answer(message, worker.send)
        elif isinstance(message, Steps):
            for step in message.steps:
                self._on_progress(step)
        elif isinstance(message, Ready):
            worker.ready, self._stillborn = True, 0
        elif isinstance(message, Done):
            self._ended(worker, message)

    def _ended(self, worker: _Worker, done: Done) -> None:
        job = worker.jobs.pop(done.number)
        self._jobs.took(job, time.monotonic() - job.started)
        self._error = self._error or done.error
        worker.retiring |= done.resident_bytes > MOST_RESIDENT
        if worker.retiring and not worker.jobs:
            self._workers.remove(worker)
            worker.kill()

    def _died(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.kill()
        self._stillborn += not worker.ready
        how = _how_it_ended(worker.process.exitcode)
        if self._stillborn >= STILLBORN:
            raise RunError(f"worker processes do not start: the last one {how}; use executor=threads")
        for job in worker.jobs.values():
            job.deaths += worker.ready
            if job.deaths < TRIES:
                self._jobs.put_back(job)
            else:
                why = f"build: its worker process {how}, {job.deaths} times"
                fail_case(job.cell.runs, job.cell.case(), why, self._on_progress)


def _sendable_run(desk: Desk, run: Run) -> Run:
    """The run as workers get it.

    Raises:
        RunError: something of it cannot be sent to another process.
    """
    sent = replace(template(run), services=desk.stand_ins(run.services))
    try:
        ForkingPickler.dumps(sent)
    except Exception as error:
        raise RunError(f"{run.name} cannot be sent to another process ({error}); use executor=threads") from error
    return sent


def _how_it_ended(code: int | None) -> str:
    if code is not None and code < 0:
        memory = " (was the machine out of memory?)" if code == -9 else ""
        return f"was ended by signal {-code}{memory}"
    return f"ended with exit code {code}"
