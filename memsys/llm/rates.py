"""Limits of requests and tokens a minute, by model: from the settings and from the server's headers.

A rate spreads calls evenly: each call moves the moment of the next one. Tokens are estimated before a call and corrected after it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
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

    def counts_tokens(self, model: str) -> bool:
        """Whether a model's tokens are paced."""
        paces = self._models.get(model)
        return paces is not None and paces.tokens.per_second is not None

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
