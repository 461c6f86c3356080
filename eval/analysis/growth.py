"""Measure what one more unit costs as a history grows (SegTreeMem Fig. 5, MemTree Fig. 5).

One memory is built once over the data set's cases in a row, until the largest size is reached. At each size the memory is consolidated,
as it would be before a question. For a memory that rebuilds (`OFFLINE`), one more unit costs the whole consolidation; for any other
memory the consolidation is provisional and reported apart. With `reads`, the first questions of the data set are read at each size.

Deviations: unit texts are embedded when they are written, not ahead of time as in a run, so that each write is charged its own cost.
The cumulative cost of a memory that rebuilds includes the rebuilds at the requested sizes, not one after every unit. Questions are read
whether or not the history already contains their answer, because only the cost of reading is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from data_loaders.schema import Case, Question, Session, Turn, Unit
from data_loaders.units import make_units
from eval.files.provenance import identity
from eval.files.records import Effort
from eval.files.run_folder import RunFolder
from eval.files.store import RunError
from eval.running.case_log import effort
from eval.running.run import Run, build_memory
from memsys.inert import csv_text
from memsys.interface import MemorySystem
from memsys.llm.meter import metering
from memsys.llm.protocol import EndOfRun
from memsys.tokens import count_tokens

FIELDS = (
    "own_cpu_seconds",
    "provider_seconds",
    "calls",
    "tokens_in",
    "tokens_out",
    "embedding_calls",
    "embedding_tokens",
)
"""What a cost consists of; seconds, calls and tokens."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """At which sizes costs are measured.

    Raises:
        RunError: there is no size, a size is below 1, or the window is below 1.
    """

    sizes: tuple[int, ...]
    """Numbers of units."""
    window: int
    """The cost of one more unit is the mean over this many writes before the size."""
    reads: int
    """Questions read at each size."""

    def __post_init__(self) -> None:
        if not self.sizes or any(size < 1 for size in self.sizes):
            raise RunError(f"sizes: at least one, each at least 1, found {list(self.sizes)}")
        if self.window < 1:
            raise RunError(f"window must be at least 1, found {self.window}")


@dataclass(frozen=True, slots=True)
class Cost:
    """What building cost at one size; each tuple is in the order of `FIELDS`."""

    n: int
    """Units written."""
    held: int
    """Entries in the memory."""
    one_more: tuple[float, ...]
    """One more unit: a write, plus the rebuild for a memory that rebuilds."""
    consolidation: tuple[float, ...]
    """The consolidation at this size."""
    cumulative: tuple[float, ...]
    """All writes so far, plus all rebuilds so far for a memory that rebuilds."""
    read: tuple[float, ...] | None = None
    """Reading one question at this size, the mean over the questions read; None when none was read."""


def growth_file(run: Run, dataset: str, schedule: Schedule) -> Path:
    """The CSV of a run's memory; every schedule has a name of its own."""
    settings = {"run": run.folder.name, "sizes": sorted(set(schedule.sizes)), "window": schedule.window}
    name = identity({**settings, "reads": schedule.reads} if schedule.reads else settings)
    return RunFolder(run.folder).results / "growth" / f"{run.name}-{dataset}-{name}.csv"


def measure(run: Run, dataset: str, schedule: Schedule) -> str:
    """Build a run's memory once over the data set and return its costs as CSV.

    Raises:
        RunError: the data set is too short, or the spending cap was reached.
    """
    sizes = sorted(set(schedule.sizes))
    history, units = long_history(run.cases, dict(run.unit), sizes[-1])
    questions = [question for case in run.cases for question, _ in case.questions] if schedule.reads else []
    run.rehearse()
    memory = build_memory(run, history)
    try:
        lines = list(build(memory, units, sizes, questions[: schedule.reads]))
    except EndOfRun as error:
        raise RunError(f"{error}; nothing was written, the replies already paid for are in the cache") from error
    return as_csv(run.name, dataset, memory.OFFLINE, costs_at(lines, memory.OFFLINE, schedule.window))


