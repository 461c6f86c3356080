"""What one more unit costs as a history grows: `python -m scripts.growth memory=segtree sizes=[100,200,400]`

The question of SegTreeMem Fig. 5 and MemTree Fig. 5. One memory is built once over the data set's cases, one behind the other, until
the largest size is reached. At each size the memory is consolidated, as it would be before a question. A memory that then rebuilds
everything pays a whole rebuild for one more unit; for any other the consolidation is provisional and printed apart. With `reads`, the
first questions of the data set are read at each size, too. Lines go to `results/growth/`.

Deviations: unit texts are embedded when they are written, not in advance as in a run, so that each write carries its own cost; and what
a rebuilding memory has spent counts the rebuilds at the sizes asked for, not one after every unit. A question is read whether or not
the history has reached its answer: what is measured is the reading.
"""

from __future__ import annotations

import csv
import io
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra

from data_loaders.schema import Case, Question, Session, Turn, Unit
from data_loaders.units import make_units
from eval.case_log import effort
from eval.provenance import identity
from eval.records import Effort
from eval.run import Run, build_memory
from eval.store import RunError
from memsys.interface import MemorySystem
from memsys.llm.meter import metering
from memsys.llm.protocol import EndOfRun
from memsys.tokens import count_tokens
from scripts.experiment.assemble import bench, data, memory_run, reader
from scripts.experiment.exits import configured
from scripts.experiment.launch import ended, launch
from scripts.experiment.readiness import prepared

if TYPE_CHECKING:
    from omegaconf import DictConfig

FIELDS = (
    "own_cpu_seconds",
    "provider_seconds",
    "calls",
    "tokens_in",
    "tokens_out",
    "embedding_calls",
    "embedding_tokens",
)


@dataclass(frozen=True, slots=True)
class Cost:
    """What building cost at one size, in the order of `FIELDS`."""

    n: int
    """Units written."""
    held: int
    """Entries in the memory."""
    one_more: tuple[float, ...]
    """Of one more unit: a write, and for a memory that rebuilds the rebuild."""
    consolidation: tuple[float, ...]
    """Of the consolidation at this size."""
    cumulative: tuple[float, ...]
    """Of all writes so far, and for a memory that rebuilds of its rebuilds so far."""
    read: tuple[float, ...] | None = None
    """Of reading one question at this size, the mean over those read; None when none was."""


def long_history(cases: Sequence[Case], unit: dict[str, Any], size: int) -> tuple[Case, list[Unit]]:
    """Cases one behind the other as one history, and its first `size` units; ids carry the case they come from.

    Raises:
        RunError: the data set holds fewer units.
    """
    sessions: list[Session] = []
    units: list[Unit] = []
    for case in cases:
        moved = [_moved(session, case.id) for session in case.sessions]
        sessions += moved
        units += make_units(moved, count=count_tokens, **unit).units
        if len(units) >= size:
            return Case("growth", case.speakers, tuple(sessions), ()), units[:size]
    raise RunError(
        f"sizes: the data set holds {len(units)} units, {size} are asked for; choose smaller sizes or more data"
    )


def _moved(session: Session, case_id: str) -> Session:
    turns = tuple(Turn(f"{case_id}/{turn.id}", turn.speaker, turn.text, turn.role) for turn in session.turns)
    return replace(session, id=f"{case_id}/{session.id}", turns=turns)


def build(
    memory: MemorySystem, units: Sequence[Unit], sizes: Sequence[int], questions: Sequence[Question] = ()
) -> Iterator[Effort]:
    """Write all units, at each size consolidate and read the questions; one effort line a step."""
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


def costs_at(lines: Sequence[Effort], *, rebuilds: bool, window: int) -> list[Cost]:
    """The cost at each consolidation.

    Args:
        rebuilds: whether the memory's consolidation is a rebuild that one more unit makes necessary.
        window: the write is the mean of the last so many.
    """
    found: list[Cost] = []
    writes: list[tuple[float, ...]] = []
    reads: list[tuple[float, ...]] = []
    spent = tuple(0.0 for _ in FIELDS)
    for line in lines:
        values = _values(line)
        if line.phase == "write":
            writes.append(values)
            spent = _sum(spent, values)
            continue
        if line.phase == "read":
            reads.append(values)
            found[-1] = replace(found[-1], read=_means(reads))
            continue
        reads = []
        if rebuilds:
            spent = _sum(spent, values)
        write = _means(writes[-window:])
        found.append(Cost(len(writes), line.held, _sum(write, values) if rebuilds else write, values, spent))
    return found


