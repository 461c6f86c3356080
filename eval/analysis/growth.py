"""Measure what one more unit costs as a history grows (SegTreeMem Fig. 5, MemTree Fig. 5).

One memory is built once over the data set's cases in a row, until the largest size is reached. At each size the memory is consolidated,
as it would be before a question. For a memory that rebuilds (`OFFLINE`), one more unit costs the whole consolidation; for any other
memory the consolidation is provisional and reported apart. With `reads`, the first questions of the data set are read at each size.
With `questions`, the questions whose evidence has been written are read, answered and scored; bytes, intervals and exponents are added
(`RecallWatch`).

These questions are the data set's own. A question that names evidence is asked once the history has passed its last evidence turn; evidence
that the unit rule leaves out counts as missed, as in a run. `covered` is `covered@k` of `eval.judging.score`: items ranked by the memory's
own score. `score` is a lexical metric of the reader's answers to the same questions.

The set of questions differs between sizes: more are due as the history grows. Questions are drawn by hash, so a drawn question stays until
others with smaller hashes come in. The curve therefore mixes growth with a change of questions. `covered_first` is about the questions of
the first size alone, which are read at every size. Where histories of different people are joined, a question may fit several of them.

Deviations: unit texts are embedded when they are written, not ahead of time as in a run, so that each write is charged its own cost.
The cumulative cost of a memory that rebuilds includes the rebuilds at the requested sizes, not one after every unit. `reads` takes
questions whether or not the history already contains their answer, because only the cost of reading is measured. The interval of a
cost takes the writes of the window, or the reads of the size, as independent; a cost that was measured once, or equal each time, has none.
Simulated, with a window of 10: .92 for log-normal costs with a deviation of .5 on log scale, .82 with 1; .89 for an event in a fifth of the
writes. Of a service only the CPU seconds here are in it, not those that it takes (`load` measures them).
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np

from data_loaders.schema import Case, Gold, Question, Unit
from data_loaders.transforms import by_hash, join
from data_loaders.units import make_units
from eval.files.provenance import identity
from eval.files.records import Effort, Prediction
from eval.files.run_folder import RunFolder
from eval.files.store import RunError, item_score
from eval.judging.score import Scorer
from eval.metrics.retrieval import covered_share
from eval.running.case_log import effort
from eval.running.failures import EXITS, described, raise_fatal, raise_if_stopped
from eval.running.question import outcome_of
from eval.running.reader import render
from eval.running.run import Run, build_memory
from eval.running.work import write_unit
from eval.statistics.stats import (
    Grouping,
    Interval,
    Sampling,
    around,
    estimate,
    from_zero,
    independent,
    preferred_interval,
)
from memsys.inert import csv_text
from memsys.interface import MemorySystem, Recall
from memsys.llm.meter import metering
from memsys.llm.protocol import Completion, EndOfRun
from memsys.prompts import Prompts
from memsys.tokens import count_tokens

SHARED = (ModuleType, type, FunctionType, BuiltinFunctionType, CodeType, FrameType, threading.Thread, Prompts)
"""Types of objects that belong to the program and lead to all of it."""


def object_bytes(memory: MemorySystem, services: Collection[object]) -> int | None:
    """Bytes of all objects that the memory refers to; None for a memory that stores its data outside this process.

    The objects are added up, because the resident size of the process includes the harness, the model clients and the allocator's reserve,
    and differs between two equal runs. Each object counts once, with the size that Python or NumPy gives it; memory that other C libraries
    allocate is not seen. The services that the run hands over, and code, are left out.

    Args:
        services: objects that the memory uses and does not own (model clients, the embedder).
    """
    if not memory.REHEARSED:
        return None
    seen = {id(service) for service in services}
    left: list[Any] = [memory]
    total = 0
    while left:
        thing = left.pop()
        if id(thing) in seen or isinstance(thing, SHARED):
            continue
        seen.add(id(thing))
        total += sys.getsizeof(thing)
        left += gc.get_referents(thing)
        if isinstance(thing, np.ndarray):  # the garbage collector does not know which objects it refers to
            # The list of all elements that is made here is not counted.
            left += [thing.base, *(thing.ravel().tolist() if thing.dtype.hasobject else ())]
    return total


def node_bytes(memory: MemorySystem) -> int | None:
    """Bytes of the nodes' texts (UTF-8) and vectors, without ids and links; None for a memory without nodes."""
    total = None
    for node in memory.nodes():
        vector = 0 if node.vector is None else node.vector.nbytes
        total = (total or 0) + len(node.text.encode(errors="replace")) + vector
    return total


