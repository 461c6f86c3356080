"""Settling futures so that whoever waits for one always gets a value or an exception."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Value = TypeVar("Value")


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
