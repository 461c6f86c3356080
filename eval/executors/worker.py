"""A worker process: it runs the cells that the driver sends; calls of its services go to the driver."""

from __future__ import annotations

import hashlib
import os
import platform
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from data_loaders.schema import Case
from eval.executors.case_files import Files, collected, placed
from eval.executors.channel import CallClient, Reply, open_post, sendable
from eval.files.provenance import PACKAGES, versions
from eval.running.case import run_case
from eval.running.cells import CellQueue, OpenCell
from eval.running.loop import allow_files
from eval.running.pool import UrgentPool
from eval.running.question import AnswerPools
from eval.running.run import Progress, Run
from memsys.inert import inert_output
from memsys.lean import prepare_for_many_calls
from memsys.llm.network import forbid_network
from memsys.llm.secrets import register_environment
from memsys.processes import resident_bytes


@dataclass(frozen=True, slots=True)
class Environment:
    """The machine and software of a worker."""

    machine: str
    versions: Mapping[str, str]
    """Versions of Python and of packages, by name."""
    source: str
    """sha256 of this project's modules."""

    def difference(self, other: Environment) -> str:
        """Differences between another machine and this one, in words; empty if there is no difference that can change a number."""
        names = sorted({*self.versions, *other.versions})
        pairs = [(name, self.versions.get(name, "unknown"), other.versions.get(name, "unknown")) for name in names]
        parts = [f"{name} {theirs} instead of {ours}" for name, ours, theirs in pairs if ours != theirs]
        return ", ".join(parts + ["other source code of this project"] * (self.source != other.source))


def this_home(address: str = "") -> Environment:
    """The environment of this process; `address` is that of the machine, where it is known."""
    name = socket.gethostname()
    python = ".".join(platform.python_version_tuple()[:2])
    hashed = hashlib.sha256()
    for folder in map(package_folder, PACKAGES):
        for path in sorted(folder.rglob("*.py")):
            hashed.update(path.relative_to(folder.parent).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    machine, used = f"{name} ({address})" if address else name, {"Python": python, **versions("ray")}
    return Environment(machine, used, hashed.hexdigest())


def package_folder(name: str) -> Path:
    """The folder of a package of this project."""
    return Path(str(import_module(name).__file__)).parent


PROGRESS_PAUSE = 0.2
"""Seconds between two messages about written units, which come too often for one message each."""


@dataclass(frozen=True, slots=True)
class Template:
    """A run without its cases; it is sent once to each worker that needs it."""

    number: int
    run: Run


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


def is_asked(asked: frozenset[str], case_id: str, question_id: str) -> bool:
    return question_id in asked


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker has started."""

    home: Environment | None = None
    """The environment of the worker; None on the driver's machine, where it equals the driver's."""


@dataclass(frozen=True, slots=True)
class Steps:
    """Progress of a worker's cells."""

    steps: tuple[Progress, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """A cell is finished, or failed with an error that ends the run."""

    number: int
    resident_bytes: int
    error: BaseException | None = None
    files: tuple[Files, ...] | None = None
    """The case's files for each run, where the worker does not write into the run folders."""


class StepBuffer:
    """Collects progress and sends it in batches: at once, unless the step is only a written unit."""

    def __init__(self, send: Callable[[Steps], None]) -> None:
        self._send, self._lock = send, threading.Lock()
        self._steps: list[Progress] = []
        self._sent = time.monotonic()

    def add(self, step: Progress) -> None:
        """Collect one step; send all collected steps if it is time."""
        with self._lock:
            self._steps.append(step)
            if step.outcome == "written" and time.monotonic() - self._sent < PROGRESS_PAUSE:
                return
            steps, self._steps, self._sent = Steps(tuple(self._steps)), [], time.monotonic()
            self._send(steps)  # inside the lock: `complete` must not overtake the steps before it


class Cells:
    """The cells of a worker; their messages to the driver go through `send`."""

    def __init__(self, send: Callable[[Any], None], slots: int) -> None:
        self._send = send
        self._questions, self._saving = UrgentPool(64, "question"), UrgentPool(1, "answer")
        self._cells = ThreadPoolExecutor(slots, "cell")
        self._templates: dict[int, Run] = {}
        self._letters = CallClient(send)
        self._steps = StepBuffer(send)
        open_post(self._letters)

    def take(self, message: Template | Reply | Order) -> None:
        """Handle a message of the driver."""
        if isinstance(message, Template):
            self._templates[message.number] = message.run
        elif isinstance(message, Reply):
            self._letters.arrived(message)
        else:
            self._cells.submit(self._live, message)

    def _live(self, order: Order) -> None:
        """Run one cell, on one core per matrix product, as the driver's own threads would."""
        error = files = None
        try:
            from threadpoolctl import threadpool_limits

            asks = partial(is_asked, order.asked)
            templates = [self._templates[number] for number in order.runs]
            alone = [replace(run, cases=(order.case,), sizes=(1,), questions=asks) for run in templates]
            with placed(alone, order.case.id, order.files) as runs:
                try:
                    threadpool_limits(1)  # for each cell again: an earlier cell may have loaded another library
                    pools = AnswerPools(self._questions, self._saving, threading.Semaphore(runs[0].outstanding))
                    run_case(runs, order.case, pools, OpenCell(CellQueue(runs), 0), self._steps.add)
                finally:
                    files = None if order.files is None else collected(runs, order.case.id)
        except BaseException as raised:  # the driver raises it
            raised.add_note("in a worker:\n" + "".join(traceback.format_exception(raised)))  # tracebacks are not sent
            error = sendable(raised)
        self._send(Done(order.number, resident_bytes(), error, files))


class _Pipe:
    """A worker's end of the connection to its driver. When the driver has ended, the process exits: no process reads its results."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._sending = connection, threading.Lock()

    def received(self) -> Any:
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            os._exit(1)

    def send(self, message: Any) -> None:
        try:
            with self._sending:
                self._connection.send(message)
        except OSError:
            os._exit(1)


def prepare(files: int, network_forbidden: bool) -> None:
    """Prepare this process for cells that may have `files` files open; the network is forbidden as in the driver."""
    register_environment()
    forbid_network(network_forbidden)
    prepare_for_many_calls()
    allow_files(files)


def work(connection: Connection, slots: int, files: int, network_forbidden: bool) -> None:
    """Run the main loop of a worker process, which works on `slots` cells at once; the others as for `prepare`."""
    # The terminal sends Ctrl-C to every process. The driver decides when its workers end, and kills them.
    for name in ("SIGINT", "SIGHUP"):
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    prepare(files, network_forbidden)
    pipe = _Pipe(connection)
    with inert_output():  # only the command prints to the terminal
        cells = Cells(pipe.send, slots)
        pipe.send(Ready())
        while (message := pipe.received()) is not None:
            cells.take(message)
