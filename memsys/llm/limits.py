"""The in-flight limit of an endpoint, the order in which its calls are sent, and the number of calls a minute.

`Adaptive` is the in-flight limit: it falls by a fifth when the server says that it is overloaded, or becomes slow without doing more,
and climbs again. `Rates` are the limits of requests and tokens a minute, from the settings and from the server's headers: a rate spreads
calls evenly, and tokens are estimated before a call and corrected after it. `CallQueue` is the queue: the most urgent call that both
allow is sent first. Everything except `load`, `saved` and `urgent` runs in the event loop's thread.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import re
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

SHARE = 0.98
"""Share of a rate that is used: calls do not take equally long to reach the server."""
BURST = 0.25
"""Seconds of a rate that may be made up for at once: after a pause, or when a timer was late."""
HELD = 1.0
"""A Retry-After of this many seconds holds back all calls of the model, not only the refused one."""
LONGEST = 86_400.0
"""Seconds of the longest limit that is believed: providers count by the minute or by the day."""
_PART = re.compile(r"([0-9.]+)(ms|s|m|h|d)?")
_UNITS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(slots=True)
class Pace:
    """The pace of requests, or of tokens, in numbers per second."""

    per_second: float | None = None
    """The pace; None if no limit is known."""
    given: float | None = None
    """The limit of the settings; a server may lower it, never raise it."""
    next: float = 0.0
    """The time at which the allowance of the calls sent so far is used up."""

    def delay(self, now: float) -> float:
        """Seconds until the next call may be sent."""
        return 0.0 if self.per_second is None else self.next - now

    def used(self, now: float, amount: float) -> None:
        """Count the usage of a call."""
        if self.per_second is not None:
            self.next = max(now - BURST, self.next) + amount / self.per_second

    def heard(self, now: float, limit: float, remaining: float, reset: float) -> None:
        """Update the pace from a server's headers: its limit, how much of it is left, and the seconds until all of it is available again.

        Servers that refill steadily regain `limit - remaining` in `reset` seconds; those that count by the minute still allow
        `remaining` until then. The larger of the two rates is right for both kinds.
        """
        if reset <= 0.0 or remaining >= limit or limit < 1.0:
            return
        reset = min(reset, LONGEST)
        rate = SHARE * max(limit - remaining, remaining) / reset
        if self.given is not None:
            rate = min(rate, self.given)
        if self.per_second is None and remaining > limit / 2:
            return  # far from the limit: no pacing is needed
        self.per_second = rate
        self.next = max(self.next, now + 1.0 / rate) if remaining < 1.0 else min(self.next, now + BURST)


@dataclass(slots=True)
class Model:
    """The paces of one model."""

    requests: Pace = field(default_factory=Pace)
    tokens: Pace = field(default_factory=Pace)
    held_until: float = 0.0


class Rates:
    """The paces of an endpoint's models."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._models: dict[str, Model] = {}

    def allow(self, model: str, rpm: float | None, tpm: float | None) -> None:
        """Send at most this many requests and tokens a minute to a model; None: as many as the server takes."""
        paces = self._models.setdefault(model, Model())
        for pace, per_minute in ((paces.requests, rpm), (paces.tokens, tpm)):
            if per_minute is not None:
                pace.given = pace.per_second = SHARE * per_minute / 60.0

    def per_minute(self) -> float | None:
        """Requests a minute of the slowest model, as they are paced now; None when none is paced."""
        rates = [each.requests.per_second for each in self._models.values() if each.requests.per_second is not None]
        return 60.0 * min(rates) if rates else None

    def delay(self, model: str) -> float:
        """Seconds until the next call of a model may be sent; 0 or less: at once."""
        paces = self._models.get(model)
        if paces is None:
            return 0.0
        now = self._clock()
        return max(paces.requests.delay(now), paces.tokens.delay(now), paces.held_until - now)

    def sent(self, model: str, tokens: int) -> None:
        """Count a call that is sent now, with its estimated tokens."""
        if (paces := self._models.get(model)) is not None:
            now = self._clock()
            paces.requests.used(now, 1.0)
            paces.tokens.used(now, float(tokens))

    def corrected(self, model: str, estimated: int, actual: int) -> None:
        """Replace a call's estimated tokens by the actual number."""
        paces = self._models.get(model)
        if paces is not None and paces.tokens.per_second is not None:
            paces.tokens.next += (actual - estimated) / paces.tokens.per_second

    def heard(self, model: str, headers: Mapping[str, str]) -> None:
        """Update the paces from the `x-ratelimit-*` headers of a reply."""
        now = self._clock()
        for kind in ("requests", "tokens"):
            values = [number(headers.get(f"x-ratelimit-{name}-{kind}", "")) for name in ("limit", "remaining")]
            reset = seconds_of(headers.get(f"x-ratelimit-reset-{kind}", ""))
            if values[0] is not None and values[1] is not None and reset is not None:
                paces = self._models.setdefault(model, Model())
                pace = paces.requests if kind == "requests" else paces.tokens
                pace.heard(now, values[0], values[1], reset)

    def refused(self, model: str, retry_after: float) -> None:
        """Note that a call was refused as too many; when the server asks to wait, the model's other calls wait, too."""
        if retry_after >= HELD:
            paces = self._models.setdefault(model, Model())
            paces.held_until = max(paces.held_until, self._clock() + retry_after)


