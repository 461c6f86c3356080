"""A snapshot of an endpoint's calls, for progress lines."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Traffic:
    """The state of an endpoint at one moment. Any thread may take one."""

    in_flight: int
    """Calls that were sent and are not answered yet."""
    waiting: int
    """Calls that wait for a free slot, for their next attempt or for the end of a pause."""
    finished: int
    """Calls that have ended, with or without success."""
    retried: int
    """Attempts after the first."""
    tokens_in: int
    """Prompt tokens as the replies report them."""
    tokens_out: int
    """Completion tokens as the replies report them."""
    oldest_seconds: float
    """Seconds since the oldest call in flight was sent; 0 when there is none."""
    paused_since: float | None
    """Unix time at which the current pause began; None when there is no pause."""
    paused_why: str
    """Reason for the pause; empty when there is none."""
    batched: int = 0
    """Calls that wait for a batch, or in one that the provider works on."""
    limit: int = 0
    """Calls that may be in flight now; 0 when unknown."""
    most: int = 0
    """Calls that may be in flight when the server is well (`endpoint.in_flight`)."""
    rpm: float | None = None
    """Maximum number of requests a minute; None when no limit is known."""
    dollars: float = 0.0
    """Amount spent by this process so far on calls of known price; of several snapshots of one purse, only the first has it."""
