"""MemOS: textual memories read out of windows of messages, kept in a working, a long-term and a user store (Li et al., 2025).

This is the tree-text memory as its authors evaluated it (release of August 2025). Messages fill windows of `window` lines; the last
`overlap` lines of a window begin the next one; the end of a session closes the window. One call lists the memories that the user would keep
of a window. Every memory is held twice: in the short working store, and in the long-term store or the user store (`MemoryStore`). A search
takes the best of each store by cosine. As in the evaluation, a dialogue is stored twice, with each of its two sides as the user.

`reorganise`, which the evaluation leaves off, fuses memories that contradict or repeat each other and writes parents over groups.

Deviations and decisions:

- Windows are stored in their order; the release reads them in threads and stores them as replies arrive. A window that is open when
  questions are asked is read provisionally: later lines see the stores without it.
- A copy in the working store has the text of its original and cannot be distinguished in a recall; `held` counts it once.
- A reply that cannot be read gives no memories. An unknown type of memory is long-term.
- The summary of a window is asked for, as released, but nothing reads it.
- A memory's key and tags are asked for, as released, and not kept. The release also recalls by them, but then ranks everything by cosine
  and keeps no more than the 2 · k memories that it has already recalled by cosine: key and tags cannot change a result.
- With `fine_parse` the release ranks by the first of several vectors. If that is the question's vector, the results are those of the fast
  search, for the same reason. Here a memory counts with its best cosine. The reply is JSON (the release evaluates it as Python) and
  holds only the statements.
- A recalled memory shows no time except what its text says, as in the evaluation, unless `timestamps` is set.
- The structure pass (periodic in the release) runs after a window when 20 memories have been added since the last pass and 20 have no
  parent. A group has at most 10 members and a memory belongs to one group; clusters that cannot be divided are cut by 20. A fused
  memory replaces both originals; where the fusion cannot be read, both stay. The clustering is seeded with 0.
- Full-text recall, tool memories and preference memories of later releases are not part of the evaluated version.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, ClassVar, Literal

import numpy as np

from data_loaders.schema import Question, Role, Turn, Unit
from memsys.interface import (
    SIDES,
    Item,
    MemorySystem,
    NodeView,
    Positive,
    Recall,
    Settings,
    dated,
    period,
    period_text,
    shares,
    spoken,
    union,
)
from memsys.llm import meter
from memsys.llm.ask import ParseFailure, ask, ask_all
from memsys.llm.protocol import LLM
from memsys.prompts import Option, Prompts
from memsys.vectors import Embedder, best, cosines

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


_CONTEXT, _VECTORS = 5, 5
"""Memories shown to the fine parse, and most vectors of one search."""


@dataclass(frozen=True)
class MemOSSettings(Settings):
    """Settings of `MemOS`.

    Raises:
        ValueError: an unknown choice of views, or a number out of range.
    """

    k: Positive = 40
    """Maximum number of items of a recall; the evaluation takes 20 from each view."""
    views: Literal["both", "user"] = "both"
    """`both` sides of the dialogue as the user in turn, or only the `user` (half the calls)."""
    window: int = 10
    """Lines of a window."""
    overlap: int = 2
    """Lines of a window that begin the next one."""
    fine_parse: bool = False
    """Whether a model writes statements to search by, in addition to the question (one call per view)."""
    reorganise: bool = False
    """Whether memories are fused and get parents; needs scikit-learn."""
    timestamps: bool = False
    """Whether a recalled memory shows the time of its messages."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.overlap < self.window:
            raise ValueError(
                f"overlap must be at least 0 and smaller than the window {self.window}, found {self.overlap}"
            )