def long_history(cases: Sequence[Case], unit: dict[str, Any], size: int) -> tuple[Case, list[Unit]]:
    """Join cases into one history and return it with its first `size` units; ids are prefixed with their case.

    Raises:
        RunError: the data set has fewer units.
    """
    sessions: list[Session] = []
    units: list[Unit] = []
    for case in cases:
        renamed = [_prefixed(session, case.id) for session in case.sessions]
        sessions += renamed
        units += make_units(renamed, count=count_tokens, **unit).units
        if len(units) >= size:
            return Case("growth", case.speakers, tuple(sessions), ()), units[:size]
    raise RunError(
        f"sizes: the data set holds {len(units)} units, {size} are asked for; choose smaller sizes or more data"
    )


def _prefixed(session: Session, case_id: str) -> Session:
    turns = tuple(Turn(f"{case_id}/{turn.id}", turn.speaker, turn.text, turn.role) for turn in session.turns)
    return replace(session, id=f"{case_id}/{session.id}", turns=turns)


def build(
    memory: MemorySystem, units: Sequence[Unit], sizes: Sequence[int], questions: Sequence[Question] = ()
) -> Iterator[Effort]:
    """Write all units; at each size consolidate and read the questions. Yields one effort line per step."""
    for position, unit in enumerate(units, 1):
        following = units[position] if position < len(units) else None

        def write(unit: Unit = unit, following: Unit | None = following) -> None:
            memory.write(unit)
            if following is None or following.session_id != unit.session_id:
                memory.end_session(unit.session_id)

        yield _measured(memory, "write", unit.id, write)
        if position in sizes:
            yield _measured(memory, "consolidate", str(position), memory.consolidate)
            for question in questions:
                yield _measured(memory, "read", question.id, partial(memory.read, question))


def _measured(memory: MemorySystem, phase: str, subject: str, step: Callable[[], object]) -> Effort:
    started = time.thread_time()
    with metering() as ledger:
        step()
    own = max(0.0, time.thread_time() - started - ledger.service_cpu)
    return effort("growth", phase, subject, memory.held, ledger, own)


def costs_at(lines: Sequence[Effort], rebuilds: bool, window: int) -> list[Cost]:
    """Costs at each consolidation.

    Args:
        lines: effort of every step, in order.
        rebuilds: whether one more unit makes the memory consolidate everything again.
        window: the cost of a write is the mean over this many writes before the size.
    """
    costs: list[Cost] = []
    writes: list[tuple[float, ...]] = []
    reads: list[tuple[float, ...]] = []
    cumulative = tuple(0.0 for _ in FIELDS)
    for line in lines:
        values = _values(line)
        if line.phase == "write":
            writes.append(values)
            cumulative = _sum(cumulative, values)
            continue
        if line.phase == "read":
            reads.append(values)
            costs[-1] = replace(costs[-1], read=_means(reads))
            continue
        reads = []
        if rebuilds:
            cumulative = _sum(cumulative, values)
        write = _means(writes[-window:])
        costs.append(Cost(len(writes), line.held, _sum(write, values) if rebuilds else write, values, cumulative))
    return costs


def _values(line: Effort) -> tuple[float, ...]:
    return tuple(float(sum(line.calls.values()) if name == "calls" else getattr(line, name)) for name in FIELDS)


def _means(lines: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(sum(column) / len(lines) for column in zip(*lines, strict=True))


def _sum(first: tuple[float, ...], second: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(a + b for a, b in zip(first, second, strict=True))


def as_csv(memory: str, dataset: str, rebuilds: bool, costs: Sequence[Cost]) -> str:
    """Costs as CSV: three lines per size (one more unit, the consolidation, everything so far), a fourth where questions were read."""
    rows: list[list[object]] = [["memory", "dataset", "rebuilds", "n", "held", "what", *FIELDS]]
    for cost in costs:
        for kind in ("one_more", "consolidation", "cumulative", "read"):
            if (values := getattr(cost, kind)) is None:
                continue
            printed = [f"{value:.6f}" for value in values]
            rows.append([memory, dataset, str(rebuilds).lower(), cost.n, cost.held, kind, *printed])
    return csv_text(rows)