def number(text: str) -> float | None:
    """A header's number; None when it is none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 <= value < float("inf") else None


def seconds_of(text: str) -> float | None:
    """The seconds of a duration as headers write it: `6m0s`, `20ms`, `1.5`; None for anything else."""
    parts = _PART.findall(text.strip())
    if not parts or "".join(value + unit for value, unit in parts) != text.strip():
        return None
    values = [(number(value), _UNITS[unit]) for value, unit in parts]
    return None if any(value is None for value, _ in values) else sum((value or 0.0) * unit for value, unit in values)


def estimated_tokens(body: Mapping[str, Any]) -> int:
    """Tokens of a call before it is made: a quarter of the prompt's characters, and a reply of a quarter of its limit."""
    messages = body.get("messages")
    texts = body.get("input", ()) if messages is None else [message.get("content") for message in messages]
    limit = body.get("max_tokens") or body.get("max_completion_tokens") or 0
    return sum(map(_characters, texts)) // 4 + int(limit) // 4


def _characters(content: Any) -> int:
    """Number of characters of a message's content: a text, a list of parts, or null in a message that calls tools."""
    if isinstance(content, list):
        return sum(_characters(part.get("text")) for part in content if isinstance(part, Mapping))
    return len(content) if isinstance(content, str) else 0


FALL, LEAST_BY_LATENCY = 0.8, 0.25
"""Factor of the limit at each fall, and the share of the given limit below which latency alone does not take it."""
SLOW, GAIN = 2.0, 1.1
"""Latency is rising when calls take this many times as long as the same kind at its best; more than `GAIN` x the throughput excuses it."""

SAVING = 1 / 8
"""Share of the limit that may be sent in addition while as many replies are written to disk: else the server would be idle meanwhile, for
5 to 10 % of the time at 64 calls in flight of 100 ms each. A kill can lose so many replies more than the calls in flight."""

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

    def __init__(self, most: int) -> None:
        self.adaptive, self.rates = Adaptive(most), Rates()
        self._taken = self._queued = self._of_builds = 0
        self.unsaved: set[Future[Any]] = set()
        """Replies that came and are not on disk yet; any thread may remove one, by `saved`."""
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
        """Call a function, in the event loop's thread, whenever the number of the builds' calls changes and is below the limit."""
        self._watchers = [*self._watchers, on_room]

    def unwatch(self, on_room: Callable[[], None]) -> None:
        """Stop calling it."""
        self._watchers = [watcher for watcher in self._watchers if watcher != on_room]

    @property
    def full(self) -> bool:
        """Whether every place in flight is taken. Replies that are not on disk yet take places if they are more than `SAVING` of them."""
        limit = self.adaptive.present
        return self._taken + max(0, len(self.unsaved) - int(SAVING * limit)) >= limit

    def saved(self, reply: Future[Any], loop: asyncio.AbstractEventLoop) -> None:
        """Note that a reply is on disk, or will never be; from any thread."""
        self.unsaved.discard(reply)
        # The event loop is woken only if this reply kept a call waiting: to wake it for each reply took 4 % of a table's time.
        if self._queued and len(self.unsaved) >= int(SAVING * self.adaptive.present):
            loop.call_soon_threadsafe(self._serve)

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
                if self._timer is not None:
                    self._timer.cancel()
                self._timer = asyncio.get_running_loop().call_later(min(delays.values()), self._serve)
                return
            model = min(ready, key=lambda name: self._queues[name][0][:2])
            _, _, tokens, turn = heapq.heappop(self._queues[model])
            self._queued -= 1
            self._take(model, tokens)
            turn.set_result(None)

    def _tell(self, urgency: float) -> None:
        if self._watchers and urgency >= BUILDS and self._of_builds < self.adaptive.present:
            for watcher in self._watchers:
                watcher()
