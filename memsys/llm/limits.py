"""The in-flight limit of an endpoint, the order in which its calls are sent, and the number of calls a minute.

`Adaptive` is the in-flight limit: it falls by a fifth when the server says that it is overloaded, or becomes slow without doing more,
and climbs again. `memsys.llm.rates` has the limits of requests and tokens a minute. `CallQueue` is the queue: the most urgent call that
both allow is sent first. Everything except `load` and `urgent` runs in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Protocol

from memsys.llm.rates import Rates

FALL, LEAST_BY_LATENCY = 0.8, 0.25
"""Factor of the limit at each fall, and the share of the given limit below which latency alone does not take it."""
SLOW, GAIN = 2.0, 1.1
"""Latency is rising when calls take this many times as long as the same kind at its best; more than `GAIN` x the throughput excuses it."""

BUILDS = 3.0
"""Lowest urgency of a call that belongs to a build. A call without an urgency, such as a released product's, counts as such a call."""

_urgency: ContextVar[float] = ContextVar("urgency", default=BUILDS)


@contextmanager
def urgent(urgency: float) -> Iterator[None]:
    """Give the calls that are submitted inside the `with` block this urgency: of waiting calls, the most urgent is sent first."""
    token = _urgency.set(urgency)
    try:
        yield
    finally:
        _urgency.reset(token)


def urgency() -> float:
    """The urgency of calls submitted in this context; `BUILDS` where none is given."""
    return _urgency.get()


class Gauge(Protocol):
    """The load that builds put on an endpoint."""

    def load(self) -> tuple[int, int]:
        """Number of builds' calls in flight or waiting, and the number of calls of any kind that may be in flight."""

    def watch(self, on_room: Callable[[], None]) -> None:
        """Call a function, in the event loop's thread, whenever the number of these calls changes and is below the limit."""

    def unwatch(self, on_room: Callable[[], None]) -> None:
        """Stop calling it."""


class Adaptive:
    """An in-flight limit that follows the capacity of the server: additive increase, multiplicative decrease.

    Args:
        most: where it starts, and its maximum.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.most, self._present, self._clock = most, float(most), clock
        self._fell = -1.0
        self._usual: dict[object, float] = {}
        self._best: dict[object, float] = {}
        self._window = _Window(clock())
        self._reference: float | None = None
        self._slow_windows = 0

    @property
    def present(self) -> int:
        """Calls that may be in flight now; at least one."""
        return max(1, int(self._present))

    def overloaded(self, sent: float) -> None:
        """Note that the server refused a call, sent at this time, as too many. Calls sent before the last fall do not count again."""
        if sent > self._fell:
            self._fall(1.0)

    def answered(self, kind: object, seconds: float, *, full: bool) -> None:
        """Note that a call was answered.

        Args:
            kind: calls of one kind take about as long as each other.
            full: the limit was reached when it ended.
        """
        usual = self._usual.get(kind, seconds)
        self._usual[kind] = usual = usual + 0.1 * (seconds - usual)
        best = self._best[kind] = min(self._best.get(kind, usual), usual)
        window = self._window
        window.calls += 1
        window.full += full
        window.slowness += seconds / max(best, 1e-6)
        if window.calls >= max(16, self.present):
            self._end_window(window)

    def _end_window(self, window: _Window) -> None:
        now = self._clock()
        slowness, throughput = window.slowness / window.calls, window.calls / max(now - window.began, 1e-6)
        self._window = _Window(now)
        for kind in self._best:  # a server that has become slower for good is compared with itself before long
            self._best[kind] *= 1.005
        if slowness <= 1.5:
            self._reference = max(throughput, 0.99 * (self._reference or 0.0))
        slow = slowness > SLOW and self._reference is not None and throughput <= GAIN * self._reference
        self._slow_windows = self._slow_windows + 1 if slow and window.full > window.calls / 2 else 0
        if self._slow_windows >= 2:
            self._slow_windows = 0
            self._fall(max(1.0, LEAST_BY_LATENCY * self.most))
        elif not slow and self._fell < window.began:
            self._present = min(float(self.most), self._present + max(1.0, self.most / 32))

    def _fall(self, least: float) -> None:
        self._present = max(min(least, self._present), FALL * self._present)
        self._fell = self._clock()


@dataclass(slots=True)
class _Window:
    """The calls since the limit was last considered."""

    began: float
    calls: int = 0
    full: int = 0
    slowness: float = 0.0


class CallQueue:
    """The calls in flight at one endpoint and the queue of those that wait; the most urgent goes first, then the oldest.

    Args:
        most: greatest number of calls in flight.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.adaptive, self.rates = Adaptive(most, clock), Rates(clock)
        self._clock = clock
        self._taken = self._queued = self._of_builds = 0
        self._queues: dict[str, list[tuple[float, int, int, asyncio.Future[None]]]] = {}
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._watchers: list[Callable[[], None]] = []

    def load(self) -> tuple[int, int]:
        """Calls of builds that have a place or wait for one, and the present limit. Any thread may ask.

        Answers and verdicts do not count: they can wait, and a build that begins later ends later.
        """
        return self._of_builds, self.adaptive.present

    def watch(self, on_room: Callable[[], None]) -> None:
        """Call a function whenever the number of the builds' calls changes and is below the limit."""
        self._watchers = [*self._watchers, on_room]

    def unwatch(self, on_room: Callable[[], None]) -> None:
        """Stop calling it."""
        self._watchers = [watcher for watcher in self._watchers if watcher != on_room]

    @property
    def full(self) -> bool:
        """Whether every place in flight is taken."""
        return self._taken >= self.adaptive.present

    async def take(self, model: str, tokens: int, urgency: float) -> None:
        """Wait until a call of this model may be sent, and take a place; `release` gives it back.

        Args:
            tokens: estimate of the call's tokens, prompt and reply; `rates.corrected` takes the actual number afterwards.
        """
        self._of_builds += urgency >= BUILDS
        if not self._queued and not self.full and self.rates.delay(model) <= 0.0:
            self._take(model, tokens)
            self._tell(urgency)
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (-urgency, next(self._numbers), tokens, turn)
        heapq.heappush(self._queues.setdefault(model, []), entry)
        self._queued += 1
        self._serve()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # cancelled after its place was taken
                self.release(urgency)
            else:
                self._queues[model].remove(entry)
                heapq.heapify(self._queues[model])
                self._queued -= 1
                self._of_builds -= urgency >= BUILDS
            raise

    def release(self, urgency: float) -> None:
        """Free a place that was taken with this urgency."""
        self._taken -= 1
        self._of_builds -= urgency >= BUILDS
        self._serve()
        self._tell(urgency)

    def _take(self, model: str, tokens: int) -> None:
        self._taken += 1
        self.rates.sent(model, tokens)

    def _serve(self) -> None:
        """Give free places to waiting calls, the most urgent first; a timer serves those that a rate holds back."""
        while self._queued and not self.full:
            delays = {model: self.rates.delay(model) for model, queue in self._queues.items() if queue}
            ready = [model for model, delay in delays.items() if delay <= 0.0]
            if not ready:
                self._serve_later(min(delays.values()))
                return
            model = min(ready, key=lambda name: self._queues[name][0][:2])
            _, _, tokens, turn = heapq.heappop(self._queues[model])
            self._queued -= 1
            self._take(model, tokens)
            turn.set_result(None)

    def _serve_later(self, delay: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay, self._serve)

    def _tell(self, urgency: float) -> None:
        if self._watchers and urgency >= BUILDS and self._of_builds < self.adaptive.present:
            for watcher in self._watchers:
                watcher()