@dataclass(frozen=True, slots=True)
class DueQuestion:
    """A question about an original history, due after its last evidence turn (index in the joined history, from 0)."""

    question: Question
    gold: Gold
    history: str
    due: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One number for each of several questions."""

    values: tuple[float, ...]
    histories: tuple[str, ...]
    """The original history of each question."""
    shares: bool = True
    """Whether the numbers are shares in [0, 1], and no quantity with a unit."""

    @property
    def mean(self) -> float | None:
        return fmean(self.values) if self.values else None

    @property
    def interval(self) -> Interval | None:
        """The 95 % interval of the mean, by the histories that were joined (`eval.statistics.stats`)."""
        if not self.values:
            return None
        return from_zero(preferred_interval(estimate(self.values, self.histories, scores=self.shares)))


@dataclass(frozen=True, slots=True)
class Holding:
    """Size and recall of a memory at one size."""

    n: int
    """Units written."""
    turns: int
    """Turns of the history up to the last unit."""
    object_bytes: int | None
    node_bytes: int | None
    asked: int
    """Questions drawn at this size."""
    first: int
    """Questions of the first size; all of them are read."""
    failed: int
    """Questions of both groups whose read failed; they have no coverage and no score."""
    unscored: int
    """Drawn questions that were read but for which no answer could be obtained."""
    covered: Sample
    """Share of the evidence that was recalled, for each drawn question."""
    covered_first: Sample
    """The same share, for each question of the first size."""
    recalled_bytes: Sample
    """Bytes of the recalled texts (UTF-8), for each drawn question."""
    score: Sample
    """Score of the reader's answer to each drawn question; empty where no reader is asked."""


class RecallWatch:
    """Asks the questions that are due at a size and records their recalls and answers.

    Args:
        history: the joined history with its questions.
        histories: the original history of each question.
        units: all units that are written.
        services: objects that the memory uses and does not own.
        most, k: `Schedule.questions` and `Schedule.k`.
        answered: the run whose reader answers, and the metric of its answers; None asks no reader.
    """

    def __init__(
        self,
        history: Case,
        histories: Sequence[str],
        units: Sequence[Unit],
        services: Collection[object],
        *,
        most: int,
        k: int,
        seed: int = 0,
        answered: tuple[Run, Scorer] | None = None,
    ) -> None:
        place = {turn.id: number for number, turn in enumerate(history.turns)}
        self._probes = [
            DueQuestion(question, gold, name, max(place[turn] for turn in gold.evidence))
            for (question, gold), name in zip(history.questions, histories, strict=True)
            if gold.evidence
        ]
        self._reached: list[int] = []
        """Index of the last turn that each number of units reaches."""
        for unit in units:
            self._reached.append(max([place[turn] for turn in unit.turn_ids] + self._reached[-1:]))
        self._services = services
        self._most, self._k, self._seed, self._answered = most, k, seed, answered
        self._first: frozenset[str] | None = None
        self._drawn: frozenset[str] = frozenset()
        """Ids of the questions of the first and of the current size."""
        self._recalls: list[tuple[DueQuestion, Recall | None]] = []
        self.holdings: list[Holding] = []

    def due(self, n: int) -> list[DueQuestion]:
        """The questions to ask after `n` units, in the order of the history: the drawn ones, and those of the first call."""
        due = [probe for probe in self._probes if probe.due <= self._reached[n - 1]]
        drawn = by_hash([probe.question.id for probe in due], f"growth:{self._seed}")[: self._most]
        self._drawn = frozenset(due[place].question.id for place in drawn)
        if self._first is None:
            self._first = self._drawn
        return [probe for probe in due if probe.question.id in self._drawn | self._first]

    def read(self, memory: MemorySystem, probe: DueQuestion) -> None:
        """Read one question and keep the recall; a read that fails is counted."""
        recall: Recall | None = None
        try:
            recall = memory.read(probe.question)
        except BaseException as error:
            raise_if_stopped(error)
        self._recalls.append((probe, recall))

    def note(self, memory: MemorySystem, n: int) -> None:
        """Score the recalls since the last size, and measure the memory's bytes."""
        first = self._first or frozenset()
        scored = [(probe, recall) for probe, recall in self._recalls if recall is not None]
        drawn = [pair for pair in scored if pair[0].question.id in self._drawn]
        kept = [pair for pair in scored if pair[0].question.id in first]
        scores = self._scores(drawn)
        recalled = [float(sum(len(item.text.encode(errors="replace")) for item in r.items)) for _, r in drawn]
        samples = [_sample(pairs, [self._covered(*pair) for pair in pairs]) for pairs in (drawn, kept)]
        samples += [_sample(drawn, recalled, shares=False), _sample(drawn, scores)]
        held = object_bytes(memory, self._services), node_bytes(memory)
        counts = len(self._drawn), len(first), len(self._recalls) - len(scored), scores.count(None)
        self.holdings.append(Holding(n, self._reached[n - 1] + 1, *held, *counts, *samples))
        self._recalls = []

    def _scores(self, read: Sequence[tuple[DueQuestion, Recall]]) -> list[float | None]:
        """The score of the reader's answer to each recall; None where there is none. An aborted recall has an empty answer."""
        if self._answered is None:
            return []
        run, scorer = self._answered
        answers: list[Future[Completion] | Prediction] = []
        with metering():  # not a cost of the memory
            for probe, recall in read:
                known = Prediction("growth", probe.question.id, recall.answer or "", (), (), "answered", recall.aborted)
                if recall.answer is not None or recall.aborted:
                    answers.append(replace(known, outcome="aborted") if recall.aborted else known)
                    continue
                request = render(run.reader, run.services.prompts, probe.question, recall).request
                answers.append(run.services.reader.submit(request))
        scores: list[float | None] = []
        for (probe, _), answer in zip(read, answers, strict=True):
            if isinstance(answer, Future):
                if (error := answer.exception()) is not None:
                    raise_fatal(error)
                outcome, text, why, cut = outcome_of(answer)
                answer = Prediction("growth", probe.question.id, text, (), (), outcome, why, cut)
            scores.append(scorer(probe.question, probe.gold, answer).value)
        return scores

    def _covered(self, probe: DueQuestion, recall: Recall) -> float:
        ranking = sorted(recall.items, key=lambda item: -item_score(item))  # as predictions keep it
        covered = covered_share([item.sources for item in ranking[: self._k]], probe.gold.evidence)
        assert covered is not None  # every probe has evidence
        return covered


