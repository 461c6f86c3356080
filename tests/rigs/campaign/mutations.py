"""Broken copies of well-formed files: mutations of parsed JSON, which leave a readable file, and of bytes."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

HUGE_TURN = "x" * 10_000_000

STRANGE_VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 7.5, 10**30, float("nan"), float("inf"), "", " ", "no such thing", "D999:999", "\x00\u2028",
    "2023/13/45 (Abc) 99:99", "[1, 2", "__import__('os')", [], [[]], [None], {}, {"": None},
)  # fmt: skip

BROKEN_BYTES: Mapping[str, Callable[[bytes], bytes]] = {
    "empty": lambda raw: b"",
    "truncated in the middle": lambda raw: raw[: len(raw) // 2],
    "truncated by one byte": lambda raw: raw.rstrip()[:-1],
    "not UTF-8 in a string": lambda raw: raw.replace(b"e", b"\xff", 1),
    "half a character": lambda raw: raw.replace(b"e", b"\xe2\x82", 1),
    "NaN": lambda raw: b"[NaN]",
    "a bare number": lambda raw: b"7",
    "null": lambda raw: b"null",
    "nested too deep": lambda raw: b"[" * 200_000,
    "nested too deep and closed": lambda raw: b"[" * 100_000 + b"]" * 100_000,
    "lone surrogate": lambda raw: raw.replace(b"e", b"\\ud800", 1),
    "byte order mark": lambda raw: b"\xef\xbb\xbf" + raw,
    "trailing rubbish": lambda raw: raw + b"]}",
    "a number of ten thousand digits": lambda raw: b"[" + b"9" * 10_000 + b"]",
}
"""Functions that break a file's bytes, by description."""


def mutated(text: str, seed: int) -> Any:
    """The value of a JSON text with one to three random structural mutations; the seed decides all of them.

    A mutation drops, duplicates or swaps members, changes a value or its type, truncates a string or a list, puts in
    NaN, or writes a turn of ten million characters.
    """
    rng, root = Random(seed), [json.loads(text)]
    for _ in range(rng.randint(1, 3)):
        parent, key = _place(rng, root)
        _mutate(rng, parent, key)
    return root[0]


def _place(rng: Random, root: list[Any]) -> tuple[Any, Any]:
    """A random container and the key of one of its members; every depth is equally likely."""
    parent: Any = root
    key: Any = 0
    for _ in range(rng.choice((3, 4, 5, 6, 7, 8, 2, 1, 0))):
        value = parent[key]
        if not isinstance(value, dict | list) or not value:
            break
        parent, key = value, rng.choice(sorted(value) if isinstance(value, dict) else range(len(value)))
    return parent, key


def _mutate(rng: Random, parent: Any, key: Any) -> None:
    value = parent[key]
    kind = rng.choice(["drop", "replace", "retype", "truncate", "duplicate", "swap", "huge"])
    if kind == "drop":
        if isinstance(parent, dict) or len(parent) > 1:
            del parent[key]
        else:
            parent[key] = None
    elif kind == "replace":
        parent[key] = copy.deepcopy(rng.choice(STRANGE_VALUES))
    elif kind == "retype":
        parent[key] = rng.choice([str(value)[:1000], [value], {"value": value}])
    elif kind == "truncate":
        parent[key] = _truncated(rng, value)
    elif kind == "duplicate":
        _duplicate(parent, key)
    elif kind == "swap":
        other = rng.choice(sorted(parent) if isinstance(parent, dict) else range(len(parent)))
        parent[key], parent[other] = parent[other], value
    elif rng.randint(0, 24) == 0:  # rare, because ten megabytes are slow to write
        parent[key] = HUGE_TURN
    else:
        parent[key] = value * 2 if isinstance(value, str | list) else None


def _truncated(rng: Random, value: Any) -> Any:
    if isinstance(value, str | list) and value:
        return value[: rng.randint(0, len(value) - 1)]
    return value


def _duplicate(parent: Any, key: Any) -> None:
    """Repeat a list member next to itself (including ids), or a field's value in every other field of its type."""
    if isinstance(parent, list):
        parent.insert(key, copy.deepcopy(parent[key]))
        return
    for other, value in parent.items():
        if other != key and type(value) is type(parent[key]):
            parent[other] = copy.deepcopy(parent[key])
