"""The facts of LightMem: the prompt lines they are extracted from, the exchange each came from, and their update."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np

from memsys.llm import meter
from memsys.llm.ask import ParseFailure
from memsys.prompts import Option
from memsys.systems.bm25 import words
from memsys.systems.lightmem.exchanges import Exchange
from memsys.vectors import best

QUEUE = 10
"""Maximum number of earlier facts whose update is shown a given fact."""
_BLOCK = 512
"""Facts whose cosines are computed at once."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A statement extracted from an exchange, with that exchange's place and time."""

    text: str
    place: int
    sources: tuple[str, ...]
    time: datetime | None
    time_text: str


@dataclass(frozen=True, slots=True)
class FactTable:
    """The facts that a read chooses from, as of one `consolidate`."""

    facts: tuple[Fact, ...] = ()
    vectors: np.ndarray | None = None
    """float32 [facts, d]."""
    decisions: tuple[str, ...] = ()
    """The action (`update`, `delete`, `ignore`) for each fact that had later near-duplicates."""


def later_duplicates(vectors: np.ndarray, places: np.ndarray, threshold: float) -> dict[int, list[int]]:
    """For each fact, the later facts whose update it gets, by place in `vectors`.

    Every fact looks for its `QUEUE` nearest facts of the same age or older with a cosine of at least `threshold`; it is listed under each.

    Args:
        vectors: float32 [facts, d], unit length.
        places: in the stream, int [facts]; the age of the facts.
    """
    later: dict[int, list[int]] = {}
    for start in range(0, len(vectors), _BLOCK):
        cosines = vectors[start : start + _BLOCK] @ vectors.T
        for row, new in enumerate(range(start, start + len(cosines))):
            allowed = (places <= places[new]) & (cosines[row] >= threshold)
            allowed[new] = False
            old = np.flatnonzero(allowed)
            for place in best(cosines[row][old], QUEUE):
                later.setdefault(int(old[place]), []).append(new)
    return later


def with_headings(segments: Sequence[Sequence[Exchange]], lines: Sequence[Sequence[str]]) -> list[str]:
    """The lines of all exchanges in order, under a heading for each topic."""
    text: list[str] = []
    rest = iter(lines)
    for number, segment in enumerate(segments, start=1):
        text.append(f"--- Topic {number} ---")
        text += [line for _ in segment for line in next(rest)]
    return text


def source_exchange(source_id: Any, fact: str, lines: Sequence[Sequence[str]]) -> int:
    """The number of the exchange that a `source_id` names, or of the nearest exchange that exists.

    If it is not a number, the exchange that shares most words with the fact.
    """
    if isinstance(source_id, int) or (isinstance(source_id, str) and source_id.strip().lstrip("-").isdecimal()):
        return max(0, min(int(source_id), len(lines) - 1))
    meter.note("lightmem.source_by_words")
    stems = set(words(fact))
    return max(range(len(lines)), key=lambda number: (len(stems & set(words(" ".join(lines[number])))), -number))


def update_fields(texts: tuple[str, ...]) -> dict[str, Any]:
    """The fields of the update prompt for a fact's text and its later near-duplicates."""
    options = [Option(str(number), text) for number, text in enumerate(texts[1:], start=1)]
    return {"query": texts[0], "options": options}


def decision(reply: Any) -> tuple[str, str]:
    """The action and the new text in a reply; `ignore` where it cannot be used."""
    if isinstance(reply, ParseFailure):
        meter.note("lightmem.no_decision")
        return "ignore", ""
    text = (reply.get("new_memory") or "").strip()
    if reply["action"] == "update" and not text:
        meter.note("lightmem.no_new_text")
        return "ignore", ""
    return reply["action"], text
