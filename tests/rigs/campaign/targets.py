"""Commands that are killed, or run with a disturbed disk or clock: forked from a warm process, or started from the command line.

A forked command is a real process: it runs the verb's `main` inside `guarded`, receives real signals and ends as Python ends.
The fork skips the start of the interpreter, the imports and Hydra's parsing of the command line, which take five seconds of CPU time, and
it shares the hash seed of the process that it is forked from. `command` starts the real command line, for some of the kills.

The process that forks has no threads: it is itself forked from the runner of the campaign (`tests.rigs.campaign.forks`) together with each
task, and takes requests over a socket, one at a time.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import IO, TYPE_CHECKING, Any

from tests.rigs.campaign.disturbed import disturb
from tests.rigs.campaign.trial import PATIENCE, ROOT, SIGNALS, Ended, environment

if TYPE_CHECKING:
    from scripts.settings.schema import Single

NUMBER = struct.Struct("!i")
"""Format in which the forking process sends a child's process id, then its exit code."""
MOST = 1 << 16
"""Maximum number of bytes of a request."""
REQUEST_FDS = 2
"""Standard output and standard error of the child."""


class Target(ABC):
    """A running command."""

    def __init__(self, out: IO[bytes], err: IO[bytes]) -> None:
        self._read: dict[str, bytes] = {}
        self._readers = [
            threading.Thread(target=self._gather, args=pair, daemon=True) for pair in enumerate((out, err))
        ]
        for reader in self._readers:
            reader.start()

    def _gather(self, place: int, stream: IO[bytes]) -> None:
        with stream:
            self._read[str(place)] = stream.read()

    @abstractmethod
    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the command."""

    @abstractmethod
    def poll(self, seconds: float = 0.0) -> int | None:
        """The exit code once the command has ended, waiting up to `seconds` for it; minus the number of the signal that killed it."""

    def ended(self, seconds: float = PATIENCE) -> Ended:
        """Wait for the command and return its end.

        Raises:
            TimeoutError: it did not end within this many seconds, and was killed.
        """
        if (code := self.poll(seconds)) is None:
            raise self.hung(f"not over after {seconds:.0f} s")
        for reader in self._readers:
            reader.join(PATIENCE)
        out, err = (self._read[place].decode(errors="replace") for place in ("0", "1"))
        return Ended(code, out, err)

    def hung(self, why: str) -> TimeoutError:
        """Kill a command that runs for too long; returns the error to raise."""
        self.send_signal(signal.SIGKILL)
        self.poll(PATIENCE)
        return TimeoutError(f"hangs: {why}")


class Command(Target):
    """The real command line, in an interpreter of its own."""

    def __init__(self, overrides: Sequence[str], verb: str = "run") -> None:
        line = [sys.executable, "-m", "scripts", verb, *overrides]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(line, cwd=ROOT, env=environment(), stdout=pipe, stderr=pipe)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        super().__init__(self._process.stdout, self._process.stderr)

    def send_signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def poll(self, seconds: float = 0.0) -> int | None:
        try:
            return self._process.wait(seconds) if seconds else self._process.poll()
        except subprocess.TimeoutExpired:
            return None


class Forked(Target):
    """A child of this task's forking process."""

    def __init__(self, line: socket.socket, request: Mapping[str, Any]) -> None:
        (out, out_end), (err, err_end) = os.pipe(), os.pipe()
        socket.send_fds(line, [json.dumps(request).encode()], [out_end, err_end])
        os.close(out_end)
        os.close(err_end)
        self._line, self._code = line, None
        self._pid = _number(line)
        super().__init__(os.fdopen(out, "rb"), os.fdopen(err, "rb"))

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self._pid, number)  # its process id is not reused before the next request

    _code: int | None

    def poll(self, seconds: float = 0.0) -> int | None:
        if self._code is None and select.select([self._line], [], [], seconds)[0]:
            self._code = _number(self._line)
        return self._code


def _number(line: socket.socket) -> int:
    raw = line.recv(NUMBER.size, socket.MSG_WAITALL)
    if len(raw) < NUMBER.size:
        raise RuntimeError("the process that forks commands has ended")
    (value,) = NUMBER.unpack(raw)
    return int(value)


class Forking:
    """This task's socket to the forking process."""

    line: socket.socket | None = None


def forked(
    overrides: Sequence[str], *, results: os.PathLike[str], disturbance: tuple[str, int] | None = None
) -> Target:
    """`memsys-bench run` in a forked process, with other `results` than its settings say; `disturbance`: see `disturbed.disturb`.

    Raises:
        RuntimeError: this process is no task of the campaign.
    """
    if Forking.line is None:
        raise RuntimeError("commands are forked for tasks of the campaign only")
    request = {"overrides": list(overrides), "results": os.fspath(results), "disturbance": disturbance}
    return Forked(Forking.line, request)


def serve(line: socket.socket) -> Callable[[], int]:
    """Fork a child for each request until the other end is closed; returns this process's next step: in a child, the command.

    The command is returned and not called, so that no frame of the campaign is on its stack.
    """
    ended = 0
    while True:
        message, descriptors, _, _ = socket.recv_fds(line, MOST, REQUEST_FDS)
        if ended:
            os.waitpid(ended, 0)  # only now: the other end may still have signalled it before
        if not message:
            return lambda: 0
        request = json.loads(message)
        cfg = _composed(tuple(request["overrides"]))
        if not (pid := os.fork()):
            line.close()
            return partial(_command, cfg, request, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        line.sendall(NUMBER.pack(pid))
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert end is not None
        line.sendall(NUMBER.pack(end.si_status if end.si_code == os.CLD_EXITED else -end.si_status))
        ended = pid


@cache
def _composed(overrides: tuple[str, ...]) -> Single:
    from scripts.setup.launch import composed

    return composed("config", overrides)


def _command(cfg: Single, request: Mapping[str, Any], descriptors: Sequence[int]) -> int:
    """Run the part of `python -m scripts run` after its start-up."""
    from scripts.commands import run
    from scripts.setup.exits import guarded

    for descriptor, standard in zip(descriptors, (1, 2), strict=True):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    as_started()
    if request["disturbance"] is not None:
        way, amount = request["disturbance"]
        disturb(way, amount, request["results"])
    return guarded(lambda: run.main(cfg.changed(results=request["results"])))


def as_started() -> None:
    """Set signals, random numbers and environment as in an interpreter that has just started in the foreground."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in SIGNALS:
        if number != signal.SIGINT:
            signal.signal(number, signal.SIG_DFL)
    random.seed()
    os.environ.update(environment())


def killed(target: Target, is_time: Callable[[], bool], number: signal.Signals, pause: float) -> Ended:
    """Send a command a signal `pause` seconds after its condition holds, unless it ends before.

    Raises:
        TimeoutError: the condition never holds, or the command runs for too long after the signal.
    """
    deadline = time.monotonic() + PATIENCE
    while target.poll() is None and not is_time():
        time.sleep(0.01)
        if time.monotonic() > deadline:
            raise target.hung(f"its time has not come after {PATIENCE:.0f} s")
    if target.poll(pause) is None:
        target.send_signal(number)
    return target.ended()
