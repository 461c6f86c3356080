"""Keys in use, and texts without them: everything that is written or shown passes through `redact`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

LONG = 8
"""Characters from which on a key is cut out of answers, too. A shorter one may be a word, such as `none` or `local`, that a
server without keys is given; it is cut out of error messages only."""

SHORTEST = 3
"""Characters of the shortest key there is; less is a stand-in such as `x`, and would tear every message apart."""

_keys: dict[str, str] = {}
"""What stands in for each key, by every spelling of it; the longest first."""
_long: dict[bytes, bytes] = {}


def register(key: str, name: str) -> None:
    """From now on, `<name>` is shown where the key would be: as it is, stripped, and as JSON or a URL would write it."""
    bare = key.strip()
    if len(bare) < SHORTEST:
        return
    escaped = {json.dumps(bare, ensure_ascii=ascii)[1:-1] for ascii in (True, False)}
    _keys.update(dict.fromkeys({key, bare, quote(bare, safe=""), *escaped}, f"<{name}>"))
    in_order = sorted(_keys.items(), key=lambda item: -len(item[0]))  # a key may be the beginning of another
    _keys.clear()
    _keys.update(in_order)
    _long.clear()
    _long.update({one.encode(errors="replace"): shown.encode() for one, shown in in_order if len(one.strip()) >= LONG})


def redact(text: str) -> str:
    """The text without the registered keys, and without the value of any environment variable that looks like a secret."""
    for key, shown in list(_keys.items()):
        text = text.replace(key, shown)
    for name, value in os.environ.items():
        if len(value) >= LONG and any(word in name.upper() for word in ("KEY", "TOKEN", "SECRET", "PASSWORD")):
            text = text.replace(value.strip() or value, f"<{name}>")
    return text


def redact_bytes(text: bytes) -> bytes:
    """Bytes of a reply or of a line of a file without the registered keys, as far as these are long enough to be no word."""
    for key, shown in list(_long.items()):
        if key in text:
            text = text.replace(key, shown)
    return text


def redact_values(value: Any) -> Any:
    """A nested configuration, or a text, to be written: redacted as lines of files are."""
    if isinstance(value, str):
        return redact_bytes(value.encode(errors="replace")).decode()
    if isinstance(value, Mapping):
        return {redact_values(name): redact_values(inner) for name, inner in value.items()}
    return [redact_values(inner) for inner in value] if isinstance(value, list | tuple) else value


def scrub(error: BaseException) -> None:
    """Redact the message of an exception that is about to be shown, and those of the exceptions that led to it."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        one.args = tuple(redact(each) if isinstance(each, str) else each for each in one.args)
        left += [one.__cause__, one.__context__]
