"""Stopping on request: Ctrl-C, SIGTERM or SIGHUP.

After the first signal no further call is sent: the main thread gets an `Interrupt`, and calls that were not sent yet fail with
`Stopped`. Calls in flight get a few seconds to finish, so that answers already paid for reach the cache. The second signal ends the
process at once. The signals are handled inside `handling_signals()`, which every entry point enters (`scripts.setup.exits.guarded`).
"""

from __future__ import annotations

import os
import signal
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from traceback import walk_stack
from typing import Any
from weakref import WeakSet

from memsys.llm.protocol import EndOfRun

GRACE = 5.0
"""Seconds to wait for the calls in flight."""
MARGIN = 5.0
"""Further seconds for threads to end by themselves."""
SAME_PRESS = 0.5
"""Seconds within which a second signal counts as the first: a child process gets it from the terminal and from its parent."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
end_process = os._exit
"""`os._exit` itself: memories get another (`eval.running.run`)."""
SAID = "stopping; run the same command to resume; press again to quit now"


class Stopped(EndOfRun):
    """The user requested a stop: the call was not sent, or its reply was abandoned."""

    def __init__(self, message: str = "stopped before the call was sent") -> None:
        super().__init__(message)


class Interrupt(KeyboardInterrupt):
    """The first signal, raised in the main thread.

    CPython ends a process by SIGINT when a plain `KeyboardInterrupt` passed through `exec` of a string, even if it was caught later.
    Dataclasses are made by such an `exec`, so a signal during an import would change the exit code. A subclass does not do this.
    """


senders: WeakSet[Any] = WeakSet()
"""What sends calls in this process: `refuse()` fails those that were not sent yet, and `finish(seconds)` waits that long for those in
flight, cancels the rest and returns their number."""
keepers: WeakSet[Any] = WeakSet()
"""What writes answers to disk in this process: `flush(seconds)` waits that long until all that have arrived are written; `close()` writes
them and closes the file, and does nothing the second time."""
steps: dict[int, str] = {}
"""What each thread does whose code may hang, by its id; the message that the process is ended names it (`memsys.llm.meter.operation`)."""


@dataclass(slots=True)
class _Stop:
    """The state of a requested stop in this process."""

    signal: int | None = None
    at: float = 0.0
    depth: int = 0
    installed: bool = False
    quiet: bool = False
    lost: bool = False
    given_up: int = 0
    asked: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)


_stop = _Stop()


def requested() -> bool:
    """Whether a stop was requested."""
    return _stop.asked.is_set()


def raised_by_code() -> bool:
    """Whether a caught `KeyboardInterrupt` came from code and not from a signal: a signal that this module handles requests a stop."""
    return _stop.installed and not requested()


def check() -> None:
    """Raise if a stop was requested.

    Raises:
        Stopped: a stop was requested.
    """
    if _stop.asked.is_set():
        raise Stopped()


def exit_code() -> int:
    """The exit code of a stopped process: 128 + the signal's number, as in shells."""
    return 128 + (_stop.signal or signal.SIGINT)


def request(number: int = signal.SIGINT) -> None:
    """Request a stop, as the first signal does: send no further call, wait, and end the process if it does not end by itself."""
    if _stop.signal is None:
        _stop.signal, _stop.at = number, time.monotonic()
        _stop.asked.set()
        threading.Thread(target=_wind_down, name="stopping", daemon=True).start()


def wind_down() -> int:
    """End the calls in flight after an error as after a signal, so that answers already paid for are kept.

    The process goes on and ends by itself; further calls fail with `Stopped` until `forget`. Returns the number of cancelled calls.
    """
    if requested():
        return await_end()
    _stop.at = time.monotonic()
    _stop.asked.set()
    _end_calls(_stop)
    return _stop.given_up


def wound_down() -> bool:
    """Whether an error, and no signal, has ended the calls of this process."""
    return _stop.asked.is_set() and _stop.signal is None


def await_end() -> int:
    """Wait until the calls in flight have ended or were cancelled; returns the number of cancelled calls."""
    _stop.ended.wait(GRACE + MARGIN)
    return _stop.given_up


