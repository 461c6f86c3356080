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
        ValueError: it is not JSON.
    """
    try:
        return orjson.loads(text)
    except ValueError:
        return json.loads(text)
