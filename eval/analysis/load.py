"""Measure a memory system under concurrent users: latency of writes and reads, lag until a write can be recalled, and leaks.

Each user has a memory of their own, built like that of a case (for a service: a namespace), and a thread of their own. A user writes the
units of a history of the data set; each unit ends with a sentence that holds a value of this user. Directly after a write its value is
asked for, and again at the read rate until it is recalled or `patience` is over. Further reads come at the read rate. All users have
written once before the rates begin, so that a leak is possible from the beginning. This first write starts what a memory needs (a process
of a product or of an MCP server, an HTTP client). It has a column of its own; its lag and time are not in the measures at the rates.

Decisions, for which there is no paper:

- The reads of a user wait for their writes, as the interface promises no more. Users are concurrent with each other.
- After a write, `consolidate` comes before the next read, as in a run. Its time is a column of its own and part of the lag.
- The lag of a value goes from the beginning of its write to the end of the first read for it that recalls it. If the first read does not
  recall the value, the lag is known to one interval of the read rate.
- A read leaks if its items or its answer hold a value of any other user, also of an earlier measurement with fewer users. Text of other
  users without their value is not noticed.
- Percentiles are of operations that returned, by nearest rank; failed operations are counted separately. An attempt that a memory repeats
  by itself is part of its operation.
- An operation that is late, because the one before it took long, is made at once. Its delay is in the column `behind`.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from data_loaders.schema import Case, Question, Unit
from eval.analysis.growth import long_history
from eval.files.provenance import identity
from eval.files.run_folder import RunFolder
from eval.files.store import RunError
from eval.running.failures import described, fatal_error, raise_if_stopped
from eval.running.run import Run, build_memory
from eval.running.work import write_unit
from memsys.inert import csv_text
from memsys.interface import MemorySystem, Recall
from memsys.llm import stopping
from memsys.llm.meter import metering
from memsys.llm.protocol import EndOfRun
from memsys.processes import megabytes, resident_bytes

VALUE = re.compile(r"zq[a-p]{16}")
"""The form of all values; no word of a history has it."""
NAMES = re.compile(r"[0-9a-f]{8,}(-[0-9a-f]{8,})*")
"""Names drawn for a user, such as that of a namespace; left out of causes, so that equal failures are counted together."""
COLOURS = "red blue green white black brown grey yellow orange purple golden".split()
THINGS = "kettle ladder suitcase piano bicycle tent drawer cabinet boat cellar printer gate trunk".split()
PHASES = ("first", "write", "consolidate", "read", "lag", "behind")
"""Measures in seconds; `first` is the first write of each user, which opens the memory."""
PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Plan:
    """Operations of each user, and their time limit."""

    users: tuple[int, ...]
    """Numbers of concurrent users, measured one after the other."""
    writes: int
    """Units that each user writes."""
    reads: int
    """Reads of each user at the read rate, in addition to those that follow writes."""
    write_rate: float
    read_rate: float
    """Operations a second of each user."""
    patience: float
    """Seconds after a write in which its value is asked for again."""
    seconds: float
    """Seconds at the rates after which no operation begins; the remaining operations are counted as not sent."""


@dataclass(slots=True)
class LoadCounts:
    """Outcomes of the operations of one or more users. For each operation `sent = returned + errors`."""

    sent: Counter[str] = field(default_factory=Counter)
    """Operations that were started: `first`, `write`, `consolidate`, `read`."""
    errors: Counter[str] = field(default_factory=Counter)
    """Operations that failed; also memories that could not be built (`build`) or closed (`close`)."""
    causes: Counter[str] = field(default_factory=Counter)
    """Messages of the failures; drawn names are `…`."""
    seconds: dict[str, list[float]] = field(default_factory=lambda: {phase: [] for phase in PHASES})
    """Seconds by phase (`PHASES`), of operations that returned."""
    leaks: int = 0
    """Reads that recalled another user's value."""
    leaked: list[str] = field(default_factory=list)
    """The first leaked value that each user recalled, with the name of its owner."""
    recalled: int = 0
    """Values that a read recalled."""
    lost: int = 0
    """Values whose write returned and which no read recalled."""
    unsent: Counter[str] = field(default_factory=Counter)
    """Planned operations that were not started: the time was over, the user had no memory, or a read had nothing written to ask for."""
    calls: Counter[str] = field(default_factory=Counter)
    """Model calls that failed for good or gave a reply that could not be parsed, by purpose; a memory may have survived them."""

    def add(self, other: LoadCounts) -> None:
        """Add the counts of another user."""
        for name in ("sent", "errors", "causes", "unsent", "calls"):
            getattr(self, name).update(getattr(other, name))
        for phase in PHASES:
            self.seconds[phase] += other.seconds[phase]
        self.leaks += other.leaks
        self.leaked += other.leaked
        self.recalled += other.recalled
        self.lost += other.lost

    @property
    def done(self) -> int:
        """Number of writes and reads that returned."""
        return sum(len(self.seconds[phase]) for phase in ("first", "write", "read"))


