"""A pool of threads that takes the most urgent work first."""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from memsys.llm.futures import settle, while_waiting
from memsys.llm.limits import BUILDS

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
        spacing: seconds between the starts of two pieces of work that no build waits for; asked before each.
    """

    def __init__(
        self, threads: int, name: str, computing: int = COMPUTING, spacing: Callable[[], float] = lambda: 0.0
    ) -> None:
        self._most, self._name, self._limit, self._spacing = threads, name, computing, spacing
        self._work: list[Work] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._idle = self._computing = 0
        self._began = -math.inf
        """When work that no build waits for was begun last."""
        self._timed = self._closed = False

    def __enter__(self) -> UrgentPool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def submit(self, urgency: float, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Have a thread call a function; the future gets its value or its exception."""
        future: Future[Any] = Future()
        with self._changed:
            work = -urgency, next(self._numbers), lambda: settle(future, lambda: function(*arguments))
            heapq.heappush(self._work, work)
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
    def _has_turn(self) -> bool:
        """Whether there is work and a turn for it, be it after a rest; the lock is held."""
        return bool(self._work) and self._computing < self._limit

    def _wake(self) -> None:
        """Have an idle or a new thread take the next work or wait for its time; the lock is held."""
        if not self._has_turn:
            return
        if self._idle:
            self._changed.notify()
        elif len(self._threads) < self._most:
            thread = threading.Thread(target=self._work_on, name=f"{self._name}-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work_on(self) -> None:
        while (call := self._next()) is not None:
            with while_waiting(partial(self._count, -1, wake=True), partial(self._count, 1)):
                call()
            self._count(-1)

    def _next(self) -> Callable[[], None] | None:
        """The next work, once it may be taken; None when the pool is closed and all is done."""
        with self._changed:
            while True:
                rest = None  # seconds until the next work may begin
                if self._has_turn:
                    waits = -self._work[0][0] < BUILDS
                    rest = self._began + self._spacing() - time.monotonic() if waits else 0.0
                    if rest <= 0.0:
                        break
                if self._closed and not self._work:
                    self._changed.notify_all()  # those that waited for their turn
                    return None
                # One of the threads looks at the work again after the rest.
                timed = rest is not None and not self._timed
                self._timed, self._idle = self._timed or timed, self._idle + 1
                self._changed.wait(rest if timed else None)
                self._timed, self._idle = self._timed and not timed, self._idle - 1
            urgency, _, call = heapq.heappop(self._work)
            if -urgency < BUILDS:
                self._began = time.monotonic()
            self._computing += 1
            self._wake()  # a notification that came twice reached one thread
            return call

    def _count(self, change: int, *, wake: bool = False) -> None:
        with self._changed:
            self._computing += change
            if wake:
                self._wake()
