"""The store behind the reference services: messages by namespace, searched by word overlap; on request with any fault of such services."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

FAULTS = {
    "dates dropped": "the time of a message is not kept",
    "index late": "what was added is reported as indexed before it can be found",
    "forgets": "only the last three adds of a namespace are kept",
    "ids repeated": "all entries have the same id",
    "k ignored": "a search returns everything",
    "tenants leak": "a search looks into all namespaces",
    "search changes state": "a query is stored as a message",
    "empties": "a search returns entries without text",
    "failures reported as success": "every third add fails, and is reported as stored",
    "deletions kept": "a deletion is reported and not done",
    "order lost": "the messages of an add are stored in reverse",
    "own text not stored": "messages of the assistant are not stored",
    "speaker lost": "the speaker of a message is not kept",
}
"""Faults that the store shows on request."""
LATE = 8
"""Number of searches before a message can be found, with the fault `index late`."""


@dataclass(slots=True)
class Entry:
    """Items stored by one add."""

    id: str
    text: str
    turns: list[str]
    time: str
    pending: int
    """Number of polls, or of searches with a late index, until it can be found."""


@dataclass(slots=True)
class Store:
    fault: str = ""
    """A name of `FAULTS`; empty for a working store."""
    delay: int = 0
    """Number of polls after which an add is indexed; a working store reports it as pending until then."""
    spaces: dict[str, list[Entry]] = field(default_factory=dict)
    adds: dict[str, int] = field(default_factory=dict)
    """Number of adds of each namespace; ids are counted within it, so that equal histories get equal ids."""

    def add(self, space: str, messages: Sequence[Mapping[str, Any]], time: str) -> str:
        """Store the messages of one add as one entry; returns its id."""
        number = self.adds[space] = self.adds.get(space, 0) + 1
        name = f"m{number}"
        if self.fault == "failures reported as success" and number % 3 == 0:
            return name
        kept = [each for each in messages if self.fault != "own text not stored" or each.get("role") != "assistant"]
        if self.fault == "order lost":
            kept = kept[::-1]
        lines = [self._line(each) for each in kept]
        if lines:
            pending = LATE if self.fault == "index late" else self.delay
            shown = "" if self.fault == "dates dropped" else time
            turns = [str(each.get("id", "")) for each in kept]
            entries = [*self.spaces.get(space, ()), Entry(name, "\n".join(lines), turns, shown, pending)]
            self.spaces[space] = entries[-3:] if self.fault == "forgets" else entries
        return name

    def pending(self, space: str) -> int:
        """Entries of a namespace that are not indexed yet; each poll counts down their delay."""
        if self.fault == "index late":
            return 0
        entries = self.spaces.get(space, [])
        for entry in entries:
            entry.pending = max(0, entry.pending - 1)
        return sum(entry.pending > 0 for entry in entries)

    def search(self, space: str, query: str, limit: int) -> list[dict[str, Any]]:
        """The entries that share most words with the query, the best first."""
        wanted = _words(query)
        spaces = list(self.spaces.values()) if self.fault == "tenants leak" else [self.spaces.get(space, [])]
        entries = [entry for entries in spaces for entry in entries if entry.pending == 0]
        scored = sorted(entries, key=lambda entry: -_score(wanted, entry))
        if self.fault == "index late":
            for entry in self.spaces.get(space, []):
                entry.pending = max(0, entry.pending - 1)
        if self.fault == "search changes state":
            self.add(space, [{"speaker": "Visitor", "role": "user", "text": query, "id": ""}], "")
        found = scored if self.fault == "k ignored" else scored[:limit]
        hits = []
        for entry in found:
            name = "m1" if self.fault == "ids repeated" else entry.id
            text, score = "" if self.fault == "empties" else entry.text, _score(wanted, entry)
            hits.append({"id": name, "text": text, "score": score, "turns": entry.turns, "time": entry.time})
        return hits

    def delete(self, space: str) -> None:
        if self.fault != "deletions kept":
            self.spaces.pop(space, None)

    def _line(self, message: Mapping[str, Any]) -> str:
        speaker = "" if self.fault == "speaker lost" else str(message.get("speaker") or "")
        return f"{speaker}: {message['text']}" if speaker else str(message["text"])


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def _score(wanted: set[str], entry: Entry) -> float:
    return round(len(wanted & _words(entry.text)) / max(1, len(wanted)), 4)
