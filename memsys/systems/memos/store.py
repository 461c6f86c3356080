"""The state of MemOS for one view of a dialogue: the open window, the memories of its three stores, and their search."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from data_loaders.schema import Role, Turn, Unit
from memsys.interface import dated, period_text
from memsys.vectors import best, cosines

CAPACITY = {"long_term": 1500, "user": 480}
"""Maximum number of memories of the long-term and the user store."""
WORKING = 20
"""Maximum number of memories of the working store."""


@dataclass(frozen=True, slots=True)
class Line:
    """A message as a window shows it."""

    text: str
    turn: Turn
    unit: Unit


@dataclass(frozen=True, slots=True)
class Memory:
    """A statement that a model wrote."""

    id: str
    text: str
    kind: str
    """The store it belongs to: `long_term` or `user`."""
    vector: np.ndarray
    """float32 [d], unit length."""
    sources: tuple[str, ...]
    first: Unit
    last: Unit
    level: int = 1

    @property
    def dated_text(self) -> str:
        """The text with the period of its units in front."""
        return dated(self.text, period_text(self.first, self.last))


@dataclass(slots=True)
class MemoryStore:
    """The memories from the view of one side."""

    side: Role
    lines: list[Line] = field(default_factory=list)
    """The open window."""
    memories: dict[str, Memory] = field(default_factory=dict)
    """The long-term and the user store by id, the oldest first."""
    working: deque[Memory] = field(default_factory=lambda: deque(maxlen=WORKING))
    parents: dict[str, str] = field(default_factory=dict)
    """Ids of parents by ids of children; a parent may be gone."""
    created: int = 0
    unstructured: int = 0
    """Memories added since the last structure pass."""
    counts: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self.memories) + sum(memory.id not in self.memories for memory in self.working)

    def copy(self) -> MemoryStore:
        """A copy; changes to it do not change this store."""
        return MemoryStore(
            self.side, list(self.lines), dict(self.memories), self.working.copy(), dict(self.parents), self.created,
            self.unstructured, self.counts.copy(),
        )  # fmt: skip

    def parent(self, name: str) -> str | None:
        """The id of a memory's parent, if that is still stored."""
        parent = self.parents.get(name)
        return parent if parent in self.memories else None

    def written(
        self, reply: Mapping[str, Any], vector: np.ndarray, sources: tuple[str, ...], first: Unit, last: Unit,
        level: int = 1,
    ) -> Memory:  # fmt: skip
        """The memory in a model's reply (`value`, `memory_type`), under the next free id. It is not stored yet."""
        kind = "user" if reply.get("memory_type") in ("UserMemory", "user") else "long_term"
        return Memory(f"{self.side}-{self.created}", reply["value"].strip(), kind, vector, sources, first, last, level)

    def add(self, memory: Memory) -> None:
        """Store the memory; where its store is full, drop the oldest one."""
        self.memories[memory.id] = memory
        self.created += 1
        same_kind = [name for name, other in self.memories.items() if other.kind == memory.kind]
        if len(same_kind) > CAPACITY[memory.kind]:
            del self.memories[same_kind[0]]

    def all(self) -> dict[str, Memory]:
        """Every memory that a search can recall, by id."""
        return {memory.id: memory for memory in (*self.memories.values(), *self.working)}

    def search(self, vectors: np.ndarray, k: int) -> list[tuple[Memory, float]]:
        """The `k` memories with different texts that are nearest to any query vector, with that cosine, best first.

        Args:
            vectors: of the queries, float32 [queries, d].
        """
        memories = list(self.all().values())
        if not memories or k < 1:
            return []
        rows = np.stack([memory.vector for memory in memories])
        nearness = np.max([cosines(rows, vector) for vector in vectors], axis=0)
        working = {memory.id for memory in self.working}
        candidates = set(_top([place for place, memory in enumerate(memories) if memory.id in working], nearness, k))
        for kind in CAPACITY:
            stored = [
                place for place, memory in enumerate(memories) if memory.kind == kind and memory.id in self.memories
            ]
            candidates.update(_top(stored, nearness, 2 * k))
        by_text: dict[str, int] = {}
        for place in sorted(candidates, key=lambda place: (-nearness[place], place)):
            by_text.setdefault(memories[place].text, place)
        return [(memories[place], float(nearness[place])) for place in list(by_text.values())[:k]]


def _top(places: Sequence[int], scores: np.ndarray, k: int) -> list[int]:
    """The `k` of the places with the highest scores, best first."""
    return [places[rank] for rank in best(scores[list(places)], k)]