def _sample(
    read: Sequence[tuple[DueQuestion, Recall]], values: Sequence[float | None], *, shares: bool = True
) -> Sample:
    """The sample of the values that are not None; it is empty without any."""
    pairs = [(value, probe.history) for (probe, _), value in zip(read, values, strict=False) if value is not None]
    return Sample(tuple(value for value, _ in pairs), tuple(history for _, history in pairs), shares)


@dataclass(frozen=True, slots=True)
class Exponent:
    """`b` in `y = a n^b`: 1 where y grows in proportion to n, 0 where it does not change."""

    value: float
    interval: Interval | None
    """Student's, with two degrees of freedom fewer than sizes; None for two sizes, and for values on the line, which show no error."""


def exponent(sizes: Sequence[float], values: Sequence[float]) -> Exponent | None:
    """Fit the exponent; None for fewer than two different sizes, and where a value is not above 0 (it has no logarithm).

    The interval assumes that deviations from the line are independent and of equal variance on the log scale. It says how well a power law
    fits the measured sizes, and nothing about larger ones. Totals that contain those of smaller sizes do not fulfil this, and neither do
    means over questions that sizes share (`SHARING`), or over writes that windows share: for these it covers .60 to .79, .34 to .97 and
    .74 (simulated), and is not printed.
    """
    if len(set(sizes)) < 2 or min(*sizes, *values) <= 0:
        return None
    x, y = np.log(np.asarray(sizes, dtype=float)), np.log(np.asarray(values, dtype=float))
    x, y = x - x.mean(), y - y.mean()
    spread = float(x @ x)
    slope = float(x @ y) / spread
    freedom = len(x) - 2
    error = float(np.sum((y - slope * x) ** 2) / max(freedom, 1) / spread) ** 0.5
    # Smaller errors are rounding errors.
    return Exponent(slope, around(slope, Sampling(error, freedom)) if freedom > 0 and error > 1e-9 else None)


