"""API keys in use, and their removal from written and printed texts. `SECURITY.md` lists the promises."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

LONG = 8
"""Keys of at least this many characters are removed from answers too. A shorter key may be a common word, such as `none` or `local`,
for a server without keys; it is removed from error messages only."""

SHORTEST = 3
"""Keys of fewer characters are never removed: they are placeholders such as `x`, which occur in every message."""

_keys: dict[str, str] = {}
"""Replacement of each key, by every spelling of the key; the longest first."""
_long: dict[bytes, bytes] = {}
"""The part of `_keys` whose keys have at least LONG characters, as bytes."""


def register(key: str, name: str) -> None:
    """From now on, replace the key by `<name>`: as given, stripped, and as JSON or a URL would escape it.

    A key of at least LONG characters also in upper and lower case, in hexadecimal digits, and in base64, alone or inside a longer text.
    A key that is split, reversed or encrypted is not recognised.
    """
    bare = key.strip()
    if len(bare) < SHORTEST:
        return
    escaped = {json.dumps(bare, ensure_ascii=ascii)[1:-1] for ascii in (True, False)}
    spellings = {key, bare, quote(bare, safe=""), bare.replace("/", "\\/"), *escaped}
    if len(bare) >= LONG:
        raw = bare.encode(errors="replace")
        spellings |= {bare.upper(), bare.lower(), raw.hex(), raw.hex().upper(), *_in_base64(raw)}
    _keys.update(dict.fromkeys(spellings, f"<{name}>"))
    longest_first = sorted(_keys.items(), key=lambda item: -len(item[0]))  # one key may be the beginning of another
    _keys.clear()
    _keys.update(longest_first)
    _long.clear()
    for spelling, label in longest_first:
        if len(spelling.strip()) >= LONG:
            _long[spelling.encode(errors="replace")] = label.encode()


def _in_base64(raw: bytes) -> set[str]:
    """Base64 of some bytes, in both alphabets, at each of the three places where they may begin in a longer text."""
    spellings = set()
    for before in range(3):
        whole = base64.b64encode(bytes(before) + raw).rstrip(b"=").decode()
        # The first characters hold bits of the text before, the last character bits of the text after.
        inner = whole[(0, 2, 3)[before] : len(whole) - (0 if (before + len(raw)) % 3 == 0 else 1)]
        spellings |= {inner, inner.replace("+", "-").replace("/", "_")}
    return spellings


def register_environment() -> None:
    """Register the value of every environment variable that looks like a secret, so that it is kept out of every file.

    Commands and workers do this when they begin, before anything is written.
    """
    for value, label in secrets_of_environment().items():
        register(value, label[1:-1])


def redact(text: str) -> str:
    """The text without the registered keys, and without the value of any environment variable that looks like a secret."""
    for key, label in list(_keys.items()):
        text = text.replace(key, label)
    for value, label in secrets_of_environment().items():
        text = text.replace(value, label)
    return text


def secrets_of_environment() -> dict[str, str]:
    """Replacement of the value of every environment variable that looks like a secret."""
    return {
        value.strip() or value: f"<{name}>"
        for name, value in os.environ.items()
        if len(value) >= LONG and _looks_secret(name)
    }


def environment_without_secrets() -> dict[str, str]:
    """The variables that do not look like secrets, for programs that need none, such as pip."""
    return {name: value for name, value in os.environ.items() if not _looks_secret(name)}


def _looks_secret(variable: str) -> bool:
    name = variable.upper()
    harmless = any(word in name for word in ("TOKENIZER", "KEYBOARD", "KEYMAP", "MAX_TOKENS"))
    return not harmless and any(word in name for word in ("KEY", "TOKEN", "SECRET", "PASSWORD"))


def redact_bytes(text: bytes) -> bytes:
    """The bytes of a reply or of a file's line without the registered keys of at least LONG characters."""
    for key, label in list(_long.items()):
        if key in text:
            text = text.replace(key, label)
    return text


def redact_values(value: Any) -> Any:
    """A text or nested configuration with `redact_bytes` applied to every string and key in it."""
    if isinstance(value, str):
        return redact_bytes(value.encode(errors="replace")).decode()
    if isinstance(value, Mapping):
        return {redact_values(name): redact_values(inner) for name, inner in value.items()}
    return [redact_values(inner) for inner in value] if isinstance(value, list | tuple) else value


def scrub(error: BaseException) -> None:
    """Redact the message of an exception and of all exceptions that led to it, in place."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        current.args = tuple(redact(part) if isinstance(part, str) else part for part in current.args)
        pending += [current.__cause__, current.__context__]