class MemOS(MemorySystem):
    """Recalls the `k` memories nearest to the question, half of them from each view of the dialogue.

    Raises:
        ImportError: `reorganise` without scikit-learn.
    """

    READ_KNOBS: ClassVar = ("k", "fine_parse", "timestamps")
    PROMPTS: ClassVar = ("memos",)
    EMBEDS_UNITS: ClassVar = False
    UNIT: ClassVar = {"rule": "utterance"}

    def __init__(
        self, llm: LLM, embedder: Embedder, prompts: Prompts, settings: MemOSSettings = MemOSSettings()
    ) -> None:
        if settings.reorganise and find_spec("sklearn") is None:
            raise ImportError("reorganise needs scikit-learn: pip install memsys-bench[cluster]")
        self.llm, self.embedder, self.prompts, self.settings = llm, embedder, prompts, settings
        self._stores = tuple(MemoryStore(side) for side in SIDES[settings.views])
        self._session: str | None = None
        self._provisional: tuple[MemoryStore, ...] | None = None
        """The stores with their open windows read; None when something was written since the last `consolidate`."""

    def write(self, unit: Unit) -> None:
        """Add the unit's turns to the windows; one call for each full window of a view."""
        self._provisional = None
        if self._session not in (None, unit.session_id):
            self._close(self._stores)
        self._session = unit.session_id
        full: list[tuple[MemoryStore, list[Line]]] = []
        for turn in unit.turns:
            for store in self._stores:
                store.lines.append(_line(turn, unit, store.side))
                if len(store.lines) == self.settings.window:
                    full.append((store, store.lines))
                    store.lines = store.lines[self.settings.window - self.settings.overlap :]
        self._read_windows(full)

    def end_session(self, session_id: str) -> None:
        self._provisional = None
        self._close(self._stores)
        self._session = None

    def consolidate(self) -> None:
        """Read the open windows, on a copy of the stores."""
        if self._provisional is None:
            stores = tuple(store.copy() for store in self._stores)
            self._close(stores)
            self._provisional = stores

    def _close(self, stores: Sequence[MemoryStore]) -> None:
        """Read the open windows of the stores and empty them."""
        open_windows = [(store, store.lines) for store in stores if store.lines]
        for store in stores:
            store.lines = []
        self._read_windows(open_windows)

    def _read_windows(self, windows: Sequence[tuple[MemoryStore, list[Line]]]) -> None:
        """Store the memories that the model lists for each window, in order."""
        prompt = self.prompts["memos/read"]
        asks = []
        for _, lines in windows:
            text = [dated(spoken(line.turn), line.unit.time_text) for line in lines]
            asks.append((prompt, {"lines": [line.text for line in lines], "text": text}))
        for (store, lines), reply in zip(windows, ask_all(self.llm, asks, noted="memos.unread_window"), strict=True):
            store.counts["windows"] += 1
            if isinstance(reply, ParseFailure):
                store.counts["unread_windows"] += 1
                continue
            self._remember(store, lines, [entry for entry in reply["memory list"] if entry["value"].strip()])

    def _remember(self, store: MemoryStore, lines: Sequence[Line], entries: Sequence[Mapping[str, Any]]) -> None:
        """Add the memories of one window, and reorganise the store where that is switched on."""
        if not entries:
            return
        vectors = self.embedder.embed([entry["value"].strip() for entry in entries])
        sources = tuple(dict.fromkeys(line.turn.id for line in lines))
        for entry, vector in zip(entries, vectors, strict=True):
            memory = store.written(entry, vector, sources, lines[0].unit, lines[-1].unit)
            store.working.append(memory)
            store.add(memory)
            store.unstructured += 1
            if self.settings.reorganise:
                self._reconcile(store, memory)
        if self.settings.reorganise:
            self._structure(store)

    def _reconcile(self, store: MemoryStore, memory: Memory) -> None:
        """Fuse a new memory with similar memories that it contradicts or repeats: one call per comparison, and one per fusion."""
        others = [other for other in store.memories.values() if other.id != memory.id]
        if not others:
            return
        nearness = cosines(np.stack([other.vector for other in others]), memory.vector)
        similar = [others[place] for place in best(nearness, _NEIGHBOURS) if nearness[place] >= _LEAST_COSINE]
        prompt = self.prompts["memos/relation"]
        asks = [(prompt, {"history": other.text, "new": memory.text}) for other in similar]
        for other, relation in zip(similar, ask_all(self.llm, asks, noted="memos.unknown_relation"), strict=True):
            if relation and relation != "independent":
                memory = self._fuse(store, other, memory)

    def _fuse(self, store: MemoryStore, old: Memory, new: Memory) -> Memory:
        """Replace both memories by their fusion, or the old memory by the new memory if they cannot both hold.

        Both stay if the reply cannot be read. Returns the memory that now represents the new one.
        """
        texts = (old.dated_text, new.dated_text)
        prompt = self.prompts["memos/fuse"]
        reply = ask(self.llm, prompt, texts=texts, old=texts[0], new=texts[1], noted="memos.not_fused")
        if not reply:
            return new
        del store.memories[old.id]
        store.counts["fused"] += 1
        if reply.strip(" .").casefold() == "no":
            return new
        del store.memories[new.id]
        begun, later = old.first.time, new.first.time
        first = old.first if begun is None or later is None or begun <= later else new.first
        fusion = store.written(
            {"value": reply, "memory_type": new.kind}, self.embedder.embed([reply])[0], union((old.sources, new.sources)),
            first, new.last, max(old.level, new.level),
        )  # fmt: skip
        store.add(fusion)
        return fusion

    def _structure(self, store: MemoryStore) -> None:
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
        prompt = self.prompts["memos/split"]
        asks = [(prompt, {"query": "", "options": _numbered(cluster)}) for cluster in clusters]
        for cluster, reply in zip(clusters, ask_all(self.llm, asks, noted="memos.no_groups"), strict=True):
            groups = [group for group in _groups(cluster, reply or {"groups": ()}) if len(group) >= _LEAST_GROUP]
            parents = self._write_parents(store, groups)
            if len(parents) >= _LEAST_PARENTS:
                self._write_parents(store, [parents])

    def _write_parents(self, store: MemoryStore, groups: Sequence[Sequence[Memory]]) -> list[Memory]:
        """Store a new memory over each group for which the model writes one; returns these memories."""
        prompt = self.prompts["memos/parent"]
        replies = ask_all(self.llm, [(prompt, {"texts": [memory.text for memory in group]}) for group in groups])
        parents = []
        for group, reply in zip(groups, replies, strict=True):
            if isinstance(reply, ParseFailure) or not reply["value"].strip():
                meter.note("memos.no_parent")
                continue
            vector = self.embedder.embed([reply["value"].strip()])[0]
            sources, level = union(memory.sources for memory in group), 1 + max(memory.level for memory in group)
            parent = store.written(reply, vector, sources, group[0].first, group[-1].last, level)
            store.add(parent)
            store.parents.update((child.id, parent.id) for child in group)
            store.counts["parents"] += 1
            parents.append(parent)
        return parents

    def read(self, question: Question) -> Recall:
        if not self.held:
            return Recall(())
        stores = self._current()
        query = self.embedder.embed([question.text], query=True)
        queries = (
            self._with_statements(stores, question.text, query) if self.settings.fine_parse else [query] * len(stores)
        )
        hits = [
            store.search(vectors, limit)
            for store, vectors, limit in zip(stores, queries, shares(self.settings.k, len(stores)), strict=True)
        ]
        return Recall(tuple(self._memory_item(memory, score) for view_hits in hits for memory, score in view_hits))

    def _current(self) -> tuple[MemoryStore, ...]:
        """The stores a read uses: with the open windows read, where nothing was written since."""
        return self._stores if self._provisional is None else self._provisional

    def _with_statements(self, stores: Sequence[MemoryStore], question: str, query: np.ndarray) -> list[np.ndarray]:
        """For each view, the question's vector and those of statements that a model expects, given the nearest memories."""
        prompt = self.prompts["memos/parse"]
        contexts = [[memory.text for memory, _ in store.search(query, _CONTEXT)] for store in stores]
        asks = [(prompt, {"text": question, "context": texts or "(none)"}) for texts in contexts]
        replies = ask_all(self.llm, asks, noted="memos.fast_parse")
        statements = [_distinct(reply["memories"], question) if reply else () for reply in replies]
        return [
            np.concatenate([query, self.embedder.embed(texts, query=True)]) if texts else query for texts in statements
        ]

    def _memory_item(self, memory: Memory, score: float) -> Item:
        text = memory.dated_text if self.settings.timestamps else memory.text
        return Item(memory.id, text, score, memory.sources, memory.kind, memory.level)

    def nodes(self) -> Iterator[NodeView]:
        """All memories of all views; those of open windows only after `consolidate`."""
        for store in self._current():
            for memory in store.all().values():
                parent = store.parent(memory.id)
                yield NodeView(
                    memory.id, (parent,) if parent is not None else (), memory.level, memory.kind, memory.text,
                    memory.vector, memory.sources, *period((memory.first, memory.last)),
                )  # fmt: skip

    @property
    def held(self) -> int:
        return sum(len(store) for store in self._current())

    def report(self) -> dict[str, Any]:
        """For each view: memories of each store, windows read, and windows whose reply could not be read."""
        return {
            store.side: {
                "working": len(store.working),
                **{kind: sum(memory.kind == kind for memory in store.memories.values()) for kind in CAPACITY},
                **store.counts,
            }
            for store in self._current()
        }


def _distinct(texts: Iterable[str], question: str) -> tuple[str, ...]:
    """The first different statements that are neither empty nor the question itself."""
    distinct = dict.fromkeys(text for text in texts if text.strip() and text != question)
    return tuple(distinct)[: _VECTORS - 1]


def _line(turn: Turn, unit: Unit, side: Role) -> Line:
    """A message as the view of `side` shows it: `role: [time]: speaker: text`."""
    role = "user" if turn.role == side else "assistant"
    return Line(f"{role}: {f'[{unit.time_text}]: ' if unit.time_text else ''}{spoken(turn)}", turn, unit)
