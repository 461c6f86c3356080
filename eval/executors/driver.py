"""The driver of a pool of workers: it hands out cells, answers the workers' calls and reports their progress.

The driver keeps the run folders locked, reads the cases, and owns the services (`eval.executors.channel`). The transport starts the
workers and carries messages: `eval.executors.processes` on this machine, `eval.executors.cluster` on a Ray cluster.

A dead worker is replaced. Each of its cells is tried again, in a worker without other cells; a cell that loses
too many workers becomes an error for each of its open questions, and the run continues.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any, Protocol

from eval.executors.case_files import collected, commit
from eval.executors.channel import Ask, ServiceHost, runs_anywhere
from eval.executors.worker import Done, Order, Ready, Steps, Template, is_asked
from eval.files.records import BUILD_FAILED, Prediction
from eval.files.run_folder import RunRecord, read_predictions
from eval.files.store import RunError
from eval.running.case import answered_case, fail_case, report_kept
from eval.running.run import OnAnswer, OnProgress, Run
from eval.running.work import Build
from memsys.llm import stopping
from memsys.llm.protocol import EndOfRun

PAUSE = 0.25
"""Seconds after which the driver checks whether a stop was requested."""
MOST_FAILED_STARTS = 3
"""Maximum number of workers in a row that may die before they have started, while no other works."""
IDLE_SECONDS = 1.0
"""Seconds between the death of a worker that had not started and the start of the next."""
MOST_RESIDENT = 1 << 30
"""Maximum resident bytes of a worker after a cell; a larger worker is replaced."""
REHEARSING = 4
"""A worker that has built a memory before gets its next cell, unless it has so many more cells than another."""
FAREWELL_SECONDS = 5.0
"""Seconds in which idle workers may end by themselves."""


@dataclass(slots=True)
class Job:
    """A cell that is waiting or being worked on; `deaths` is the number of workers that died while they worked on it."""

    number: int
    cell: Build
    deaths: int = 0
    started: float = 0.0
    case_id: str = ""
    """Set when the job is handed out: reading it may parse the case again."""
    looked_at: bool = False
    """Whether the case was checked: a job that stays in the queue is not answered yet."""
    before: tuple[Mapping[str, Prediction], ...] = ()
    """Content of the case in each run's folder when the job was handed out."""


@dataclass(slots=True)
class Jobs:
    """The cells that wait: those with the longest chain of calls first, as far as a plan estimated it, then the longest.

    A build's seconds per unit of size are learned from its finished cells. A build without a begun cell comes first, with its largest
    case: it may be the most expensive.
    """

    waiting: list[Job]
    rates: dict[int, float] = field(default_factory=dict)
    """Greatest seconds per unit of size so far, by build."""
    begun: set[int] = field(default_factory=set)

    def next(self) -> Job:
        """The job with the most work; a job that lost its worker comes before all others. It stays in the queue until `take`."""

        def priority(job: Job) -> tuple[bool, bool, float, float]:
            build, size = job.cell.group, job.cell.size
            guess = self.rates.get(build, max(self.rates.values(), default=1.0))
            return job.deaths > 0, build not in self.begun, job.cell.runs[0].chain * size, guess * size

        return max(self.waiting, key=priority)

    def take(self, job: Job) -> None:
        """Remove a job from the queue."""
        self.waiting.remove(job)
        self.begun.add(job.cell.group)

    def took(self, job: Job, seconds: float) -> None:
        """Record the seconds of a finished job."""
        rate = seconds / max(1, job.cell.size)
        self.rates[job.cell.group] = max(rate, self.rates.get(job.cell.group, 0.0))


@dataclass(frozen=True, slots=True)
class Died:
    """A worker has ended without being asked to."""

    how: str


class Worker(ABC):
    """A worker as the driver sees it."""

    def __init__(self, slots: int) -> None:
        self.jobs: dict[int, Job] = {}
        self.templates: set[int] = set()
        self.ready = self.retiring = False
        self._slots = slots

    def takes(self, job: Job) -> bool:
        """Whether it has room for a job; a job that has lost a worker runs alone."""
        alone = job.deaths > 0 or any(other.deaths for other in self.jobs.values())
        return self.ready and not self.retiring and len(self.jobs) < (1 if alone else self._slots)

    @abstractmethod
    def send(self, message: Any) -> None:
        """Send a message, without waiting for the worker to take it; a worker that has died gets none."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Wait until a worker that was sent None has ended by itself."""

    @abstractmethod
    def kill(self) -> None:
        """End the worker at once."""

    def check(self, ready: Ready) -> None:
        """Check a worker's report about its environment when it has started.

        Raises:
            RunError: the worker differs from the driver, so it must not work on the cells.
        """
        assert ready.home is None

    def located(self, error: BaseException) -> BaseException:
        """The error that ends the run, with the worker's machine where there are several."""
        return error


