"""JSON where there is much of it: orjson, and the standard library for the little that orjson refuses."""

from __future__ import annotations

import json
from typing import Any

import orjson


def encoded(value: Any) -> bytes:
    """The value as JSON, on one line; NaN and infinities become null. A lone surrogate, which no UTF-8 holds, is escaped."""
    try:
        return orjson.dumps(value)
    except TypeError:  # also for subclasses of float, such as NumPy's
        return json.dumps(value, separators=(",", ":")).encode()


def canonical(value: Any) -> bytes:
    """`encoded` with sorted keys, for hashing."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def decoded(text: bytes | str) -> Any:
    """The value of a JSON text; NaN and infinities, which are not JSON, are read as Python writes them;
    whole numbers past 64 bits become floats.

    Raises:
        ValueError: it is not JSON, or nested deeper than anything that means something.
    """
    try:
        return orjson.loads(text)
    except ValueError:
        try:
            return json.loads(text)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None


def received(text: bytes) -> Any:
    """The value of a JSON text that came from elsewhere: as `decoded`, and a lone surrogate, which no file holds, is U+FFFD.

    Raises:
        ValueError: it is not JSON, or nested deeper than anything that means something.
    """
    try:
        return orjson.loads(text)  # refuses lone surrogates
    except ValueError:
        try:
            return _whole(json.loads(text))
        except RecursionError:
            raise ValueError("it is nested too deeply") from None


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_whole(name): _whole(inner) for name, inner in value.items()}
    return [_whole(inner) for inner in value] if isinstance(value, list) else value
