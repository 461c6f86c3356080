"""What is under way at an endpoint at one moment, for progress lines."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Traffic:
    """A snapshot of an endpoint; taken from any thread."""

    in_flight: int
    """Calls that were sent and not answered yet."""
    waiting: int
    """Calls that wait for a place in flight, for their next attempt, or for the end of a pause."""
    finished: int
    """Calls that ended, well or badly."""
    retried: int
    """Attempts after the first."""
    tokens_in: int
    """As the replies tell them."""
    tokens_out: int
    oldest_seconds: float
    """Since the oldest of the calls in flight was sent; 0 when there is none."""
    paused_since: float | None
    """Unix time at which the server was given up for the moment; None while it can be reached."""
    paused_why: str
