"""The interface of a server to clients, whichever way it sends their calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
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