class Transport(Protocol):
    """Starts workers and carries their messages."""

    shares_disk: bool
    """Whether workers write into the run folders; otherwise the driver sends them a case's files and commits the returned files."""
    tries: int
    """Number of workers that a cell may lose before its questions become errors."""
    patience: float
    """Seconds during which workers may die before they have started; then the run ends."""

    def wanted(self) -> int:
        """Maximum number of workers at the moment."""

    def start(self, slots: int, files: int) -> Worker:
        """Start a worker that works on `slots` cells at once and may have `files` files open for them."""

    def hear(self, workers: Sequence[Any], seconds: float) -> Iterable[tuple[Worker, Any]]:
        """The messages that have arrived, or arrive within `seconds`; `Died` is the last message of a worker."""


def work_on(
    cells: Sequence[Build], on_progress: OnProgress, on_answer: OnAnswer, transport: Transport, threads: int
) -> None:
    """Work on all cells with the workers of a transport.

    Args:
        on_answer: called for each new answer of a cell when the cell is finished and its files are there.
        threads: cells that are open at once over all workers where services are online; offline, each worker has one.
    """
    online = not all(runs_anywhere(cell.runs[0].services) for cell in cells)
    workers = transport.wanted()  # there may be more or fewer later
    fair = -(-len(cells) // workers)  # the first worker to start takes no more than its share
    slots = max(1, min(threads // workers, fair)) if online else 1
    driver = _Driver(cells, on_progress, on_answer, transport, slots)
    try:
        driver.work()
    finally:
        driver.close()


class _Driver:
    def __init__(
        self, cells: Sequence[Build], on_progress: OnProgress, on_answer: OnAnswer, transport: Transport, slots: int
    ) -> None:
        self._on_progress, self._on_answer, self._transport, self._slots = on_progress, on_answer, transport, slots
        self._files = 256 + 3 * slots * max((len(cell.runs) for cell in cells), default=0)
        self._jobs = Jobs([Job(number, cell) for number, cell in enumerate(cells)])
        self._workers: list[Worker] = []
        self._desk = ServiceHost()
        self._templates: dict[int, Template] = {}
        self._failed_starts: list[float] = []  # times of deaths before the start, since a worker last started
        self._error: BaseException | None = None

    def work(self) -> None:
        """Work on all cells. Once a cell ends the run, no other cell is started; its error is raised when the running cells have ended."""
        self._hand_out()
        while any(worker.jobs for worker in self._workers) or (self._jobs.waiting and self._error is None):
            stopping.check()
            for worker, message in self._transport.hear(self._workers, PAUSE):
                self._take(worker, message)
            self._hand_out()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """End all workers: idle ones may end by themselves, the others are killed."""
        self._desk.close()
        idle = [worker for worker in self._workers if worker.ready and not worker.jobs]
        for worker in idle:
            worker.send(None)
        deadline = time.monotonic() + FAREWELL_SECONDS
        for worker in idle if not stopping.requested() else ():
            worker.wait(max(0.0, deadline - time.monotonic()))
        for worker in self._workers:
            worker.kill()

    # --- handing out ------------------------------------------------------------------------------------------------------

    def _hand_out(self) -> None:
        while self._jobs.waiting and self._error is None:
            job = self._jobs.next()
            if self._answered(job):
                self._jobs.take(job)
            elif free := [worker for worker in self._workers if worker.takes(job)]:
                self._jobs.take(job)
                self._give(min(free, key=partial(self._burden, job.cell.runs[0])), job)
            else:
                self._start_workers()
                return

    def _answered(self, job: Job) -> bool:
        """Whether an earlier run has answered a job's case; if so, its progress is reported."""
        case = None if job.looked_at else answered_case(job.cell.runs, job.cell.index)
        job.looked_at = True
        if case is not None:
            report_kept(job.cell.runs, case, self._on_progress)
        return case is not None

    def _start_workers(self) -> None:
        """Start workers up to the allowed number and the number of jobs."""
        if self._failed_starts and time.monotonic() < self._failed_starts[-1] + IDLE_SECONDS:
            return
        starting = sum(not worker.ready for worker in self._workers)
        more = min(self._transport.wanted() - len(self._workers), len(self._jobs.waiting) - starting)
        self._workers += [self._transport.start(self._slots, self._files) for _ in range(more)]

    def _give(self, worker: Worker, job: Job) -> None:
        numbers = tuple(self._template(worker, run) for run in job.cell.runs)
        job.started = time.monotonic()
        worker.jobs[job.number] = job
        case, run = job.cell.case(), job.cell.runs[0]
        asked = frozenset(question.id for question, _ in case.questions if run.questions(case.id, question.id))
        job.case_id = case.id
        job.before = tuple(read_predictions(run.case_folder(case.id)) for run in job.cell.runs)
        files = None if self._transport.shares_disk else collected(job.cell.runs, case.id)
        worker.send(Order(job.number, numbers, case, asked, files))

    def _burden(self, run: Run, worker: Worker) -> int:
        """The cells of a worker, and more for one that would have to rehearse the memory."""
        template = self._templates.get(id(run))
        return len(worker.jobs) + (0 if template is not None and template.number in worker.templates else REHEARSING)

    def _template(self, worker: Worker, run: Run) -> int:
        """The number of a run's template; the template is sent to the worker if it does not have it."""
        if id(run) not in self._templates:
            self._templates[id(run)] = Template(len(self._templates), _sendable_run(self._desk, run))
        sent = self._templates[id(run)]
        if sent.number not in worker.templates:
            worker.templates.add(sent.number)
            worker.send(sent)
        return sent.number

    # --- hearing ----------------------------------------------------------------------------------------------------------

    def _take(self, worker: Worker, message: Any) -> None:
        if isinstance(message, Ask):
            self._desk.answer(message, worker.send)
        elif isinstance(message, Steps):
            for step in message.steps:
                self._on_progress(step)
        elif isinstance(message, Ready):
            worker.check(message)
            worker.ready = True
            self._failed_starts.clear()
        elif isinstance(message, Done):
            self._ended(worker, message)
        elif isinstance(message, Died):
            self._died(worker, message)

    def _ended(self, worker: Worker, done: Done) -> None:
        job = worker.jobs.pop(done.number)
        if done.files is not None:
            commit([run.case_folder(job.case_id) for run in job.cell.runs], done.files)
        self._jobs.took(job, time.monotonic() - job.started)
        self._error = self._error or (None if done.error is None else worker.located(done.error))
        self._tell_answers(job)
        worker.retiring |= done.resident_bytes > MOST_RESIDENT
        if worker.retiring and not worker.jobs:
            self._workers.remove(worker)
            worker.send(None)  # a worker that ends by itself releases system resources such as semaphores
            worker.wait(FAREWELL_SECONDS)
            worker.kill()

    def _tell_answers(self, job: Job) -> None:
        """Report the answers that a job has added; none once the run ends."""
        case = job.cell.case()
        for run, before in zip(job.cell.runs, job.before, strict=True):
            for question_id, prediction in read_predictions(run.case_folder(job.case_id)).items():
                if self._error is None and before.get(question_id) != prediction:
                    try:
                        self._on_answer(run, case, prediction)
                    except EndOfRun as error:
                        self._error = error

    def _died(self, worker: Worker, died: Died) -> None:
        self._workers.remove(worker)
        worker.kill()
        if not worker.ready:
            self._failed_starts.append(time.monotonic())
            self._check_starts(died)
        for job in worker.jobs.values():
            job.deaths += 1
            if job.deaths < self._transport.tries:
                self._jobs.waiting.append(job)
            else:
                why = f"{BUILD_FAILED}its worker process {died.how}, {job.deaths} times"
                fail_case(job.cell.runs, job.cell.case(), why, self._on_progress)

    def _check_starts(self, died: Died) -> None:
        """Check that workers can be expected to start. Several that die at once, with their machine, say nothing about the next worker."""
        often, starts = len(self._failed_starts) >= MOST_FAILED_STARTS, self._failed_starts
        for_long = starts[-1] - starts[0] >= self._transport.patience
        if often and for_long and not any(worker.ready for worker in self._workers):
            raise RunError(f"worker processes do not start: the last one {died.how}; use executor=threads")


def _sendable_run(desk: ServiceHost, run: Run) -> Run:
    """The run as workers get it, without its cases, questions and record: they do not need them, and they may not be sendable."""
    bare = replace(run, cases=(), sizes=(), questions=partial(is_asked, frozenset()), record=RunRecord())
    sent = replace(bare, services=desk.stand_ins(run.services))
    try:
        ForkingPickler.dumps(sent)
    except Exception as error:
        raise RunError(f"{run.name} cannot be sent to another process ({error}); use executor=threads") from error
    return sent