FIELDS = "own_cpu_seconds provider_seconds calls tokens_in tokens_out embedding_calls embedding_tokens".split()
"""The parts of a cost; seconds, calls and tokens."""
KINDS = ("one_more", "consolidation", "cumulative", "read")
"""Subjects of the lines of a size."""
WINDOW = 10
"""Writes before a size whose mean is the cost of one more unit, where a figure does not say."""
SHARING = ("cumulative", "read")
"""Lines whose exponents have no interval: a total contains those of smaller sizes, and means over questions share questions with them,
so deviations from a line are not independent."""
HELD = ("object_bytes", "node_bytes", "recalled_bytes", "covered", "covered_first", "score")
"""Measures next to costs. Bytes held: all of them in `cumulative`, those of a unit since the size before in `one_more`. Bytes of
recalled texts, coverage of the evidence, also of the questions of the first size alone, and scores: in `read`, means over questions."""
COUNTS = ("turns", "questions", "first_questions", "failed", "unscored", "histories")
"""Turns written; questions drawn at this size, and at the first; failed reads, and answers that could not be had; histories behind
the drawn questions that were read."""


def sharing_kinds(sizes: Collection[float], window: int) -> tuple[str, ...]:
    """Lines whose costs have exponents without interval: `SHARING`, and `one_more` if the windows of two sizes share writes."""
    overlap = any(later - window < earlier for earlier, later in pairwise(sorted(sizes)))
    return (*SHARING, "one_more") if overlap else SHARING


@dataclass(frozen=True, slots=True)
class Schedule:
    """The sizes at which costs are measured.

    Raises:
        RunError: there is no size, a size is below 1, or both kinds of reads are asked for.
    """

    sizes: tuple[int, ...]
    """Numbers of units."""
    window: int
    """The cost of one more unit is the mean over this many writes before the size."""
    reads: int
    """Questions read at each size, whatever they ask about."""
    questions: int = 0
    """Maximum number of questions with written evidence that are read and scored at each size; 0 measures costs only."""
    k: int = 10
    """Number of items of a recall that count."""
    metric: str = ""
    """The lexical metric of the reader's answers to these questions; empty asks no reader."""

    def __post_init__(self) -> None:
        if not self.sizes or any(size < 1 for size in self.sizes):
            raise RunError(f"sizes: at least one, each at least 1, found {list(self.sizes)}")
        if self.reads and self.questions:
            raise RunError("reads and questions: set one of them to 0; both say which questions are read at each size")


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of building at one size; each array is float64 in the order of `FIELDS`."""

    n: int
    """Units written."""
    held: int
    """Entries in the memory."""
    writes: Sequence[np.ndarray]
    """The writes of the window before this size."""
    consolidation: np.ndarray
    """The consolidation at this size."""
    cumulative: np.ndarray
    """All writes so far, plus all rebuilds so far for a memory that rebuilds."""
    rebuilds: bool
    reads: list[np.ndarray] = field(default_factory=list)
    """Each question read at this size."""

    @property
    def one_more(self) -> np.ndarray:
        """One more unit: the mean of a write, plus the rebuild for a memory that rebuilds."""
        write = sum(self.writes) / len(self.writes)
        return np.asarray(write + self.consolidation if self.rebuilds else write)

    @property
    def read(self) -> np.ndarray | None:
        """Reading one question at this size, the mean over the questions read; None when none was read."""
        return np.asarray(sum(self.reads) / len(self.reads)) if self.reads else None

    def sample(self, kind: str) -> Sequence[np.ndarray]:
        """The measurements behind a mean; empty for a kind that was measured once, as a rebuild is."""
        return {"one_more": () if self.rebuilds else self.writes, "read": self.reads}.get(kind, ())


def growth_file(run: Run, dataset: str, schedule: Schedule) -> Path:
    """The CSV of a run's memory; every schedule has a name of its own."""
    settings: dict[str, Any] = {"run": run.folder.name, "sizes": sorted(set(schedule.sizes)), "window": schedule.window}
    if schedule.questions:
        settings |= {"questions": schedule.questions, "k": schedule.k, "metric": schedule.metric}
    name = identity({**settings, "reads": schedule.reads} if schedule.reads else settings)
    return RunFolder(run.folder).results / "growth" / f"{run.name}-{dataset}-{name}.csv"


