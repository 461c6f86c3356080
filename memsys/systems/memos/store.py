"""The state of MemOS for one view of a dialogue: the open window, the memories of its three stores, their search and reorganisation."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from data_loaders.schema import Role, Turn, Unit
from memsys.embed import Embedder
from memsys.interface import dated, period_text, union
from memsys.llm import meter
from memsys.llm.ask import ParseFailure, ask, ask_all
from memsys.llm.protocol import LLM
from memsys.prompts import Option, Prompts
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


_NEIGHBOURS, _LEAST_COSINE = 5, 0.8
"""Maximum number of memories that a new memory is compared with, and the minimum cosine of each."""
_CLUSTER, _LEAST_CLUSTER, _GROUP, _LEAST_GROUP, _LEAST_PARENTS = 20, 10, 10, 4, 4
_PASS = 20
"""Memories without a parent, and memories added since the last pass, that start a structure pass."""


class Reorganiser:
    """Changes a store; it holds no state of its own."""

    def __init__(self, llm: LLM, embedder: Embedder, prompts: Prompts) -> None:
        self._llm, self._embedder, self._prompts = llm, embedder, prompts

    def reconcile(self, store: MemoryStore, memory: Memory) -> None:
        """Fuse a new memory with similar memories that it contradicts or repeats: one call per comparison, and one per fusion."""
        others = [other for other in store.memories.values() if other.id != memory.id]
        if not others:
            return
        nearness = cosines(np.stack([other.vector for other in others]), memory.vector)
        similar = [others[place] for place in best(nearness, _NEIGHBOURS) if nearness[place] >= _LEAST_COSINE]
        prompt = self._prompts["memos/relation"]
        asks = [(prompt, {"history": other.text, "new": memory.text}) for other in similar]
        for other, relation in zip(similar, ask_all(self._llm, asks), strict=True):
            if isinstance(relation, ParseFailure):
                meter.note("memos.unknown_relation")
            elif relation != "independent":
                memory = self._fuse(store, other, memory)

    def _fuse(self, store: MemoryStore, old: Memory, new: Memory) -> Memory:
        """Replace both memories by their fusion, or the old memory by the new memory if they cannot both hold.

        Both stay if the reply cannot be read. Returns the memory that now represents the new one.
        """
        texts = (old.dated_text, new.dated_text)
        reply = ask(self._llm, self._prompts["memos/fuse"], texts=texts, old=texts[0], new=texts[1])
        if isinstance(reply, ParseFailure):
            meter.note("memos.not_fused")
            return new
        del store.memories[old.id]
        store.counts["fused"] += 1
        if reply.strip(" .").casefold() == "no":
            return new
        del store.memories[new.id]
        first = old.first if _starts_before(old.first, new.first) else new.first
        fusion = store.written(
            {"value": reply, "memory_type": new.kind}, self._embedder.embed([reply])[0], union((old.sources, new.sources)),
            first, new.last, max(old.level, new.level),
        )  # fmt: skip
        store.add(fusion)
        return fusion

    def structure(self, store: MemoryStore) -> None:
        """Write parents over groups of memories that have none, once enough have been added."""
        if store.unstructured < _PASS:
            return
        orphans = [memory for memory in store.memories.values() if store.parent(memory.id) is None]
        if len(orphans) < _PASS:
            return
        store.unstructured = 0
        clusters = [
            [orphans[row] for row in rows]
            for rows in partition(np.stack([memory.vector for memory in orphans]))
            if len(rows) > _LEAST_CLUSTER
        ]
        prompt = self._prompts["memos/split"]
        asks = [(prompt, {"query": "", "options": _numbered(cluster)}) for cluster in clusters]
        for cluster, reply in zip(clusters, ask_all(self._llm, asks), strict=True):
            if isinstance(reply, ParseFailure):
                meter.note("memos.no_groups")
                continue
            groups = [group for group in _groups(cluster, reply) if len(group) >= _LEAST_GROUP]
            parents = self._write_parents(store, groups)
            if len(parents) >= _LEAST_PARENTS:
                self._write_parents(store, [parents])

    def _write_parents(self, store: MemoryStore, groups: Sequence[Sequence[Memory]]) -> list[Memory]:
        """Store a new memory over each group for which the model writes one; returns these memories."""
        prompt = self._prompts["memos/parent"]
        replies = ask_all(self._llm, [(prompt, {"texts": [memory.text for memory in group]}) for group in groups])
        parents = []
        for group, reply in zip(groups, replies, strict=True):
            if isinstance(reply, ParseFailure) or not reply["value"].strip():
                meter.note("memos.no_parent")
                continue
            vector = self._embedder.embed([reply["value"].strip()])[0]
            sources, level = union(memory.sources for memory in group), 1 + max(memory.level for memory in group)
            parent = store.written(reply, vector, sources, group[0].first, group[-1].last, level)
            store.add(parent)
            store.parents.update((child.id, parent.id) for child in group)
            store.counts["parents"] += 1
            parents.append(parent)
        return parents


def partition(vectors: np.ndarray) -> list[list[int]]:
    """Rows in clusters of at most 20, by mini-batch k-means with k = ⌈n / 20⌉, repeated on clusters that are too large.

    Args:
        vectors: float32 [n, d].
    """
    from sklearn.cluster import MiniBatchKMeans

    clusters: list[list[int]] = []
    waiting = [list(range(len(vectors)))]
    while waiting:
        rows = waiting.pop(0)
        if len(rows) <= _CLUSTER:
            clusters.append(rows)
            continue
        count = min(math.ceil(len(rows) / _CLUSTER), len(np.unique(vectors[rows], axis=0)))
        labels = MiniBatchKMeans(count, random_state=0, n_init=3).fit_predict(vectors[rows])
        parts = [
            [row for row, row_label in zip(rows, labels, strict=True) if row_label == label]
            for label in np.unique(labels)
        ]
        if len(parts) == 1:
            parts = [rows[first : first + _CLUSTER] for first in range(0, len(rows), _CLUSTER)]
        waiting += parts
    return clusters


def _numbered(memories: Sequence[Memory]) -> list[Option]:
    return [Option(str(number), memory.text) for number, memory in enumerate(memories, start=1)]


def _groups(cluster: Sequence[Memory], reply: Mapping[str, Any]) -> list[list[Memory]]:
    """The groups in a reply. A memory goes to the first group that names it; a group has at most 10 members."""
    unclaimed = dict(enumerate(cluster, start=1))
    groups = []
    for group in reply["groups"]:
        numbers = [number for number in dict.fromkeys(group["ids"]) if number in unclaimed][:_GROUP]
        groups.append([unclaimed.pop(number) for number in numbers])
    return groups


def _starts_before(unit: Unit, other: Unit) -> bool:
    return unit.time is None or other.time is None or unit.time <= other.time