@dataclass(frozen=True, slots=True)
class Level:
    """The measurements at one number of users."""

    users: int
    tally: LoadCounts
    elapsed: float
    """Seconds from the beginning of the rates to the last read."""
    done: int
    """Writes and reads that returned in this time."""
    cpu: float
    """CPU seconds of this process and of child processes that ended with the memories; not of a service elsewhere."""
    bytes: int
    """Growth in bytes of this process and its child processes, from before the build to the last read; 0 where there is no /proc."""

    @property
    def rate(self) -> float:
        """Writes and reads a second that returned, at the rates."""
        return self.done / self.elapsed if self.elapsed > 0 else 0.0

    def percentile(self, phase: str, percent: int) -> float | None:
        """The percentile of an operation's seconds, by nearest rank; None without operations."""
        seconds = self.tally.seconds[phase]
        return float(np.percentile(seconds, percent, method="inverted_cdf")) if seconds else None


def load_file(run: Run, dataset: str, plan: Plan) -> Path:
    """The CSV of a run's memory; every plan has a name of its own."""
    name = identity({"run": run.folder.name, **{name: getattr(plan, name) for name in Plan.__slots__}})
    return RunFolder(run.folder).results / "load" / f"{run.name}-{dataset}-{name}.csv"


def measure(run: Run, plan: Plan, salt: str = "") -> Iterator[Level]:
    """Measure a memory at each number of users; a level is there as soon as it has ended.

    Args:
        salt: source of the values; empty draws a new one, so that values of an earlier measurement, left in a cache or a service, are not
            taken for values of this one.

    Raises:
        RunError: the data set is too short, or the spending cap was reached.
    """
    salt = salt or secrets.token_hex(8)
    try:
        histories = [_history(run, first, plan.writes) for first in range(min(max(plan.users), len(run.cases)))]
    except RunError as error:
        raise RunError(f"writes={plan.writes}: no user has that many units to write; {error}") from error
    run.rehearse()
    owners: dict[str, str] = {}
    try:
        for count in plan.users:
            yield _level(run, plan, count, histories, owners, salt)
    except EndOfRun as error:
        stopping.check()
        raise RunError(f"{error}; nothing was kept of users={count}") from error


def _history(run: Run, first: int, writes: int) -> tuple[Case, list[Unit]]:
    """The first units of the data set's cases, starting at one case."""
    cases = [run.cases[(first + place) % len(run.cases)] for place in range(len(run.cases))]
    case, _, units = long_history(cases, dict(run.unit), writes)
    return case, units


def _level(
    run: Run, plan: Plan, count: int, histories: Sequence[tuple[Case, list[Unit]]], owners: dict[str, str], salt: str
) -> Level:
    total, over = LoadCounts(), threading.Event()
    size, cpu = _size(), _cpu()
    names = [f"load-{count}-{number}" for number in range(count)]
    owners.update((value_of(salt, name, place), name) for name in names for place in range(plan.writes))
    users: list[User] = []
    elapsed, opened = 0.0, 0
    try:
        for number, name in enumerate(names):
            case, units = histories[number % len(histories)]
            users.append(User(name, [_told(salt, name, each) for each in enumerate(units)], plan, owners, over))
            users[-1].build(run, replace(case, id=name))
        with ThreadPoolExecutor(count, "user") as pool:
            try:
                list(pool.map(User.begin, users))
                started, opened = time.perf_counter(), sum(user.tally.done for user in users)
                list(pool.map(User.live, users, [number / count for number in range(count)]))
            finally:
                over.set()  # one user has met the end of the run: the others stop, too
        elapsed = time.perf_counter() - started
        size = _size() - size
    finally:
        for user in users:
            user.close()
    for user in users:
        total.add(user.tally)
    return Level(count, total, elapsed, total.done - opened, _cpu() - cpu, size)


def _size() -> int:
    return resident_bytes() + round(megabytes(os.getpid()) * 2**20)


