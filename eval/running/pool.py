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

from memsys.llm.limits import BUILDS
from memsys.llm.protocol import settle, while_waiting

Work = tuple[float, int, Callable[[], None]]
"""Urgency (negated), number in the order of arrival, and function to call."""
COMPUTING = 2
"""Number of threads of a pool that compute at once. More would only compete for the interpreter with each other and with the builds."""


class UrgentPool:
    """Threads that are started when there is work for them; the most urgent waiting work is done first, then the oldest.

    Only `computing` of them take new work at a time, and a thread that waits for a call (`memsys.llm.protocol.waiting`) does not count.
    Therefore many reads can wait for their models at once, while few compute, which leaves the interpreter to the builds.

    Args:
        threads: maximum number of threads.
        computing: maximum number of threads that take new work. A thread that has waited for a call continues at once, whatever the limit.
        spacing: seconds between the starts of two pieces of work that no build waits for, given how many wait; asked before each.
    """

    def __init__(
        self, threads: int, name: str, computing: int = COMPUTING, spacing: Callable[[int], float] = lambda waiting: 0.0
    ) -> None:
        self._most, self._name, self._limit, self._spacing = threads, name, computing, spacing
        self._work: list[Work] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._idle = self._computing = 0
        self._began = -math.inf
        """Time of the last start of work that no build waits for."""
        self._timed = self._closed = False

    def submit(self, urgency: float, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Let a thread call a function; the future gets its value or its exception."""
        future: Future[Any] = Future()
        with self._changed:
            work = -urgency, next(self._numbers), lambda: settle(future, lambda: function(*arguments))
            heapq.heappush(self._work, work)
            self._wake()
        return future

    def close(self) -> None:
        """Do the remaining work, then end the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _wake(self) -> None:
        """Let an idle or a new thread take the next task or wait for its time; call with the lock held."""
        if not self._work or self._computing >= self._limit:
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
        """The next task, once it may be taken; None when the pool is closed and all work is done."""
        with self._changed:
            while True:
                rest = None  # seconds until the next work may begin
                if self._work and self._computing < self._limit:
                    waits = -self._work[0][0] < BUILDS
                    rest = self._began + self._spacing(len(self._work)) - time.monotonic() if waits else 0.0
                    if rest <= 0.0:
                        break
                if self._closed and not self._work:
                    self._changed.notify_all()  # the threads that waited for the pool to have room
                    return None
                # One of the threads checks the work again after the delay.
                timed = rest is not None and not self._timed
                self._timed, self._idle = self._timed or timed, self._idle + 1
                self._changed.wait(rest if timed else None)
                self._timed, self._idle = self._timed and not timed, self._idle - 1
            urgency, _, call = heapq.heappop(self._work)
            if -urgency < BUILDS:
                self._began = time.monotonic()
            self._computing += 1
            self._wake()  # two notifications reached the same thread
            return call

    def _count(self, change: int, *, wake: bool = False) -> None:
        with self._changed:
            self._computing += change
            if wake:
                self._wake()