def _values(line: Effort) -> tuple[float, ...]:
    return tuple(float(sum(line.calls.values()) if name == "calls" else getattr(line, name)) for name in FIELDS)


def _means(lines: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(sum(column) / len(lines) for column in zip(*lines, strict=True))


def _sum(first: tuple[float, ...], second: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(a + b for a, b in zip(first, second, strict=True))


def as_csv(memory: str, dataset: str, rebuilds: bool, found: Sequence[Cost]) -> str:
    """Three lines a size: one more unit, the consolidation, all so far; a fourth for reading where questions were read."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["memory", "dataset", "rebuilds", "n", "held", "what", *FIELDS])
    for cost in found:
        for what in ("one_more", "consolidation", "cumulative", "read"):
            if (costs := getattr(cost, what)) is None:
                continue
            values = [f"{value:.6f}" for value in costs]
            writer.writerow([memory, dataset, str(rebuilds).lower(), cost.n, cost.held, what, *values])
    return out.getvalue()


@dataclass(frozen=True, slots=True)
class Steps:
    """Where and how costs are taken.

    Raises:
        RunError: no size, one below 1, or a window below 1.
    """

    sizes: tuple[int, ...]
    window: int
    reads: int
    """Questions read at each size."""

    def __post_init__(self) -> None:
        if not self.sizes or any(size < 1 for size in self.sizes):
            raise RunError(f"sizes: at least one, each at least 1, found {list(self.sizes)}")
        if self.window < 1:
            raise RunError(f"window must be at least 1, found {self.window}")


def place(run: Run, dataset: str, steps: Steps) -> Path:
    """Where the costs of a run's memory are written; other settings have another name."""
    asked = {"run": run.folder.name, "sizes": sorted(set(steps.sizes)), "window": steps.window}
    name = identity({**asked, "reads": steps.reads} if steps.reads else asked)
    return run.folder.parents[2] / "growth" / f"{run.name}-{dataset}-{name}.csv"


def measure(run: Run, dataset: str, steps: Steps) -> str:
    """Build a run's memory once over the data set and take its costs, as CSV.

    Raises:
        RunError: the data set is too short, or the spending cap was reached.
    """
    sizes = sorted(set(steps.sizes))
    case, units = long_history(run.cases, dict(run.unit), sizes[-1])
    questions = [question for one in run.cases for question, _ in one.questions][: steps.reads] if steps.reads else []
    memory, lines = _built(run, case, units, sizes, questions)
    return as_csv(run.name, dataset, memory.OFFLINE, costs_at(lines, rebuilds=memory.OFFLINE, window=steps.window))


def _growth(cfg: DictConfig) -> int:
    from omegaconf import OmegaConf

    dataset_config: dict[str, Any] = dict(OmegaConf.to_container(cfg.dataset, resolve=True))  # type: ignore[arg-type]
    memory_config: dict[str, Any] = dict(OmegaConf.to_container(cfg.memory, resolve=True))  # type: ignore[arg-type]
    steps = Steps(tuple(int(size) for size in cfg.sizes), cfg.window, cfg.reads)
    built = prepared(cfg, bench(cfg))
    dataset = data(cfg, dataset_config)
    reading = reader(cfg.protocol.reader or dataset_config["reader"])
    run = memory_run(cfg, built, dataset, memory_config, reading, unit=cfg.protocol.unit)
    path = place(run, dataset.name, steps)
    text = measure(run, dataset.name, steps)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    if built.stand_ins:
        print(f"STAND-IN: {', '.join(built.stand_ins)} filled by offline engines; these costs are not those of models.")
    print(text, end="")
    print(f"written: {path}")
    return 0


def _built(
    run: Run, case: Case, units: Sequence[Unit], sizes: Sequence[int], questions: Sequence[Question]
) -> tuple[MemorySystem, list[Effort]]:
    run.rehearse()
    memory = build_memory(run, case)
    try:
        return memory, list(build(memory, units, sizes, questions))
    except EndOfRun as error:
        raise RunError(f"{error}; nothing is written, what was bought is in the cache") from error


def growth(cfg: DictConfig) -> int:
    """Build, measure, print and write; the exit code is 2 when the input is wrong."""
    return configured(cfg, "growth", _growth)


@hydra.main(version_base="1.3", config_path="../conf", config_name="growth")
def main(cfg: DictConfig) -> None:
    ended(growth(cfg))


if __name__ == "__main__":
    sys.exit(launch(main))
