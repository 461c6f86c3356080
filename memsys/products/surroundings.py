"""The surroundings of a product, set up before it is imported: connections refused, the dialogue's clock, seeded ids.

Runs in the worker's process, with the standard library and, where it is installed, time-machine.
"""

from __future__ import annotations

import datetime
import importlib.util
import os
import random
import sys
import threading
import time
import uuid
from collections import Counter
from typing import Any

LOCAL = ("127.0.0.1", "localhost", "::1")
CHILDREN = (
    "subprocess.Popen",
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "pty.spawn",
)
"""Events of Python with which another program is started."""
PROGRAM = "program "
"""Begins the name of a refused program; others are addresses."""
MEMORY_EXCEEDED, PARENT_GONE = 86, 87
"""Exit codes of the worker."""


class Guard:
    """Refuses every connection but those to the gateway and to Unix sockets in the product's own folder, and programs that the adapter does
    not declare; counts the attempts.

    It sees what Python's own modules do, and keeps well-meant products from what they do by default, such as telemetry. Code in C or Rust,
    `ctypes`, and a product that wants to get around it are not seen: what they reach is what the sandbox (`memsys.products.sandbox`) shows.
    """

    def __init__(self, host: str, port: int, folder: str) -> None:
        self._host, self._port = host, port
        self._folder = os.path.join(os.path.realpath(folder), "")
        self.refused: Counter[str] = Counter()
        self.children = False
        """Whether other programs may be started."""

    def install(self) -> None:
        """Watch from now on; an audit hook cannot be taken away again."""
        sys.addaudithook(self._watch)

    def _watch(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
            self._check_address(arguments[1])
        elif event in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"):
            self._check_name(arguments[0])
        elif event == "socket.getnameinfo":
            self._check_name(_end_of(arguments[0])[0])
        elif event in CHILDREN and not self.children:
            what = arguments[0] if arguments and isinstance(arguments[0], str | bytes) else ""
            self._refuse(PROGRAM + (_exact(what) or event))

    def _check_address(self, address: Any) -> None:
        """Refuse every address but the gateway's and those below the folder; None is a socket that is connected already."""
        if address is not None and (end := _end_of(address)) != (self._host, self._port) and not self._own(address):
            self._refuse(f"{end[0]}:{end[1]}")

    def _own(self, address: Any) -> bool:
        """Whether an address is a Unix socket in the product's folder: that of a program which the product has started itself."""
        path = _exact(address) or ""
        return path != "" and "\0" not in path and os.path.realpath(path).startswith(self._folder)

    def _check_name(self, name: Any) -> None:
        if name is not None and (exact := _exact(name)) not in ("", self._host, *LOCAL):
            self._refuse(str(exact))

    def _refuse(self, what: str) -> None:
        self.refused[what[:200]] += 1
        raise PermissionError(f"refused: this product may reach the gateway alone, not {what[:200]}")


def _exact(name: Any) -> str | None:
    """The characters of a name, whatever a subclass says that it equals; None for what is no name."""
    if isinstance(name, str):
        return str.__str__(name)
    return bytes.decode(name, errors="replace") if isinstance(name, bytes) else None


def _end_of(address: Any) -> tuple[str | None, int | None]:
    """Host and port of an address as the system will read them; a Unix socket has no port."""
    if not isinstance(address, tuple):
        return f"unix socket {_exact(address)}", None
    host, port = (tuple.__getitem__(address, place) if tuple.__len__(address) > place else None for place in (0, 1))
    return _exact(host), int.__index__(port) if isinstance(port, int) else None


class Clock:
    """The time that the product sees: that of the unit or question at hand, and it moves on.

    With `time_machine` all clocks of Python that tell the date follow it; without, `time.time` alone does (`kind` tells which).
    """

    START = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC).timestamp()

    def __init__(self, *, follow: bool) -> None:
        self.kind = "wall"
        self._now, self._real, self._set_at = self.START, time.monotonic, time.monotonic()
        self._written, self._passing = self._now, False
        self._travel: Any = None
        if follow and importlib.util.find_spec("time_machine") is not None:
            self.kind = "time-machine"
            self._travelled(self._now)
        elif follow:
            self.kind = "time.time"
            time.time = self._told
            time.time_ns = lambda: int(self._told() * 1e9)

    def set(self, stamp: float | None, *, passing: bool = False) -> None:
        """Go to a time, never back before the last write; without one, stay. At least one millisecond passes with each step.

        Args:
            passing: for this step only: a question may be asked later than the units that are written after it.
        """
        if self.kind == "wall":
            return
        if not self._passing:
            self._written = self._now + (self._real() - self._set_at)
        self._written, self._passing = self._written + 0.001, passing
        self._now, self._set_at = max(self._written, stamp or 0.0), self._real()
        if self.kind == "time-machine":
            self._travelled(self._now)

    def _told(self) -> float:
        return self._now + (self._real() - self._set_at)

    def _travelled(self, stamp: float) -> None:
        import time_machine

        if self._travel is not None:
            self._travel.stop()
        self._travel = time_machine.travel(stamp, tick=True)
        self._travel.start()


def seed_ids(seed: int) -> None:
    """Draw the ids of `uuid.uuid1` and `uuid.uuid4` from a generator of their own, and seed `random` apart from it."""
    ids, lock = random.Random(seed), threading.Lock()

    def drawn(*_: Any, **__: Any) -> uuid.UUID:
        with lock:
            return uuid.UUID(int=ids.getrandbits(128), version=4)

    uuid.uuid4 = drawn
    uuid.uuid1 = drawn
    random.seed(seed + 1)


def seed_numpy(seed: int) -> None:
    """Seed NumPy's global generator where the product has loaded it."""
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)


def keep_watch(parent: int, most_megabytes: int) -> None:
    """End the process when its parent is gone or it holds too much memory; looked at five times a second."""
    sleep = time.sleep

    def watch() -> None:
        while True:
            if os.getppid() != parent:
                os._exit(PARENT_GONE)
            if most_megabytes and _megabytes() > most_megabytes:
                os._exit(MEMORY_EXCEEDED)
            sleep(0.2)

    threading.Thread(target=watch, name="watch", daemon=True).start()


def _megabytes() -> float:
    """Memory that the process holds; where there is no /proc, what it has held at most."""
    try:
        with open("/proc/self/statm", encoding="ascii") as counts:
            return int(counts.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        pass
    # Not on Linux: there the greatest size of a new process includes that of the process that started it.
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most / (2**20 if sys.platform == "darwin" else 2**10)
