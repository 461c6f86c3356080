"""A future always ends: with a value, or with whatever was raised on the way to it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Value = TypeVar("Value")


def settle(future: Future[Value], value_of: Callable[[], Value]) -> None:
    """End a future with what `value_of` returns, or with what it raises: an exception in a callback is swallowed by
    `concurrent.futures`, and whoever waits for the future would wait for ever.
    """
    try:
        value = value_of()
    except BaseException as error:
        future.set_exception(error)
        if not isinstance(error, Exception):
            raise
    else:
        future.set_result(value)
