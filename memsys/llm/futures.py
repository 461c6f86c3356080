"""Settling futures so that whoever waits for one always gets a value or an exception; what a thread that waits for one leaves to
others; and how long a call keeps its place in flight.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Value = TypeVar("Value")

Waited = Future[Value] | asyncio.Future[Value]
"""The future that the caller of a call waits for: in another thread, or in the event loop's."""

Pauses = tuple[Callable[[], None], Callable[[], None]]
"""Functions called before a thread waits, and afterwards."""

_pauses: ContextVar[Pauses | None] = ContextVar("pauses", default=None)
_keeping: ContextVar[bool] = ContextVar("keeping", default=False)


class Reply(Future[Value]):
    """The result of a call. A call made inside `keeping()` keeps its place among those in flight until `release` is called.

    So a process that is killed has no more replies that are paid for and not on disk than calls may be in flight.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._released = asyncio.Event() if _keeping.get() else None

    def release(self) -> None:
        """Give the call's place away; from any thread."""
        if self._released is not None:
            self._loop.call_soon_threadsafe(self._released.set)

    async def released(self) -> None:
        """Wait until the call's place may be given away; in the event loop's thread."""
        if self._released is not None:
            await self._released.wait()


class Awaited(Future[Value]):
    """A future whose waiting thread leaves its turn to compute to others (`while_waiting`)."""

    def result(self, timeout: float | None = None) -> Value:
        if self.done():
            return super().result()
        with waiting():
            return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if self.done():
            return super().exception()
        with waiting():
            return super().exception(timeout)


@contextmanager
def while_waiting(pause: Callable[[], None], resume: Callable[[], None]) -> Iterator[None]:
    """Inside the `with` block, `pause` is called whenever this thread begins to wait for a call, and `resume` when it has waited."""
    token = _pauses.set((pause, resume))
    try:
        yield
    finally:
        _pauses.reset(token)


@contextmanager
def waiting() -> Iterator[None]:
    """This thread computes nothing in the `with` block: it waits for a call, a service or another thread."""
    pauses = _pauses.get()
    if pauses is None:
        yield
        return
    pause, resume = pauses
    token = _pauses.set(None)  # a wait inside a wait is one
    pause()
    try:
        yield
    finally:
        resume()
        _pauses.reset(token)


@contextmanager
def keeping() -> Iterator[None]:
    """Calls made inside the `with` block keep their places until the caller calls `release` with their futures."""
    token = _keeping.set(True)
    try:
        yield
    finally:
        _keeping.reset(token)


def release(future: Future[Value]) -> None:
    """Give the place of a call away, once its reply is on disk or will not be."""
    if isinstance(future, Reply):
        future.release()


def settle(future: Future[Value], value_of: Callable[[], Value]) -> None:
    """Set the future to what `value_of` returns, or to the exception it raises.

    `concurrent.futures` ignores an exception raised in a callback, so without this a waiting thread would wait for ever.
    """
    try:
        value = value_of()
    except BaseException as error:
        future.set_exception(error)
        if not isinstance(error, Exception):
            raise
    else:
        future.set_result(value)