def measure(
    run: Run, dataset: str, schedule: Schedule, scorer: Scorer | None = None, on_unit: Callable[[], None] = lambda: None
) -> str:
    """Build a run's memory once over the data set and return its costs as CSV.

    Args:
        scorer: computes `schedule.metric`.
        on_unit: called after every unit that was written.

    Raises:
        RunError: the data set is too short, or the spending cap was reached.
    """
    sizes = sorted(set(schedule.sizes))
    history, names, units = long_history(run.cases, dict(run.unit), sizes[-1])
    questions = [question for case in run.cases for question, _ in case.questions] if schedule.reads else []
    own = run.services
    services = (own.llm, own.reader, own.probe, own.embedder, own.gateway)
    counts = {"most": schedule.questions, "k": schedule.k, "seed": run.seed}
    answered = None if scorer is None else (run, scorer)
    watch = RecallWatch(history, names, units, services, **counts, answered=answered) if schedule.questions else None
    run.rehearse()
    memory = build_memory(run, history)
    lines: list[Effort] = []
    try:
        with closing(memory):
            for line in build(memory, units, sizes, questions[: schedule.reads], watch):
                lines.append(line)
                if line.phase == "write":
                    on_unit()
    except (EndOfRun, *EXITS) as error:  # the code of a memory's `sys.exit` says nothing about this command
        why = str(error) if isinstance(error, EndOfRun) else described(error)
        raise RunError(f"{why}; nothing was written, the replies already paid for are in the cache") from error
    costs = costs_at(lines, memory.OFFLINE, schedule.window)
    return as_csv(run.name, dataset, memory.OFFLINE, costs, watch.holdings if watch else ())


def long_history(cases: Sequence[Case], unit: dict[str, Any], size: int) -> tuple[Case, list[str], list[Unit]]:
    """Join as many cases into one history as `size` units need (`join`).

    Returns:
        The history, the original history of each of its questions, and the units.

    Raises:
        RunError: the data set has fewer units.
    """
    taken: list[Case] = []
    units: list[Unit] = []
    for case in cases:
        taken.append(case)
        units += make_units(join([case], "growth").sessions, count=count_tokens, **unit).units
        if len(units) >= size:
            names = [each.cluster or each.id for each in taken for _ in each.questions]
            return join(taken, "growth"), names, units[:size]
    few = f"the data set holds {len(units)} units, {size} are asked for"
    raise RunError(f"sizes: {few}; choose smaller sizes or more data")


def build(
    memory: MemorySystem,
    units: Sequence[Unit],
    sizes: Sequence[int],
    questions: Sequence[Question] = (),
    watch: RecallWatch | None = None,
) -> Iterator[Effort]:
    """Write all units; at each size consolidate, read the questions, then the questions of `watch`. Yields one effort line per step."""

    def measured(phase: str, subject: str, step: Callable[..., object], *given: object) -> Effort:
        started = time.thread_time()
        with metering() as ledger:
            step(*given)
        own = max(0.0, time.thread_time() - started - ledger.service_cpu)
        return effort("growth", phase, subject, memory.held, ledger, own)

    for position, unit in enumerate(units, 1):
        yield measured("write", unit.id, write_unit, memory, units, position - 1)
        if position in sizes:
            yield measured("consolidate", str(position), memory.consolidate)
            for question in questions:
                yield measured("read", question.id, memory.read, question)
            if watch is not None:
                for probe in watch.due(position):
                    yield measured("read", probe.question.id, watch.read, memory, probe)
                watch.note(memory, position)


def costs_at(lines: Sequence[Effort], rebuilds: bool, window: int) -> list[Cost]:
    """Costs at each consolidation, from the effort of every step in order; `rebuilds` as in `Cost`, `window` as in `Schedule`."""
    costs: list[Cost] = []
    writes: list[np.ndarray] = []
    cumulative = np.zeros(len(FIELDS))
    for line in lines:
        values = np.array([sum(line.calls.values()) if name == "calls" else getattr(line, name) for name in FIELDS])
        if line.phase == "read":
            costs[-1].reads.append(values)
            continue
        if line.phase == "write" or rebuilds:
            cumulative = cumulative + values
        if line.phase == "write":
            writes.append(values)
        else:
            costs.append(Cost(len(writes), line.held, writes[-window:], values, cumulative, rebuilds))
    return costs


