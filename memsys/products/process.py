"""A worker process seen from the harness: sends a step, waits for its reply, and says how the process ended if none comes. And a product's
session for one case: its worker, its account at the gateway, and the restart of a worker that has ended.
"""

from __future__ import annotations

import json
import math
import os
import queue
import signal
import socket
import subprocess
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from memsys import processes
from memsys.folders import Held
from memsys.interface import Settings
from memsys.jsons import received
from memsys.llm import meter, stopping
from memsys.llm.gateway.accounts import Account
from memsys.llm.gateway.server import Gateway
from memsys.llm.meter import metering
from memsys.llm.protocol import EndOfRun, ModelError
from memsys.llm.secrets import redact
from memsys.products import sandbox
from memsys.products.places import Place
from memsys.products.surroundings import MEMORY_EXCEEDED

WORKER, SURROUNDINGS = (Path(__file__).with_name(f"{name}.py") for name in ("worker", "surroundings"))
POLL = 0.25
"""Seconds between two checks of the time limit while a reply is awaited."""
STARTED = 60.0
"""Seconds within which a process in a sandbox must listen on the gateway's port."""
GRACE = 2.0
"""Seconds that a step may go on after one of its calls has failed for good."""
AHEAD, LONGEST = 4, 256 << 20
"""Maximum number of lines that are read ahead, and of bytes in a line; the rest of a longer line is read as another line. A product that
writes without end must wait, and does not fill the harness's memory."""
MOST = 10**9
"""The greatest count that is accepted."""
ENDS = {MEMORY_EXCEEDED: "it exceeded its memory limit"}
Serve = Callable[[socket.socket], Callable[[], None]]
"""Makes the gateway serve on a further listener; the returned function stops that."""


class WorkerError(RuntimeError):
    """A step of a product failed."""


class Crashed(WorkerError):
    """The process ended in the middle of a step."""


class Hung(WorkerError):
    """The step exceeded its time limit; the process was killed."""


class Raised(WorkerError):
    """The product raised an exception; the process goes on."""


class MalformedReply(WorkerError):
    """A malformed reply or count; the process goes on."""


