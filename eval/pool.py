"""Threads: a pool that takes the most urgent work first, and threads that each do one thing."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from memsys.llm.futures import settle, while_waiting

Work = tuple[float, int, Callable[[], None]]
"""Urgency (negated), number of its arrival, and what to call."""


COMPUTING = 2
"""Threads of a pool that compute at once. More would only take the interpreter from each other and from the builds."""


class UrgentPool:
    """Threads that start when there is work for them; of waiting work the most urgent is done first, then the oldest.

    Only `computing` of them take new work at a time, and a thread that waits for a call (`memsys.llm.futures.waiting`) does not count.
    So many reads can wait for their models at once, while those that compute leave the interpreter to the builds.

    Args:
        threads: their greatest number.
        computing: those that compute at once. A thread that has waited goes on at once, whatever this says.
    """

    def __init__(self, threads: int, name: str, computing: int = COMPUTING) -> None:
        self._most, self._name, self._limit = threads, name, computing
        self._work: list[Work] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._idle = self._computing = 0
        self._closed = False

    def __enter__(self) -> UrgentPool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def submit(self, urgency: float, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Have a thread call a function; the future gets its value or its exception."""
        future: Future[Any] = Future()
        with self._changed:
            heapq.heappush(self._work, (-urgency, next(self._numbers), lambda: _call(future, function, arguments)))
            self._wake()
        return future

    def close(self) -> None:
        """Do the work that is left, then end the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    @property
    def _ready(self) -> bool:
        return bool(self._work) and self._computing < self._limit

    def _wake(self) -> None:
        """Have an idle or a new thread take the next work, if it may be taken; the lock is held."""
        if not self._ready:
            return
        if self._idle:
            self._changed.notify()
        elif len(self._threads) < self._most:
            thread = threading.Thread(target=self._work_on, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work_on(self) -> None:
        while (call := self._next()) is not None:
            with while_waiting(self._pause, self._resume):
                call()
            self._count(-1)

    def _next(self) -> Callable[[], None] | None:
        """The next work, once it may be taken; None when the pool is closed and all is done."""
        with self._changed:
            while not self._ready:
                if self._closed and not self._work:
                    self._changed.notify_all()  # those that waited for their turn
                    return None
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            _, _, call = heapq.heappop(self._work)
            self._computing += 1
            self._wake()  # a notification that came twice reached one thread
            return call

    def _pause(self) -> None:
        with self._changed:
            self._computing -= 1
            self._wake()

    def _resume(self) -> None:
        self._count(1)

    def _count(self, change: int) -> None:
        with self._changed:
            self._computing += change


class Threads:
    """Threads that each do one thing and end."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._alive: set[threading.Thread] = set()
        self._lock = threading.Lock()

    def start(self, function: Callable[[Any], None], argument: Any) -> None:
        """Call a function in a new thread."""

        def work() -> None:
            try:
                function(argument)
            finally:
                with self._lock:
                    self._alive.discard(threading.current_thread())

        thread = threading.Thread(target=work, name=self._name, daemon=True)
        with self._lock:
            self._alive.add(thread)
        thread.start()

    def join(self) -> None:
        """Wait until all have ended."""
        while True:
            with self._lock:
                thread = next(iter(self._alive), None)
            if thread is None:
                return
            thread.join()


def _call(future: Future[Any], function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    settle(future, lambda: function(*arguments))
