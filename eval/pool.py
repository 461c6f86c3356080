"""Threads: a pool that takes the most urgent work first, and threads that each do one thing."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from memsys.llm.futures import settle

Work = tuple[float, int, Callable[[], None]]
"""Urgency (negated), number of its arrival, and what to call."""


class UrgentPool:
    """Threads that start when there is work for them; of waiting work the most urgent is done first, then the oldest.

    Args:
        threads: their greatest number.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._most, self._name = threads, name
        self._work: list[Work] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._idle = 0
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
            if self._idle >= len(self._work):
                self._changed.notify()
            elif len(self._threads) < self._most:
                thread = threading.Thread(target=self._work_on, name=f"{self._name}-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def close(self) -> None:
        """Do the work that is left, then end the threads."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work_on(self) -> None:
        while True:
            with self._changed:
                while not self._work:
                    if self._closed:
                        return
                    self._idle += 1
                    self._changed.wait()
                    self._idle -= 1
                _, _, call = heapq.heappop(self._work)
            call()


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