@contextmanager
def handling_signals() -> Iterator[None]:
    """Handle the three signals inside the `with` block. A signal that the process was started to ignore (nohup) stays ignored."""
    outermost = not _stop.installed and threading.current_thread() is threading.main_thread()
    before = _install() if outermost else {}
    _stop.depth += 1
    try:
        yield
    finally:
        _stop.depth -= 1
        if outermost:
            _stop.installed = False
            sys.unraisablehook = sys.__unraisablehook__
            for number, handler in before.items():
                signal.signal(number, handler)


def handle_signals_in_child() -> None:
    """Set up a process of a pool: handle the signals also between tasks, print nothing, and stop when the parent process ends."""
    _install()
    _stop.quiet = True
    threading.Thread(target=_watch_parent, name="parent", daemon=True).start()


def forget() -> None:
    """Forget a requested stop: for tests and notebooks, where the process continues after it."""
    global _stop
    _stop = _Stop(installed=_stop.installed, depth=_stop.depth)


def _install() -> dict[int, Any]:
    _stop.installed = True
    sys.unraisablehook = _on_unraisable
    heard = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    return {number: signal.signal(number, _on_signal) for number in heard}


def _on_signal(number: int, frame: Any) -> None:
    if _stop.signal is None:
        _print(SAID)
        request(number)
        if _stop.depth:
            raise Interrupt
    elif _stop.lost:
        _stop.lost = False
        raise Interrupt
    elif time.monotonic() - _stop.at > SAME_PRESS:
        _print("stopped at once")
        _quit(128 + number)


def _on_unraisable(lost: Any) -> None:
    """Send the signal again where Python dropped its `Interrupt`: it came in a callback or a `__del__`, from which nothing is raised."""
    if lost.exc_type is not Interrupt:
        sys.__unraisablehook__(lost)
    elif _stop.depth:
        _stop.lost = True
        # From another thread and a little later: raised in here, it would be dropped once more.
        threading.Timer(0.02, os.kill, (os.getpid(), _stop.signal or signal.SIGINT)).start()


def _print(text: str) -> None:
    # Not through sys.stderr: the signal may have interrupted a write to it.
    if not _stop.quiet:
        with suppress(OSError):  # the terminal may be gone
            os.write(2, f"{os.linesep if os.isatty(2) else ''}{text}{os.linesep}".encode())


def _wind_down() -> None:
    """Finish the calls, then end the process if it has not ended by itself; runs in a thread of its own."""
    stop = _stop
    _end_calls(stop)
    time.sleep(max(0.0, stop.at + GRACE - time.monotonic()) + MARGIN)
    if stop is _stop:  # not so after `forget`
        _print(f"a step did not end by itself and was ended{where()}; run the same command to resume")
        _quit(exit_code())


def where(case: str = "") -> str:
    """The steps that have not ended, each with its line of code, such as ` (read q1 of mine-012345/c1: mine.py, line 16, in read)`.

    Args:
        case: `/` and the id of a case: only its steps, and those of no case, such as a rehearsal.
    """
    library = sysconfig.get_path("stdlib")
    named = {thread: name for thread, name in dict(steps).items() if name.endswith(case) or "/" not in name}
    frames, places = sys._current_frames(), list[str]()
    for thread in named.keys() & frames.keys():
        # The innermost line that is none of Python's own.
        for frame, line in walk_stack(frames[thread]):
            code = frame.f_code
            if not code.co_filename.startswith((library, "<")):
                places.append(f"{named[thread]}: {os.path.basename(code.co_filename)}, line {line}, in {code.co_name}")
                break
    return f" ({'; '.join(sorted(places)[:3])})" if places else ""


def _end_calls(stop: _Stop) -> None:
    deadline = stop.at + GRACE
    for child in _children():
        with suppress(OSError):
            os.kill(child.pid, stop.signal or signal.SIGINT)
    with suppress(Exception):
        for sender in list(senders):
            sender.refuse()
        for sender in list(senders):
            stop.given_up += sender.finish(max(0.0, deadline - time.monotonic()))
        for keeper in list(keepers):
            keeper.flush(MARGIN / 2)
    stop.ended.set()


def _quit(code: int) -> None:
    """End this process and the processes of its pools at once. Files stay readable, as after any kill."""
    for child in _children():
        child.kill()
    end_process(code)


def _children() -> list[Any]:
    pools = sys.modules.get("multiprocessing")
    return [] if pools is None else list(pools.active_children())


def _watch_parent() -> None:
    from multiprocessing import connection, parent_process

    if (parent := parent_process()) is not None:
        connection.wait([parent.sentinel])
        request(signal.SIGTERM)
