"""A stop that the user asks for: by Ctrl-C, SIGTERM or SIGHUP.

The first signal sends no further call: the main thread leaves its work with `KeyboardInterrupt`, calls that were not sent yet fail
with `Stopped`, those under way are awaited for a few seconds so that what was paid for reaches the cache. The second quits at once.
Signals act while `heeded()` is open, which every entry point does (`scripts.experiment.exits.guarded`).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol
from weakref import WeakSet

from memsys.llm.protocol import EndOfRun

GRACE = 5.0
"""Seconds for which calls under way are awaited."""
MARGIN = 5.0
"""Seconds after that for threads to end by themselves."""
SAME_PRESS = 0.5
"""Seconds within which a further signal is the same one come twice: from the terminal, and passed on by the parent process."""
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
SAID = "stopping; run the same command to resume; press again to quit now"


class Stopped(EndOfRun):
    """The user asked for a stop: the call was not sent, or its reply was not awaited."""

    def __init__(self, message: str = "stopped before the call was sent") -> None:
        super().__init__(message)


class Sender(Protocol):
    """Something that has calls under way."""

    def refuse(self) -> None:
        """Fail what was not sent yet."""

    def finish(self, seconds: float) -> int:
        """Wait for what is under way, so long at most, and give up the rest; returns how many calls that were."""


class Keeper(Protocol):
    """Something that writes down what came back."""

    def flush(self, seconds: float) -> None:
        """Wait until all that has arrived is written, so long at most."""


senders: WeakSet[Any] = WeakSet()
"""`Sender`s of this process."""
keepers: WeakSet[Any] = WeakSet()
"""`Keeper`s of this process."""


class _Stop:
    """What was asked for in this process."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.at = 0.0
        self.depth = 0
        self.installed = False
        self.quiet = False
        self.given_up = 0
        self.asked, self.ended = threading.Event(), threading.Event()


_stop = _Stop()


def requested() -> bool:
    """Whether a stop was asked for."""
    return _stop.asked.is_set()


def check() -> None:
    """Go no further once a stop was asked for.

    Raises:
        Stopped: it was.
    """
    if _stop.asked.is_set():
        raise Stopped()


def exit_code() -> int:
    """128 + the signal, as shells count."""
    return 128 + (_stop.signal or signal.SIGINT)


def request(number: int = signal.SIGINT) -> None:
    """Ask for a stop, as the first signal does: send nothing more, wait a little, and end the process if it does not end by itself."""
    if _stop.signal is None:
        _stop.signal, _stop.at = number, time.monotonic()
        _stop.asked.set()
        threading.Thread(target=_wind_down, name="stopping", daemon=True).start()


def await_end() -> int:
    """Wait until what was under way is in, or given up; returns how many calls were given up."""
    _stop.ended.wait(GRACE + MARGIN)
    return _stop.given_up


@contextmanager
def heeded() -> Iterator[None]:
    """Inside, the three signals ask for a stop; a signal that the process was started to ignore (nohup) stays ignored."""
    outermost = not _stop.installed and threading.current_thread() is threading.main_thread()
    before = _install() if outermost else {}
    _stop.depth += 1
    try:
        yield
    finally:
        _stop.depth -= 1
        if outermost:
            _stop.installed = False
            for number, handler in before.items():
                signal.signal(number, handler)


def heed_in_child() -> None:
    """For a process of a pool: heed the signals between tasks, too, say nothing, and stop when the parent is gone."""
    _install()
    _stop.quiet = True
    threading.Thread(target=_watch_parent, name="parent", daemon=True).start()


def forget() -> None:
    """Take a stop back: for tests and notebooks, where the process goes on after it."""
    global _stop
    installed, depth = _stop.installed, _stop.depth
    _stop = _Stop()
    _stop.installed, _stop.depth = installed, depth


def _install() -> dict[int, Any]:
    _stop.installed = True
    heard = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    return {number: signal.signal(number, _asked) for number in heard}


def _asked(number: int, frame: Any) -> None:
    if _stop.signal is None:
        _say(SAID)
        request(number)
        if _stop.depth:
            raise KeyboardInterrupt
    elif time.monotonic() - _stop.at > SAME_PRESS:
        _say("stopped at once")
        _quit(128 + number)


def _say(text: str) -> None:
    # Not through sys.stderr: the signal may have come in the middle of a write to it.
    if not _stop.quiet:
        with suppress(OSError):  # the terminal may be gone
            os.write(2, f"{os.linesep if os.isatty(2) else ''}{text}{os.linesep}".encode())


def _wind_down() -> None:
    """Runs beside the work: ends the process if the work does not."""
    mine, deadline = _stop, _stop.at + GRACE
    for child in _children():
        with suppress(OSError):
            os.kill(child.pid, mine.signal or signal.SIGINT)
    with suppress(Exception):
        for sender in list(senders):
            sender.refuse()
        for sender in list(senders):
            mine.given_up += sender.finish(max(0.0, deadline - time.monotonic()))
        for keeper in list(keepers):
            keeper.flush(MARGIN / 2)
    mine.ended.set()
    time.sleep(max(0.0, deadline - time.monotonic()) + MARGIN)
    if mine is _stop:
        _quit(exit_code())


def _quit(code: int) -> None:
    """End this process and those of its pools now; what is in the files stays whole, as after any kill."""
    for child in _children():
        child.kill()
    os._exit(code)


def _children() -> list[Any]:
    pools = sys.modules.get("multiprocessing")
    return [] if pools is None else list(pools.active_children())


def _watch_parent() -> None:
    from multiprocessing import connection, parent_process

    if (parent := parent_process()) is not None:
        connection.wait([parent.sentinel])
        request(signal.SIGTERM)