def _cpu() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def value_of(salt: str, name: str, place: int) -> str:
    """The value that a user writes in one place; no other user, place or salt has it."""
    digest = hashlib.sha256(f"{salt}/{name}/{place}".encode()).hexdigest()[:16]
    return "zq" + digest.translate(str.maketrans("0123456789abcdef", "abcdefghijklmnop"))


def _subject(place: int) -> str:
    """The subject of the value at an index: the same for all users, so that a memory that mixes up users recalls the others' values."""
    again, cycle = divmod(place, len(COLOURS) * len(THINGS))
    thing = f"{COLOURS[cycle % len(COLOURS)]} {THINGS[cycle % len(THINGS)]}"
    return f"{thing} number {again + 1}" if again else thing


def _told(salt: str, name: str, placed: tuple[int, Unit]) -> tuple[Unit, Question, str]:
    """A unit with its value written into it, the question for the value, and the value."""
    place, unit = placed
    value, last, password = value_of(salt, name, place), unit.turns[-1], f"password of the {_subject(place)}"
    said = f"{last.text} The {password} is {value}."
    told = replace(unit, turns=(*unit.turns[:-1], replace(last, text=said)))
    asked = Question(f"value-{place}", f"What is the {password}?", time=unit.time, time_text=unit.time_text)
    return told, asked, value


class User:
    """A user with a memory; the user's steps run one after the other.

    Args:
        told: units, questions and values, in order.
        owners: names of users by value.
        over: set when no user may start another operation.
    """

    def __init__(
        self,
        name: str,
        told: Sequence[tuple[Unit, Question, str]],
        plan: Plan,
        owners: Mapping[str, str],
        over: threading.Event,
    ) -> None:
        self.name, self.told, self.plan, self.owners, self.over = name, told, plan, owners, over
        self._units = [unit for unit, _, _ in told]
        self.memory: MemorySystem | None = None
        self.tally = LoadCounts()
        self._known: list[int] = []
        """Indexes of the values whose write returned."""
        self._pending: dict[int, float] = {}
        """Indexes of the values that were not recalled yet, with the start time of the write."""
        self._stale = False
        """Whether something was written since the last consolidation."""

    def build(self, run: Run, case: Case) -> None:
        """Build the memory; if that fails, all operations of the user are counted as not sent."""
        with self._counting("build"):
            self.memory = build_memory(run, case)

    def begin(self) -> None:
        """Write the first unit and ask for it."""
        if self.memory is not None:
            with self._metered():
                self._write(0)

    def live(self, share: float) -> None:
        """Write and read at the rates, then ask for the values that were not recalled yet.

        This user starts after a share, in [0, 1), of the first interval, so that users do not act in step.
        """
        writes = [(place / self.plan.write_rate, "write", place) for place in range(1, len(self.told))]
        reads = [((place + 0.5) / self.plan.read_rate, "read", place) for place in range(self.plan.reads)]
        steps = sorted(writes + reads)
        if self.memory is None:
            self.tally.unsent.update(["first", *(kind for _, kind, _ in steps)])
            return
        with self._metered():
            started = time.perf_counter()
            end, offset = started + self.plan.seconds, share / self.plan.write_rate
            for number, (after, kind, place) in enumerate(steps):
                due = started + offset + after
                if not self._slept_until(min(due, end)) or time.perf_counter() >= end:
                    self.tally.unsent.update(kind for _, kind, _ in steps[number:])
                    break
                if kind == "read" and not self._known:
                    self.tally.unsent[kind] += 1
                    continue
                self.tally.seconds["behind"].append(max(0.0, time.perf_counter() - due))
                if kind == "write":
                    self._write(place)
                else:  # the value that waits longest, else all in turn
                    self._read(next(iter(self._awaited()), self._known[place % len(self._known)]))
            while (waited := self._awaited()) and self._slept_until(time.perf_counter() + 1 / self.plan.read_rate):
                if time.perf_counter() >= end:
                    break
                self._read(waited[0])
            self.tally.lost = len(self._pending)

    def close(self) -> None:
        """End the memory; a failure is counted."""
        if self.memory is not None:
            with self._counting("close"):
                self.memory.close()

    # --- steps -----------------------------------------------------------------------------------------------------------

    def _write(self, place: int) -> None:
        write = partial(write_unit, self._memory, self._units, place)
        began = time.perf_counter()
        self._stale = True
        if self._timed("write" if place else "first", write):
            self._known.append(place)
            self._pending[place] = began
            self._read(place)

    def _read(self, place: int) -> None:
        memory, (_, question, value) = self._memory, self.told[place]
        if self._stale and self._timed("consolidate", memory.consolidate):
            self._stale = False
        recalls: list[Recall] = []

        def read() -> None:
            recall = memory.read(question)
            if recall.aborted:
                raise RunError(f"the search was aborted: {recall.aborted}")
            recalls.append(recall)

        if not self._timed("read", read):
            return
        ended = time.perf_counter()
        texts = [*(item.text for item in recalls[0].items), recalls[0].answer or ""]
        shown = set(VALUE.findall("\n".join(texts).casefold()))
        if others := sorted(each for each in shown if self.owners.get(each, self.name) != self.name):
            self.tally.leaks += 1
            if not self.tally.leaked:
                self.tally.leaked.append(f"{self.name} recalls {others[0]} of {self.owners[others[0]]}")
        if value in shown and place in self._pending:
            self.tally.recalled += 1
            began = self._pending.pop(place)
            if place:
                self.tally.seconds["lag"].append(ended - began)

    def _awaited(self) -> list[int]:
        """Indexes of the values that are still asked for, the oldest first."""
        now = time.perf_counter()
        return [place for place, began in self._pending.items() if now - began < self.plan.patience]

    # --- how steps are made ----------------------------------------------------------------------------------------------

    @property
    def _memory(self) -> MemorySystem:
        assert self.memory is not None
        return self.memory

    def _slept_until(self, due: float) -> bool:
        """Wait until `due`; False if the measurement is over."""
        while (left := due - time.perf_counter()) > 0 and not self.over.is_set():
            stopping.check()
            self.over.wait(min(left, 0.2))
        stopping.check()
        return not self.over.is_set()

    def _timed(self, phase: str, step: Callable[[], object]) -> bool:
        """Run one operation and return whether it succeeded.

        Raises:
            EndOfRun: no further call can be made.
        """
        self.tally.sent[phase] += 1
        failed, began = self.tally.errors[phase], time.perf_counter()
        with self._counting(phase):
            step()
            self.tally.seconds[phase].append(time.perf_counter() - began)
        return self.tally.errors[phase] == failed

    @contextmanager
    def _counting(self, phase: str) -> Iterator[None]:
        """Count an error and continue after the block; an error that ends the run stops the other users, too."""
        try:
            yield
        except BaseException as error:
            if fatal_error(error):
                self.over.set()
            raise_if_stopped(error)
            self.tally.errors[phase] += 1
            step = "write" if phase == "first" else phase
            self.tally.causes[f"{step}: {NAMES.sub('…', described(error))}"] += 1

    @contextmanager
    def _metered(self) -> Iterator[None]:
        """Count the model calls that failed inside."""
        with metering() as ledger:
            yield
        self.tally.calls.update(ledger.failures)
        self.tally.calls.update(ledger.parse_failures)


