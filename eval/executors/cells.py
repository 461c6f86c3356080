"""Cells for executors: each is one build on one case. They are ordered by estimated work and described in a form that can be sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from data_loaders.schema import Case
from eval.executors.case_files import Files
from eval.files.records import Prediction
from eval.files.run_folder import RunRecord
from eval.running.run import Run
from eval.running.work import Build


@dataclass(slots=True)
class Job:
    """A cell that is waiting or being worked on."""

    number: int
    cell: Build
    deaths: int = 0
    """Number of workers that died while they worked on it."""
    started: float = 0.0
    case_id: str = ""
    """Set when the job is handed out: reading it may parse the case again."""
    looked_at: bool = False
    """Whether the case was checked and is not answered yet."""
    before: tuple[Mapping[str, Prediction], ...] = ()
    """Content of the case in each run's folder when the job was handed out."""


@dataclass(slots=True)
class Jobs:
    """The cells that wait, longest first. A build's seconds per unit of size are learned from its finished cells.

    A build without a finished cell comes first, with its largest case: it may be the most expensive.
    """

    waiting: list[Job]
    rates: dict[int, float] = field(default_factory=dict)
    """Greatest seconds per unit of size so far, by build."""
    begun: set[int] = field(default_factory=set)

    def next(self) -> Job:
        """The job with the most work; a job that lost its worker comes before all others. It stays in the queue until `take`."""
        return max(self.waiting, key=self._priority)

    def take(self, job: Job) -> None:
        """Remove a job from the queue."""
        self.waiting.remove(job)
        self.begun.add(job.cell.group)

    def took(self, job: Job, seconds: float) -> None:
        """Record the seconds of a finished job."""
        rate = seconds / max(1, job.cell.size)
        self.rates[job.cell.group] = max(rate, self.rates.get(job.cell.group, 0.0))

    def _priority(self, job: Job) -> tuple[bool, bool, float]:
        build, size = job.cell.group, job.cell.size
        guess = self.rates.get(build, max(self.rates.values(), default=1.0))
        return job.deaths > 0, build not in self.begun, guess * size


@dataclass(frozen=True, slots=True)
class Order:
    """A cell as it is sent to a worker; the worker has the templates of its runs already."""

    number: int
    runs: tuple[int, ...]
    """Numbers of the templates."""
    case: Case
    asked: frozenset[str]
    """Ids of the questions that are asked."""
    files: tuple[Files, ...] | None = None
    """The case's files so far, for each run; None where the worker writes into the run folders."""


def order_of(job: Job, runs: tuple[int, ...]) -> Order:
    """The order for a job; `runs` are the numbers of its templates."""
    case, run = job.cell.case(), job.cell.runs[0]
    asked = frozenset(question.id for question, _ in case.questions if run.questions(case.id, question.id))
    return Order(job.number, runs, case, asked)


def template(run: Run) -> Run:
    """A run without its cases, questions and record: a worker does not need them, and they may not be sendable."""
    return replace(run, cases=(), sizes=(), questions=partial(_is_asked, frozenset()), record=RunRecord())


def runs_of(order: Order, templates: Sequence[Run]) -> list[Run]:
    """The runs of an order, on its one case."""
    asks = partial(_is_asked, order.asked)
    return [replace(run, cases=(order.case,), sizes=(1,), questions=asks) for run in templates]


def _is_asked(asked: frozenset[str], case_id: str, question_id: str) -> bool:
    return question_id in asked
