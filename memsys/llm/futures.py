"""Futures of calls: a waiting thread always gets a value or an exception, and lets other threads compute meanwhile; a call keeps its
place in flight until its reply is on disk.
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
"""The future that a caller waits for, in the event loop's thread or in another."""

Pauses = tuple[Callable[[], None], Callable[[], None]]
"""Functions called before a thread waits, and afterwards."""

_pauses: ContextVar[Pauses | None] = ContextVar("pauses", default=None)
_keeping: ContextVar[bool] = ContextVar("keeping", default=False)


class Reply(Future[Value]):
    """The result of a call. A call made inside `keeping()` keeps its place among those in flight until `release` is called.

    So when a process is killed, the number of replies that are paid for and not on disk is at most the in-flight limit.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._released = asyncio.Event() if _keeping.get() else None

    def release(self) -> None:
        """Free the call's place in flight; from any thread."""
        if self._released is not None:
            self._loop.call_soon_threadsafe(self._released.set)

    async def released(self) -> None:
        """Wait until the call's place may be freed; in the event loop's thread."""
        if self._released is not None:
            await self._released.wait()


class Awaited(Future[Value]):
    """A future whose waiting thread gives its turn to compute to other threads (`while_waiting`)."""

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
    """Inside the `with` block, `pause` is called whenever this thread begins to wait for a call, and `resume` when the wait has ended."""
    token = _pauses.set((pause, resume))
    try:
        yield
    finally:
        _pauses.reset(token)


@contextmanager
def waiting() -> Iterator[None]:
    """State that this thread computes nothing in the `with` block: it waits for a call, a service or another thread."""
    pauses = _pauses.get()
    if pauses is None:
        yield
        return
    pause, resume = pauses
    token = _pauses.set(None)  # nested waits count as a single wait
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
    """Free the place of a call, once its reply is on disk or it is certain that it will not be."""
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