def writes(counts: Counter[str]) -> int:
    """All writes in these counts: the first of each user, and those at the rate."""
    return counts["first"] + counts["write"]


def as_csv(memory: str, dataset: str, levels: Sequence[Level]) -> str:
    """The levels as CSV, one line each; seconds with six decimals, an empty cell where nothing was measured."""
    measured = [(phase, percent) for phase in PHASES for percent in PERCENTILES]
    header = ["memory", "dataset", "users", "writes", "consolidations", "reads", "write_errors", "consolidate_errors"]
    header += ["read_errors", "build_errors", "close_errors", "writes_not_sent", "reads_not_sent", "leaks", "recalled"]
    header += ["never_recalled", "failed_calls", *(f"{phase}_p{percent}" for phase, percent in measured)]
    header += ["elapsed_seconds", "operations_per_second", "cpu_seconds", "bytes", "first_writes", "first_errors"]
    rows: list[list[object]] = [[*header]]
    for level in levels:
        tally = level.tally
        sent = [writes(tally.sent), tally.sent["consolidate"], tally.sent["read"]]
        errors = [writes(tally.errors), *(tally.errors[phase] for phase in ("consolidate", "read", "build", "close"))]
        unsent = [writes(tally.unsent), tally.unsent["read"]]
        seconds = [level.percentile(phase, percent) for phase, percent in measured]
        printed = ["" if value is None else f"{value:.6f}" for value in seconds]
        found = [tally.leaks, tally.recalled, tally.lost, tally.calls.total()]
        totals = [f"{level.elapsed:.6f}", f"{level.rate:.6f}", f"{level.cpu:.6f}", level.bytes]
        first = [tally.sent["first"], tally.errors["first"]]  # in the columns of writes, too
        rows.append([memory, dataset, level.users, *sent, *errors, *unsent, *found, *printed, *totals, *first])
    return csv_text(rows)
