"""The parts of a request that determine its reply: the body without a declared list of fields, and the number of earlier equal requests.

Programs repeat a request to get another answer, so the number of earlier equal requests of the same client and step is part of the key.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memsys.jsons import canonical, encoded

UNKEYED = frozenset(
    {"stream", "stream_options", "store", "user", "metadata", "service_tier", "safety_identifier", "prompt_cache_key"}
)
"""Fields of a body that do not change the reply: how it is sent, kept and billed."""
EXCERPT = 60


@dataclass(frozen=True, slots=True)
class Normalisation:
    """A part of the texts that a product writes differently each time, such as a request id or today's date."""

    find: str
    """Regular expression."""
    put: str
    """Replaces the matched text in the key; the body that is sent keeps the original."""


def keyed(body: Mapping[str, Any], normalisations: Sequence[Normalisation] = ()) -> dict[str, Any]:
    """The part of a body that determines its reply, with the normalisations applied to all its texts."""
    kept = {name: value for name, value in body.items() if name not in UNKEYED}
    if not normalisations:
        return kept
    patterns = [(re.compile(each.find), each.put) for each in normalisations]
    return {name: _replaced(value, patterns) for name, value in kept.items()}


def _replaced(value: Any, patterns: Sequence[tuple[re.Pattern[str], str]]) -> Any:
    if isinstance(value, str):
        for pattern, put in patterns:
            value = pattern.sub(put, value)
        return value
    if isinstance(value, Mapping):
        return {name: _replaced(inner, patterns) for name, inner in value.items()}
    return [_replaced(inner, patterns) for inner in value] if isinstance(value, list) else value


def body_digest(kept: Mapping[str, Any]) -> bytes:
    """sha256 of the part of a body that `keyed` returned."""
    return hashlib.sha256(canonical(kept)).digest()


def reply_key(label: str, digest: bytes, occurrence: int) -> bytes:
    """The cache key of a reply: endpoint label, body and number of earlier equal requests."""
    return hashlib.sha256(b"\0".join([b"gateway", label.encode(), digest, str(occurrence).encode()])).digest()


def journal_key(label: str, client: str, place: str) -> bytes:
    """The cache key under which the outline of a client's n-th request is kept."""
    return hashlib.sha256("\0".join(["gateway journal", label, client, place]).encode()).digest()


def outline(kept: Mapping[str, Any]) -> list[list[str]]:
    """Name, hash and beginning of each part of a body, messages one by one: enough to tell where two requests differ."""
    return [
        [name, hashlib.sha256(text.encode(errors="replace")).hexdigest()[:12], text[:EXCERPT]]
        for name, text in sorted(_parts(kept))
    ]


def _parts(kept: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in kept.items():
        if isinstance(value, list) and name in ("messages", "input"):
            for place, entry in enumerate(value):
                content = entry.get("content") if isinstance(entry, Mapping) else entry
                yield f"{name}[{place}]", content if isinstance(content, str) else encoded(entry).decode()
        else:
            yield name, value if isinstance(value, str) else encoded(value).decode()


def first_difference(recorded: Sequence[Sequence[str]], now: Sequence[Sequence[str]]) -> str:
    """A description of where a request differs from the recorded request; empty if it does not."""
    before, after = ({part[0]: part for part in parts} for parts in (recorded, now))
    for name in dict.fromkeys([*after, *before]):
        if name not in before:
            return f"{name} is new: {after[name][2]!r}"
        if name not in after:
            return f"{name} is gone: it was {before[name][2]!r}"
        if before[name][1] != after[name][1]:
            return f"{name} differs: {after[name][2]!r}, recorded {before[name][2]!r}"
    return ""