def as_csv(memory: str, dataset: str, rebuilds: bool, costs: Sequence[Cost], holdings: Sequence[Holding] = ()) -> str:
    """Costs as CSV: three lines per size (one more unit, the consolidation, everything so far), a fourth where questions were read.

    With `holdings`, one for each cost, columns follow: held and recalled bytes (`HELD`), the ends of the 95 % intervals of all numbers,
    counts of turns, questions and failures (`COUNTS`). The last lines, `one_more_exponent` and so on, hold the exponents of all numbers
    in the number of units (`exponent`). A cell is empty where nothing was measured, and where no exponent fits.
    """
    head = ["memory", "dataset", "rebuilds", "n", "held", "what", *FIELDS]
    start = [memory, dataset, str(rebuilds).lower()]
    if not holdings:
        lines = ([*start, cost.n, cost.held, kind, *map(_printed, values)] for cost, kind, values in _lines(costs))
        return csv_text([head, *lines])
    head += [*HELD, *(f"{name}_{end}" for name in (*FIELDS, *HELD) for end in ("low", "high"))]
    rows: list[list[object]] = [[*head, *COUNTS]]
    measured: dict[str, list[tuple[int, tuple[float | None, ...]]]] = {}
    at = {holding.n: place for place, holding in enumerate(holdings)}
    kinds = sharing_kinds([cost.n for cost in costs], max((len(cost.writes) for cost in costs), default=0))
    for cost, kind, values in _lines(costs):
        place = at[cost.n]
        holding, before = holdings[place], holdings[place - 1] if place else None
        numbers = (*values, *_held(kind, holding, before))
        measured.setdefault(kind, []).append((cost.n, numbers))
        held_spans = [getattr(holding, name).interval if kind == "read" else None for name in HELD[2:]]
        spans = [*_spans(cost.sample(kind)), None, None, *held_spans]
        counts = [holding.turns, holding.asked, holding.first, holding.failed, holding.unscored]
        counts.append(len(set(holding.covered.histories)))
        rows.append([*start, cost.n, cost.held, kind, *map(_printed, numbers), *_ends(spans), *counts])
    for kind, series in measured.items():
        fits: list[Exponent | None] = []
        for column in zip(*(numbers for _, numbers in series), strict=True):
            known = [value for value in column if value is not None]
            fits.append(exponent([n for n, _ in series], known) if len(known) == len(series) else None)
        powers = [None if fit is None else fit.value for fit in fits]
        shared = len(fits) if kind in SHARING else len(FIELDS) if kind in kinds else 0
        spans = [None if fit is None else fit.interval for fit in fits]
        spans[:shared] = [None] * shared
        rows.append([*start, "", "", f"{kind}_exponent", *map(_printed, powers), *_ends(spans), *[""] * len(COUNTS)])
    return csv_text(rows)


def _lines(costs: Sequence[Cost]) -> Iterator[tuple[Cost, str, np.ndarray]]:
    for cost in costs:
        for kind in KINDS:
            if (values := getattr(cost, kind)) is not None:
                yield cost, kind, values


def _held(kind: str, holding: Holding, before: Holding | None) -> tuple[float | None, ...]:
    """The values of `HELD` on a line; None for a value that this kind of line does not have."""
    if kind == "read":
        return (None, None, *(getattr(holding, name).mean for name in HELD[2:]))
    held, unread = (holding.object_bytes, holding.node_bytes), (None,) * len(HELD[2:])
    if kind == "cumulative":
        return (*held, *unread)
    if kind == "consolidation":
        return (None,) * len(HELD)
    earlier, units = ((before.object_bytes, before.node_bytes), before.n) if before else ((0, 0), 0)
    gained = [
        None if now is None or then is None else (now - then) / (holding.n - units)
        for now, then in zip(held, earlier, strict=True)
    ]
    return (*gained, *unread)


def _spans(sample: Sequence[np.ndarray]) -> list[Interval | None]:
    """Student's interval of each column's mean; None for fewer than two measurements, and for equal ones, which show no error."""
    if len(sample) < 2:
        return [None] * len(FIELDS)
    spans: list[Interval | None] = []
    for values in np.asarray(sample, dtype=float).T:
        sampling = Sampling.of(*independent(values[None], Grouping.of(np.zeros(values.size, dtype=int))))
        spans.append(None if sampling is None else from_zero(around(float(values.mean()), sampling)))
    return spans


def _ends(spans: Sequence[Interval | None]) -> list[str]:
    return [text for span in spans for text in ((_printed(span.low), _printed(span.high)) if span else ("", ""))]


def _printed(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}"
