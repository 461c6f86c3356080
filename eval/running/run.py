"""A run: one memory on one data set, with the services that it uses and the progress that it reports."""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from data_loaders.schema import Case
from eval.files.records import Prediction
from eval.files.run_folder import RunFolder, RunRecord
from eval.running.reader import Reader
from memsys.interface import MemorySystem
from memsys.llm import meter
from memsys.llm.limits import CallQueue
from memsys.llm.protocol import LLM
from memsys.prompts import Prompts
from memsys.vectors import Embedder

if TYPE_CHECKING:
    from memsys.llm.gateway.server import Gateway

OUTSTANDING = 256
"""Maximum number of outstanding answers, or judgements: above any in-flight limit, yet their prompts fit into memory."""
SERVICES = ("llm", "probe", "embedder", "prompts", "gateway", "rng")
"""Parameters of a memory that `built` fills."""


def no_rehearsal() -> None:
    """Load nothing before a build."""


@dataclass(frozen=True, slots=True)
class Services:
    """Services that memories and readers may use: a model for each role, the embedder, the prompts."""

    llm: LLM
    reader: LLM
    probe: LLM
    embedder: Embedder
    prompts: Prompts
    gauges: Mapping[str, CallQueue] = field(default_factory=dict)
    """Load gauges of the endpoints by role (`memory`, `probe`, `reader`); a role without an endpoint has none."""
    gateway: Gateway | None = None
    """The gateway for programs outside this process; None if the memory is not such a program."""


@dataclass(frozen=True, slots=True)
class Run:
    """One memory on one data set, with everything that its cells need."""

    name: str
    folder: Path
    cases: Sequence[Case]
    sizes: Sequence[int]
    """Approximate work of each case, in any unit; the longest cases start first (`eval.running.cells`)."""
    build: Callable[..., MemorySystem]
    reader: Reader
    unit: Mapping[str, Any]
    """The unit rule and its settings (`data_loaders.units.make_units`)."""
    services: Services
    seed: int = 0
    replicate: int = 0
    rebuild_every: int = 1
    """Offline memories consolidate at the first due point and at every n-th from there; later units are shown raw until then."""
    questions: Callable[[str, str], bool] = lambda case_id, question_id: True
    """Filter by case id and question id: the questions that are asked."""
    control: Callable[[Case], MemorySystem] | None = None
    """Builds a control that needs the case's answer key, in place of `build` (`eval.running.gold_evidence`). None for every memory."""
    shared: str = ""
    """Name of the build: runs with the same name differ only in read knobs (`MemorySystem.READ_KNOBS`) and are built together.
    Empty: the run is built alone."""
    rehearse: Callable[[], None] = no_rehearsal
    """Called before a case is built: loads and compiles code whose time would otherwise count for the first build."""
    outstanding: int = OUTSTANDING
    """Maximum number of outstanding answers, or judgements; many more if they are sent in batches."""
    vectors: bool = True
    """Whether the nodes' vectors are saved; they are the largest part of a run folder, and few tools read them."""
    chain: float = 0.0
    """Dependent calls per unit of `sizes`, estimated before the run; 0 = unknown. Only the order of opening cells depends on it."""
    record: RunRecord = field(default_factory=RunRecord)
    """The parts of the run's identity and its software versions: written to `run.json`."""

    def case_folder(self, case_id: str) -> Path:
        """The folder of a case's files."""
        return RunFolder(self.folder).case(case_id)

    @property
    def dataset(self) -> str:
        """Name of the data set (`conf/dataset`): the name of the folder that holds the run's folder."""
        return RunFolder(self.folder).dataset


@dataclass(frozen=True, slots=True)
class Progress:
    """One step of a run: a question is done, or (with an empty `question_id`) a case begins, a unit is written, a case is complete."""

    run: str
    """Name of the run's folder."""
    case_id: str
    question_id: str
    outcome: str
    """A question's outcome, or for a case `begun`, `written`, `kept` or `complete`."""
    kept: int = 0
    """With `kept`: questions of the case that were answered in an earlier run."""
    units: int = 0
    """With `begun`: units of the case; 0 when all its questions are answered already."""
    seconds: float = field(default=0.0, compare=False)
    """Of a written unit, or of an answer: CPU seconds and seconds of calls since the last such event of the case and the run."""


