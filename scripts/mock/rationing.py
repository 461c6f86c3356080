"""Limits of requests and tokens a minute for the mock endpoint: buckets that refill steadily, told in `x-ratelimit-*` headers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Bucket:
    """This many a minute. It holds a minute's worth and begins with a second's, as after earlier use."""

    per_minute: float
    level: float
    filled: float

    def fill(self, now: float) -> None:
        """Add what came back since the last call."""
        self.level = min(self.per_minute, self.level + (now - self.filled) * self.per_minute / 60.0)
        self.filled = now

    def seconds_until(self, amount: float) -> float:
        """Seconds until so much is there."""
        return max(0.0, amount - self.level) * 60.0 / self.per_minute


class Rations:
    """Limits of one account a minute.

    Args:
        rpm: requests; None = any number.
        tpm: tokens; None = any number.
        quota: requests until the account has no quota left; None = it never ends.
    """

    def __init__(
        self,
        rpm: float | None = None,
        tpm: float | None = None,
        quota: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._quota = clock, quota
        given = {"requests": rpm, "tokens": tpm}
        self._buckets = {
            kind: Bucket(rate, max(1.0, rate / 60.0), clock()) for kind, rate in given.items() if rate is not None
        }

    def refusal(self, tokens: int) -> tuple[dict[str, Any], dict[str, str]] | None:
        """Body and headers of the 429 for a request of this many tokens; None when it is let through, and counted."""
        if self._quota is not None and self._quota <= 0:
            return _error("You exceeded your current quota, please check your plan.", "insufficient_quota"), {}
        now, wanted = self._clock(), {"requests": 1.0, "tokens": float(tokens)}
        for bucket in self._buckets.values():
            bucket.fill(now)
        wait = max((bucket.seconds_until(wanted[kind]) for kind, bucket in self._buckets.items()), default=0.0)
        if wait > 0.0:
            after = {"Retry-After": str(max(1, math.ceil(wait)))}
            return _error("Rate limit reached.", "rate_limit_exceeded"), {**self.headers(), **after}
        for kind, bucket in self._buckets.items():
            bucket.level -= wanted[kind]
        if self._quota is not None:
            self._quota -= 1
        return None

    def headers(self) -> Mapping[str, str]:
        """The `x-ratelimit-*` headers of a reply."""
        return {
            f"x-ratelimit-{name}-{kind}": value
            for kind, bucket in self._buckets.items()
            for name, value in (
                ("limit", f"{bucket.per_minute:g}"),
                ("remaining", str(int(bucket.level))),
                ("reset", f"{round(1000 * bucket.seconds_until(bucket.per_minute))}ms"),
            )
        }


def _error(message: str, code: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": code, "param": None, "code": code}}
