"""Fast JSON with orjson, falling back to the standard library for values that orjson rejects."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import orjson


def fields_of(record: Any) -> dict[str, Any]:
    """The fields of a dataclass with slots, by name. Not `dataclasses.asdict`: it copies deeply, which takes longer than writing a line."""
    return {name: getattr(record, name) for name in record.__slots__}


def encoded(value: Any) -> bytes:
    """The value as JSON on one line. NaN and infinities become null; a lone surrogate, which UTF-8 cannot encode, is escaped."""
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
    """The value of a JSON text. NaN and infinities are accepted as Python writes them; integers beyond 64 bits become floats.

    Raises:
        ValueError: the text is not JSON, or its values are nested too deep.
    """
    try:
        return orjson.loads(text)
    except ValueError:
        try:
            return json.loads(text)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None


def received(text: bytes) -> Any:
    """The value of a JSON text from outside: as `decoded`, with each lone surrogate replaced by U+FFFD, because no file can hold one.

    Raises:
        ValueError: the text is not JSON, or is nested too deeply.
    """
    try:
        return orjson.loads(text)  # rejects lone surrogates
    except ValueError:
        try:
            return changed(
                json.loads(text), lambda each: each.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            )
        except RecursionError:
            raise ValueError("it is nested too deeply") from None


def changed(value: Any, change: Callable[[str], str]) -> Any:
    """A nested value with every text and key in it changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {changed(name, change): changed(inner, change) for name, inner in value.items()}
    return [changed(inner, change) for inner in value] if isinstance(value, list | tuple) else value