OnProgress = Callable[[Progress], None]
OnAnswer = Callable[[Run, Case, Prediction], None]
"""Called with the run, the case and the answer once its line is saved; may raise `EndOfRun` to end the run."""


def ignore_answer(run: Run, case: Case, prediction: Prediction) -> None:
    """Do nothing: for callers that do not use answers."""


def build_memory(run: Run, case: Case) -> MemorySystem:
    """Build a fresh memory for a case with the services that its constructor names; for a control, the control for this case."""
    if run.control is not None:
        return run.control(case)
    code = np.frombuffer(case.id.encode() or b"\0", dtype=np.uint8)
    return built(run.build, run.services, np.random.default_rng([run.seed, run.replicate, *map(int, code)]))


def built(build: Callable[..., MemorySystem], services: Services, rng: np.random.Generator) -> MemorySystem:
    """Build a fresh memory with the services that its constructor names; it and the memories that it wraps see their prompts alone."""
    prompts = [name for target, _ in layers(build) for name in getattr(target, "PROMPTS", ())]
    own = replace(services, prompts=services.prompts.only(prompts))
    named = [name for name in SERVICES if name in needs(build)]
    with memorys_code():
        return build(**{name: rng if name == "rng" else getattr(own, name) for name in named})


@contextmanager
def memorys_code() -> Iterator[None]:
    """Run code of a memory: it may not end or replace this process, nor change the working folder, below which results are written."""
    _guard_this_process()
    with meter.metering(meter.current()):
        yield


REFUSED = {"os.chdir": "change the working folder, where results are written", "os.exec": "replace this process"}
"""What a memory must not do, by audit event."""


@lru_cache(maxsize=1)
def _guard_this_process() -> None:
    """From now on, refuse `REFUSED` in code of memories; `os._exit` is `sys.exit` there. Threads that they start, and forked processes,
    are free: a library's watchdog must be able to end the process, though not with 0, as if the command had done its work.

    No code of this process may close a standard stream: the next file that a run opens would get its number, and hold what is printed.
    """
    process, leave, close, close_range = os.getpid(), os._exit, os.close, os.closerange

    def is_a_memory() -> bool:
        return meter.current() is not None and os.getpid() == process

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event in REFUSED and is_a_memory():
            raise PermissionError(f"a memory must not {REFUSED[event]}: {arguments[0]!r}")

    def exit_memory(status: int) -> NoReturn:
        if is_a_memory():
            sys.exit(status)
        in_a_thread = os.getpid() == process and threading.current_thread() is not threading.main_thread()
        leave(status or int(in_a_thread))

    def keep_open(low: int, high: int) -> None:
        if low <= 2 and high > max(low, 0) and os.getpid() == process:
            raise PermissionError(f"standard stream {max(low, 0)} must stay open")

    def close_one(fd: int) -> None:
        keep_open(fd, fd + 1)
        close(fd)

    def close_several(low: int, high: int, /) -> None:
        keep_open(low, high)
        close_range(low, high)

    sys.addaudithook(refuse)
    os._exit, os.close, os.closerange = exit_memory, close_one, close_several


def layers(build: Any) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    """The class, or the function, that builds a memory, with the settings that it is given; then those of the memory that it wraps."""
    while build is not None:
        target, given = (build.func, build.keywords) if isinstance(build, partial) else (build, {})
        yield target, given
        build = given.get("inner")


def innermost(build: Callable[..., MemorySystem]) -> Any:
    """The class, or the function, that builds the memory inside all wrappers."""
    *_, (target, _) = layers(build)
    return target


def needs(build: Callable[..., MemorySystem]) -> frozenset[str]:
    """Parameters of a memory's constructor that its configuration leaves open; services are among them."""
    target, given = next(layers(build))
    return frozenset(inspect.signature(target).parameters) - frozenset(given)
