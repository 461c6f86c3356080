"""The interface of a server to clients, whichever way it sends their calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from memsys.llm.pricing import ModelSettings
from memsys.llm.replies import Usage

Price = Callable[[Usage], float | None]
"""Computes the cost of a reply in US dollars; None when the reply has no usage or the price is unknown."""

Sent = tuple[Any, float, int]
"""A decoded reply, the seconds of the successful attempt, and the number of attempts."""

Result = TypeVar("Result")
Parse = Callable[[Any, float, int], Result]
"""Turns the three fields of a `Sent` into the call's result."""


class Server(Protocol):
    """The interface of a server to clients: calls one by one (`Endpoint`) or in batches (`batching.endpoint.BatchEndpoint`)."""

    base_url: str
    label: str
    named: bool
    """Whether `start` wants the name of each call; only batches do."""

    def serve(self, settings: ModelSettings) -> None:
        """Get ready for the calls of a model; raises `EndOfRun` where `network=false` forbids this server."""

    def start(
        self,
        path: str,
        body: Mapping[str, Any],
        worst: float | None,
        price: Price,
        parse: Parse[Result],
        name: str = "",
    ) -> Future[Result]:
        """Send a body and return a future of the reply as `parse` returns it."""


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