class WorkerProcess:
    """One process in a sandbox if the system has one, with a scratch folder and a home of its own. The caller takes one step at a time.

    Args:
        port: the gateway's.
        serve: makes the gateway serve in the sandbox's network too.
        memory_mb: memory limit of the process and all that it starts; 0 = none.

    Raises:
        Crashed: it ended before the first step.
        WorkerError: it cannot be started.
    """

    def __init__(self, python: Path, adapter: Path, port: int, serve: Serve, memory_mb: int = 0) -> None:
        self.cpu = 0.0
        """CPU seconds of the process as of its last reply."""
        self.refused: dict[str, int] = {}
        """Refused connections and programs, by address or name."""
        self.garbage = 0
        """Number of lines on the protocol's stream that are not replies."""
        self._number, self._memory_mb = 0, memory_mb
        self._lines: queue.Queue[bytes | None] = queue.Queue(AHEAD)
        processes.hide_this_process()
        held = processes.scratch_folder()
        self.scratch = held.path / "scratch"
        (self.scratch / "home").mkdir(parents=True)
        # Out of the product's reach, which might replace it by a link to a file of the user.
        self._said = (held.path / "stderr.txt").open("w+b")
        door, line = socket.socketpair()
        with door, line:
            try:
                self._process = self._started(python, adapter, held, port, line)
            except (OSError, ValueError, RuntimeError) as error:
                processes.let_go(held)
                raise WorkerError(f"the product cannot be started: {error}") from error
            reader = threading.Thread(
                target=_read, args=(self._process.stdout, self._lines), name="worker", daemon=True
            )
            reader.start()
            # A memory that is never closed ends its process when it is garbage-collected.
            self._forgotten = weakref.finalize(self, _forget, self._process, held, stops := [])
            if self.sandbox != "none":
                line.close()
                stops.append(serve(self._listener(door)))

    def _started(
        self, python: Path, adapter: Path, held: Held, port: int, line: socket.socket
    ) -> subprocess.Popen[bytes]:
        """The process: on Linux the keeper's, which ends with the worker and ends all processes that the worker has started."""
        self.sandbox = sandbox.kind()
        command, files = [str(python), str(WORKER), str(adapter)], (WORKER, SURROUNDINGS, adapter)
        if self.sandbox != "none":
            command += [str(port), str(line.fileno())]
        return processes.spawned(
            sandbox.confined(self.sandbox, held.path, python, files, command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=_environment(self.scratch),
            cwd=self.scratch,
            pass_fds=() if self.sandbox == "none" else (line.fileno(),),
            start_new_session=True,  # Ctrl-C in the terminal is for the harness, which closes its workers
        )

    def _listener(self, door: socket.socket) -> socket.socket:
        """The socket on which the process listens in its network."""
        door.settimeout(STARTED)
        try:
            _, descriptors, _, _ = socket.recv_fds(door, 16, 1)
        except OSError:
            descriptors = []
        if not descriptors:
            self.kill()
            raise Crashed(self._ended("start"))
        return socket.socket(fileno=descriptors[0])

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(
        self, step: str, given: Mapping[str, Any], seconds: float, failed: Callable[[], bool] = lambda: False
    ) -> Any:
        """Take a step and return its value.

        Args:
            seconds: time limit; beyond it the process is killed.
            failed: whether a model call of this step has failed for good. The step then ends soon, by itself or with the process.

        Raises:
            Crashed, Hung, Raised: the step failed.
            Stopped: the user asked for a stop.
        """
        self._number += 1
        line = json.dumps({"n": self._number, "step": step, "given": dict(given)}) + "\n"
        if self._process.poll() is not None:
            raise Crashed(self._ended(step))
        # In a thread: a line longer than the pipe waits for its reader, and the time limit holds for one that reads no more, too.
        threading.Thread(target=_write, args=(self._process.stdin, line.encode()), name="step", daemon=True).start()
        reply = self._awaited(step, seconds, failed)
        self._check_memory(step)
        self.cpu, self.refused = _cpu(reply, step, self.cpu), _refusals(reply, step, self.refused)
        if "error" in reply:
            raise Raised(redact(f"{step}: {reply.get('type')}: {reply['error']}")[:500])
        return reply.get("value")

    def _awaited(self, step: str, seconds: float, failed: Callable[[], bool]) -> dict[str, Any]:
        deadline, hopeless = time.monotonic() + seconds, None
        while True:
            stopping.check()
            try:
                line = self._lines.get(timeout=POLL)
            except queue.Empty:
                self._check_memory(step)
                # A child of a dead product may hold the other end of the pipe.
                line = None if self._process.poll() is not None and self._lines.empty() else b""
            if line is None:
                raise Crashed(self._ended(step))
            if line and (reply := self._reply(line)) is not None:
                return reply
            now = time.monotonic()
            if hopeless is None and failed():
                hopeless = now
            if now > deadline or (hopeless is not None and now > hopeless + GRACE):
                self.kill()
                raise Hung(f"{step}: no reply within {seconds:g} s; killed. {self._tail()}")

    def _check_memory(self, step: str) -> None:
        """Kill the process if it and its descendants exceed the memory limit."""
        if self._memory_mb and (held := processes.megabytes(self._process.pid)) > self._memory_mb:
            self.kill()
            raise Crashed(f"{step}: killed, with {held:.0f} MB beyond its memory limit of {self._memory_mb} MB")

    def _reply(self, line: bytes) -> dict[str, Any] | None:
        """The reply in a line, if it answers the last step; other lines are counted and ignored."""
        try:
            reply = received(line)
        except ValueError:
            reply = None
        if isinstance(reply, dict) and reply.get("n") == self._number:
            return reply
        self.garbage += 1
        return None

    def _ended(self, step: str) -> str:
        try:
            code = self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:  # it closed its end of the pipe, and is still running
            self.kill()
            return f"{step}: the product's process closed its output; killed. {self._tail()}"
        number = -code if code < 0 else code - 128  # a keeper reports the signal of its worker by its exit code
        known = number in signal.valid_signals()
        how = ENDS.get(code) or (f"signal {signal.Signals(number).name}" if known and number else f"exit code {code}")
        return f"{step}: the product's process ended ({how}). {self._tail()}"

    def _tail(self) -> str:
        """The last part of the product's stderr."""
        return redact(processes.last_words(self._said))[-300:].strip()

    def kill(self) -> None:
        """End the process and all processes that it has started, at once."""
        processes.end(self._process)

    def close(self, seconds: float = 10.0) -> None:
        """Let the product close its files, then end the process and delete its folder."""
        try:
            if self._process.poll() is None:
                self.ask("close", {}, seconds)
        except (WorkerError, stopping.Stopped):
            pass  # nothing is lost: the harness has everything that was read
        finally:
            self._said.close()
            self._forgotten()


def _cpu(reply: Mapping[str, Any], step: str, before: float) -> float:
    """The CPU seconds so far that a reply states."""
    cpu = reply.get("cpu", before)
    if isinstance(cpu, bool) or not isinstance(cpu, int | float) or not math.isfinite(cpu) or not 0 <= cpu < 1e9:
        raise MalformedReply(f"{step}: expected the CPU seconds of the process, found {str(cpu)[:60]!r}")
    return float(cpu)


def _refusals(reply: Mapping[str, Any], step: str, before: dict[str, int]) -> dict[str, int]:
    """The connections and programs refused so far that a reply states."""
    refused = reply.get("refused", before)
    if not isinstance(refused, dict):
        raise MalformedReply(f"{step}: expected refused connections and their number, found {str(refused)[:60]!r}")
    return {name: count(amount, f"{step}: refused") for name, amount in refused.items()}


def count(value: Any, what: str) -> int:
    """A count that a product states.

    Raises:
        MalformedReply: it is not a whole number from 0 to a billion.
    """
    whole = (
        not isinstance(value, bool) and isinstance(value, int | float) and 0 <= value <= MOST and value == int(value)
    )
    if not whole:
        raise MalformedReply(f"{what}: expected a whole number from 0 to {MOST}, found {str(value)[:60]!r}")
    return int(value)


def _write(stream: IO[bytes], line: bytes) -> None:
    with suppress(OSError, ValueError):  # its reader is gone, or the stream closed: whoever awaits the reply learns it
        stream.write(line)
        stream.flush()


def _read(stream: IO[bytes], lines: queue.Queue[bytes | None]) -> None:
    while line := stream.readline(LONGEST):
        lines.put(line)
    stream.close()
    lines.put(None)


def _forget(process: subprocess.Popen[bytes], held: Held, stops: list[Callable[[], None]]) -> None:
    """End a process, stop serving in its network, and delete its folder."""
    processes.end(process)
    for stop in stops:
        stop()
    with suppress(OSError):  # the reader of the pipe is gone
        if process.stdin is not None:
            process.stdin.close()
    processes.let_go(held)


def _environment(scratch: Path) -> dict[str, str]:
    """The environment variables of a product: no variable that holds a key, its own home, one thread, a fixed hash seed."""
    home = str(scratch / "home")
    own = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
    folders = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"), home)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    offline = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "NO_PROXY": "*", "PYTHONNOUSERSITE": "1"}
    return {**own, **folders, **threads, **offline, "TMPDIR": str(scratch), "TZ": "UTC", "PYTHONHASHSEED": "0"}


@dataclass(frozen=True)
class Limits(Settings):
    """Resources that a worker may take."""

    open_seconds: float = 300.0
    """Time limit of opening the product."""
    step_seconds: float = 300.0
    """Time limit of a step."""
    memory_mb: int = 0
    """Memory limit of the process; 0 = none."""
    restarts: int = 3
    """Maximum number of restarts after a worker died; a new worker gets the same history again, with replies from the cache."""


class ProductSession:
    """Passes steps to a worker. A new worker is started for the first step, and after a worker has died.

    Steps are taken one at a time, also if they come from different threads.

    Args:
        opening: the values that the product is built with, in addition to the gateway's address and models.
    """

    def __init__(
        self, gateway: Gateway, account: Account, place: Place, opening: Mapping[str, Any], limits: Limits
    ) -> None:
        self._gateway, self._account, self._place = gateway, account, place
        self._opening, self._limits = dict(opening), limits
        self._process: WorkerProcess | None = None
        self._history: list[tuple[str, dict[str, Any]]] = []
        self._closed = False
        self._token = gateway.new_token(account.client)
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        """Restarts, crashes, hangs, errors and garbage lines of all workers so far."""
        self.refused: Counter[str] = Counter()
        self.abilities: dict[str, Any] = {}

    @property
    def pid(self) -> int:
        """Process id of the worker; 0 if none is running."""
        return 0 if self._process is None else self._process.pid

    def build(self, step: str, given: dict[str, Any]) -> Any:
        """Take a step that changes the memory.

        Raises:
            WorkerError: the step failed.
            ModelError: a model call failed for good, even if the product ignored it.
        """
        with self._lock:
            value = self._step(self._living(), step, given, "build")
            self._history.append((step, given))
        return value

    def read(self, step: str, given: dict[str, Any], scope: str) -> Any:
        """Take a step that changes nothing. Raises as `build`."""
        with self._lock:
            return self._step(self._living(), step, given, scope)

    def close(self) -> None:
        """End the worker for good."""
        with self._lock:
            self._closed = True
            self._end()
            self._gateway.dismiss(self._token)

    def _living(self) -> WorkerProcess:
        """The worker, started if need be, with the history written so far."""
        if self._process is not None:
            return self._process
        if self._closed:
            raise WorkerError(f"{self._place.name} is closed")
        if self.counts["starts"] > self._limits.restarts:
            raise WorkerError(f"{self._place.name} died {self.counts['starts']} times; not started again")
        if "dimension" not in self._opening:
            models = {"model": self._gateway.upstream.model, "embedder": "embedder"}
            self._opening |= {**models, "dimension": self._gateway.dimension()}
        again = self.counts["starts"] > 0
        self.counts["starts"] += 1
        if again:
            meter.note("released.restart")
        with metering() as ledger:  # the cost of a history was charged when it was written first
            self._process = process = self._started()
            self._open(process)
            for step, given in self._history:
                self._step(process, step, given, "build")
        if not again:
            self.counts["calls_at_opening"] = sum(ledger.calls.values())
        return process

    def _started(self) -> WorkerProcess:
        """A new worker."""
        if not self._account.base_url:
            self._gateway.open(self._token, self._account)
        port, limit = urlsplit(self._account.base_url).port or 0, self._limits.memory_mb
        try:
            return WorkerProcess(self._place.python, self._place.adapter, port, self._gateway.also_on, limit)
        except WorkerError as error:
            self.counts[type(error).__name__.lower()] += 1
            raise

    def _open(self, process: WorkerProcess) -> None:
        address = urlsplit(self._account.base_url)
        opening = {
            **self._opening,
            "base_url": self._account.base_url,
            "host": address.hostname,
            "port": address.port,
            "key": "gateway",
            "scratch": str(process.scratch),
            "memory_mb": self._limits.memory_mb,
        }
        abilities = self._step(process, "open", opening, "build", self._limits.open_seconds, afresh=True)
        self.abilities = {**dict(abilities or {}), "sandbox": process.sandbox}

    def _step(
        self,
        process: WorkerProcess,
        step: str,
        given: dict[str, Any],
        scope: str,
        seconds: float | None = None,
        *,
        afresh: bool = False,
    ) -> Any:
        account, before, garbage = self._account, process.cpu, process.garbage
        with account.credit(scope, afresh=afresh):
            try:
                value = process.ask(step, given, seconds or self._limits.step_seconds, lambda: bool(account.failures))
            except WorkerError as error:
                self.counts[type(error).__name__.lower()] += 1
                if isinstance(error, Crashed | Hung):
                    self._end()
                self._raise_failures(step, error)
                raise
            finally:
                if (ledger := meter.current()) is not None:
                    ledger.add_worker_cpu(max(0.0, process.cpu - before))
                self.counts["garbage"] += process.garbage - garbage
                self.refused = Counter(process.refused)
            self._raise_failures(step, None)
        return value

    def _raise_failures(self, step: str, cause: Exception | None) -> None:
        """Raise the failure of a model call of this step. After a write that went on without the reply, the worker is ended.

        Raises:
            ModelError: a call failed; an `EndOfRun` is raised before other errors.
        """
        failures = list(self._account.failures)
        if not failures:
            return
        if step != "read":
            self._end()
        failure: ModelError = next((each for each in failures if isinstance(each, EndOfRun)), failures[0])
        raise failure from cause

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.close()
