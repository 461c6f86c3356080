"""MemOS: textual memories read out of windows of messages, kept in a working, a long-term and a user store (Li et al., 2025).

This is the tree-text memory as its authors evaluated it (release of August 2025). Messages fill windows of `window` lines, of which the
last `overlap` begin the next window; what is left at the end of a session is a window, too. One call lists what the user would remember
of a window. Every memory is held twice: in the working store, which is short, and in the long-term store or that of the user. A search
takes the best of each store by cosine. As in the evaluation a dialogue is taken in twice, once from the view of each of its two sides.

`reorganise`, which the evaluation leaves off, merges memories that contradict or repeat each other, and writes parents over groups.

Deviations and decisions:

- Windows are stored in their order (the release reads them in threads and stores them as they come in). A window that is open when
  questions are due is read provisionally: further lines find the stores without it.
- A copy in the working store has the text of its original and cannot be told apart in a recall; it is counted once in `held`.
- A reply that cannot be read gives no memories. An unknown type of memory is long-term.
- The summary of a window is asked for, as released, but nothing reads it.
- A memory's key and tags are asked for, as released, and not kept. The release recalls by them, too, but then ranks everything by cosine
  and keeps no more than the 2 · k that it has recalled by cosine already: they cannot change a result.
- With `fine_parse` the release ranks by the first of several vectors; if that is the question's, what it finds is what the fast search
  finds, for the same reason. Here a memory counts with its best cosine. The reply is JSON (the release evaluates it as Python) and holds
  the statements only.
- Recalled memories show no time beyond what their text says, as in the evaluation, unless `timestamps`.
- A structure pass (periodic in the release) is made after a window when 20 memories have come since the last and 20 have no parent. A group
  has at most 10 members, each memory belongs to one; clusters that cannot be divided are cut by 20. Fused memories replace both
  originals; where the fusion cannot be read both stay. The clustering is seeded with 0.
- Full-text recall, tool and preference memories of later releases are not part of the evaluated version.
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
from memsys.embed import Embedder
from memsys.interface import Item, MemorySystem, NodeView, Recall, dated, one_of, positive, union
from memsys.llm import meter
from memsys.llm.ask import ask, ask_all
from memsys.llm.parsing import ParseFailure
from memsys.llm.protocol import LLM
from memsys.prompts import Option, Prompts
from memsys.vectors import best

SIDES: Mapping[str, tuple[Role, ...]] = {"both": ("user", "assistant"), "user": ("user",)}
CAPACITY = {"long_term": 1500, "user": 480}
WORKING = 20
_CONTEXT, _VECTORS = 5, 5
_NEAR, _ALIKE = 5, 0.8
_CLUSTER, _LEAST_CLUSTER, _GROUP, _LEAST_GROUP, _LEAST_PARENTS = 20, 10, 10, 4, 4
_PASS = 20


@dataclass(frozen=True, slots=True)
class _Line:
    """A message as a window shows it."""

    text: str
    turn: Turn
    unit: Unit


@dataclass(frozen=True, slots=True)
class _Node:
    """A memory."""

    id: str
    text: str
    kind: str
    vector: np.ndarray
    sources: tuple[str, ...]
    first: Unit
    last: Unit
    level: int = 1

    @property
    def time_text(self) -> str:
        return " – ".join(dict.fromkeys(unit.time_text for unit in (self.first, self.last) if unit.time_text))


@dataclass(slots=True)
class _Store:
    """What is remembered from the view of one side."""

    side: Role
    lines: list[_Line] = field(default_factory=list)
    """The open window."""
    nodes: dict[str, _Node] = field(default_factory=dict)
    """The long-term and the user store, oldest first."""
    working: deque[_Node] = field(default_factory=lambda: deque(maxlen=WORKING))
    parents: dict[str, str] = field(default_factory=dict)
    made: int = 0
    unstructured: int = 0
    """Memories that have come since the last structure pass."""
    counts: Counter[str] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self.nodes) + sum(node.id not in self.nodes for node in self.working)

    def copy(self) -> _Store:
        return _Store(
            self.side, list(self.lines), dict(self.nodes), self.working.copy(), dict(self.parents), self.made,
            self.unstructured, self.counts.copy(),
        )  # fmt: skip

    def parent(self, name: str) -> str | None:
        parent = self.parents.get(name)
        return parent if parent in self.nodes else None

    def add(self, node: _Node) -> None:
        """Store the memory; beyond the capacity of its store the oldest goes."""
        self.nodes[node.id] = node
        self.made += 1
        alike = [name for name, other in self.nodes.items() if other.kind == node.kind]
        if len(alike) > CAPACITY[node.kind]:
            del self.nodes[alike[0]]

    def all(self) -> dict[str, _Node]:
        """Every memory that a search can find."""
        return {node.id: node for node in (*self.nodes.values(), *self.working)}


class MemOS(MemorySystem):
    """Recalls the `k` memories nearest to the question, half of them from each view of the dialogue.

    Args:
        k: at most so many items; the evaluation takes 20 from each view.
        views: `both` sides of the dialogue in turn as the user, or the `user` alone (half the calls).
        window, overlap: lines of a window, and how many of them begin the next.
        fine_parse: whether a model first words statements to search by, beside the question (one call for each view).
        reorganise: whether memories are fused and structured; needs scikit-learn.
        timestamps: whether a recalled memory shows when it was told.

    Raises:
        ValueError: an unknown choice of views, or a number out of range.
        ImportError: `reorganise` without scikit-learn.
    """

    READ_KNOBS: ClassVar = ("k", "fine_parse", "timestamps")
    PROMPTS: ClassVar = ("memos",)
    EMBEDS_UNITS: ClassVar = False
    UNIT: ClassVar = {"rule": "utterance"}

    def __init__(
        self,
        llm: LLM,
        embedder: Embedder,
        prompts: Prompts,
        k: int = 40,
        views: Literal["both", "user"] = "both",
        window: int = 10,
        overlap: int = 2,
        fine_parse: bool = False,
        reorganise: bool = False,
        timestamps: bool = False,
    ) -> None:
        if not 0 <= overlap < window:
            raise ValueError(f"overlap must be at least 0 and smaller than the window {window}, found {overlap}")
        if reorganise and find_spec("sklearn") is None:
            raise ImportError("reorganise needs scikit-learn: pip install memsys-bench[cluster]")
        self.llm, self.embedder, self.prompts = llm, embedder, prompts
        self.k, self.views = positive("k", k), one_of("views", views, tuple(SIDES))
        self.window, self.overlap = window, overlap
        self.fine_parse, self.reorganise, self.timestamps = fine_parse, reorganise, timestamps
        self._stores = tuple(_Store(side) for side in SIDES[views])
        self._session: str | None = None
        self._shown: tuple[_Store, ...] | None = None

    # --- construction ---------------------------------------------------------------------------------------------

    def write(self, unit: Unit) -> None:
        """Add the unit's turns to the windows; one call for each window and view that is full."""
        self._shown = None
        if self._session not in (None, unit.session_id):
            self._close(self._stores)
        self._session = unit.session_id
        full: list[tuple[_Store, list[_Line]]] = []
        for turn in unit.turns:
            for store in self._stores:
                store.lines.append(_line(turn, unit, store.side))
                if len(store.lines) == self.window:
                    full.append((store, store.lines))
                    store.lines = store.lines[self.window - self.overlap :]
        self._read_windows(full)

    def end_session(self, session_id: str) -> None:
        self._shown = None
        self._close(self._stores)
        self._session = None

    def consolidate(self) -> None:
        """Read the open windows, on a copy of the stores."""
        if self._shown is None:
            stores = tuple(store.copy() for store in self._stores)
            self._close(stores)
            self._shown = stores

    def _close(self, stores: Sequence[_Store]) -> None:
        left = [(store, store.lines) for store in stores if store.lines]
        for store in stores:
            store.lines = []
        self._read_windows(left)

    def _read_windows(self, windows: Sequence[tuple[_Store, list[_Line]]]) -> None:
        """Store what is remembered of each window, in order."""
        prompt = self.prompts["memos/read"]
        asks = [(prompt, _window_fields(lines)) for _, lines in windows]
        for (store, lines), reply in zip(windows, ask_all(self.llm, asks), strict=True):
            store.counts["windows"] += 1
            if isinstance(reply, ParseFailure):
                store.counts["unread_windows"] += 1
                meter.note("memos.unread_window")
                continue
            self._remember(store, lines, [item for item in reply["memory list"] if item["value"].strip()])

    def _remember(self, store: _Store, lines: Sequence[_Line], items: Sequence[Mapping[str, Any]]) -> None:
        if not items:
            return
        vectors = self.embedder.embed([item["value"].strip() for item in items])
        sources = tuple(dict.fromkeys(line.turn.id for line in lines))
        for item, vector in zip(items, vectors, strict=True):
            node = _node(store, item, vector, sources, lines[0].unit, lines[-1].unit)
            store.working.append(node)
            store.add(node)
            store.unstructured += 1
            if self.reorganise:
                self._reconcile(store, node)
        if self.reorganise and store.unstructured >= _PASS:
            self._structure(store)

    # --- reorganisation -------------------------------------------------------------------------------------------

    def _reconcile(self, store: _Store, node: _Node) -> None:
        """Fuse the new memory with those nearby that it contradicts or repeats."""
        others = [other for other in store.nodes.values() if other.id != node.id]
        if not others:
            return
        similarities = np.stack([other.vector for other in others]) @ node.vector
        near = [others[index] for index in best(similarities, _NEAR) if similarities[index] >= _ALIKE]
        prompt = self.prompts["memos/relation"]
        relations = ask_all(self.llm, [(prompt, {"history": other.text, "new": node.text}) for other in near])
        for other, relation in zip(near, relations, strict=True):
            if isinstance(relation, ParseFailure):
                meter.note("memos.unknown_relation")
            elif relation != "independent":
                node = self._fused(store, other, node)

    def _fused(self, store: _Store, old: _Node, new: _Node) -> _Node:
        """What takes the place of the two: their fusion, or the newer where they cannot both hold; both stay where it cannot be read."""
        texts = (_with_time(old), _with_time(new))
        reply = ask(self.llm, self.prompts["memos/fuse"], texts=texts, old=texts[0], new=texts[1])
        if isinstance(reply, ParseFailure):
            meter.note("memos.not_fused")
            return new
        del store.nodes[old.id]
        store.counts["fused"] += 1
        if reply.strip(" .").casefold() == "no":
            return new
        del store.nodes[new.id]
        item = {"value": reply, "memory_type": new.kind}
        sources = union((old.sources, new.sources))
        first = old.first if _starts_before(old.first, new.first) else new.first
        node = _node(store, item, self.embedder.embed([reply])[0], sources, first, new.last, max(old.level, new.level))
        store.add(node)
        return node

    def _structure(self, store: _Store) -> None:
        """Write parents over groups of memories that have none."""
        loose = [node for node in store.nodes.values() if store.parent(node.id) is None]
        if len(loose) < _PASS:
            return
        store.unstructured = 0
        clusters = [
            [loose[index] for index in members]
            for members in partition(np.stack([node.vector for node in loose]))
            if len(members) > _LEAST_CLUSTER
        ]
        prompt = self.prompts["memos/split"]
        asks = [(prompt, {"query": "", "options": _numbered(cluster)}) for cluster in clusters]
        for cluster, reply in zip(clusters, ask_all(self.llm, asks), strict=True):
            if isinstance(reply, ParseFailure):
                meter.note("memos.no_groups")
                continue
            parents = self._parents(store, [one for one in _groups(cluster, reply) if len(one) >= _LEAST_GROUP])
            if len(parents) >= _LEAST_PARENTS:
                self._parents(store, [parents])

    def _parents(self, store: _Store, groups: Sequence[Sequence[_Node]]) -> list[_Node]:
        """A new memory over each group, as far as the model writes one."""
        prompt = self.prompts["memos/parent"]
        replies = ask_all(self.llm, [(prompt, {"texts": [node.text for node in group]}) for group in groups])
        parents = []
        for group, reply in zip(groups, replies, strict=True):
            if isinstance(reply, ParseFailure) or not reply["value"].strip():
                meter.note("memos.no_parent")
                continue
            vector = self.embedder.embed([reply["value"].strip()])[0]
            sources, level = union(node.sources for node in group), 1 + max(node.level for node in group)
            node = _node(store, reply, vector, sources, group[0].first, group[-1].last, level)
            store.add(node)
            store.parents.update((child.id, node.id) for child in group)
            store.counts["parents"] += 1
            parents.append(node)
        return parents

    # --- recall ---------------------------------------------------------------------------------------------------

    def read(self, question: Question) -> Recall:
        stores = self._view()
        share, left = divmod(self.k, len(stores))
        limits = [share + (place < left) for place in range(len(stores))]
        if not self.held:
            return Recall(())
        query = self.embedder.embed([question.text], query=True)
        vectors = self._widened(stores, question.text, query) if self.fine_parse else [query] * len(stores)
        found = [_search(store, by, limit) for store, by, limit in zip(stores, vectors, limits, strict=True)]
        return Recall(tuple(self._item(node, score) for memories in found for node, score in memories))

    def _view(self) -> tuple[_Store, ...]:
        return self._stores if self._shown is None else self._shown

    def _widened(self, stores: Sequence[_Store], question: str, query: np.ndarray) -> list[np.ndarray]:
        """For each view the question's vector with those of statements that a model expects, given the nearest memories."""
        prompt = self.prompts["memos/parse"]
        near = [[node.text for node, _ in _search(store, query, _CONTEXT)] for store in stores]
        replies = ask_all(self.llm, [(prompt, {"text": question, "context": texts or "(none)"}) for texts in near])
        if failed := sum(isinstance(reply, ParseFailure) for reply in replies):
            meter.note("memos.fast_parse", failed)
        statements = [
            () if isinstance(reply, ParseFailure) else _different(reply["memories"], question) for reply in replies
        ]
        return [
            np.concatenate([query, self.embedder.embed(texts, query=True)]) if texts else query for texts in statements
        ]

    def _item(self, node: _Node, score: float) -> Item:
        text = _with_time(node) if self.timestamps else node.text
        return Item(node.id, text, score, node.sources, node.kind, node.level)

    # --- structure ------------------------------------------------------------------------------------------------

    def nodes(self) -> Iterator[NodeView]:
        """All memories of all views; those of open windows after `consolidate` only."""
        for store in self._view():
            for node in store.all().values():
                parent = store.parent(node.id)
                above = (parent,) if parent is not None else ()
                times = [unit.time for unit in (node.first, node.last) if unit.time is not None]
                yield NodeView(
                    node.id, above, node.level, node.kind, node.text, node.vector, node.sources,
                    min(times, default=None), max(times, default=None),
                )  # fmt: skip

    @property
    def held(self) -> int:
        return sum(len(store) for store in self._view())

    def report(self) -> dict[str, Any]:
        """For each view: memories of each store, windows read, and those that gave nothing readable."""
        return {
            store.side: {
                "working": len(store.working),
                **{kind: sum(node.kind == kind for node in store.nodes.values()) for kind in CAPACITY},
                **store.counts,
            }
            for store in self._view()
        }


def partition(vectors: np.ndarray) -> list[list[int]]:
    """Rows in clusters of at most 20, by recursive mini-batch k-means with k = ⌈n / 20⌉."""
    from sklearn.cluster import MiniBatchKMeans

    found: list[list[int]] = []
    waiting = [list(range(len(vectors)))]
    while waiting:
        rows = waiting.pop(0)
        if len(rows) <= _CLUSTER:
            found.append(rows)
            continue
        count = min(math.ceil(len(rows) / _CLUSTER), len(np.unique(vectors[rows], axis=0)))
        labels = MiniBatchKMeans(count, random_state=0, n_init=3).fit_predict(vectors[rows])
        parts = [[row for row, label in zip(rows, labels, strict=True) if label == one] for one in np.unique(labels)]
        if len(parts) == 1:
            parts = [rows[first : first + _CLUSTER] for first in range(0, len(rows), _CLUSTER)]
        waiting += parts
    return found


def _search(store: _Store, vectors: np.ndarray, k: int) -> list[tuple[_Node, float]]:
    """The `k` memories with different texts that are nearest to any of the vectors, with that cosine, best first."""
    nodes = list(store.all().values())
    if not nodes or k < 1:
        return []
    cosines = (np.stack([node.vector for node in nodes]) @ vectors.T).max(axis=1)
    working = {node.id for node in store.working}
    found = set(_top([place for place, node in enumerate(nodes) if node.id in working], cosines, k))
    for kind in CAPACITY:
        stored = [place for place, node in enumerate(nodes) if node.kind == kind and node.id in store.nodes]
        found.update(_top(stored, cosines, 2 * k))
    texts: dict[str, int] = {}
    for place in sorted(found, key=lambda place: (-cosines[place], place)):
        texts.setdefault(nodes[place].text, place)
    return [(nodes[place], float(cosines[place])) for place in list(texts.values())[:k]]


def _top(places: Sequence[int], scores: np.ndarray, k: int) -> list[int]:
    return [places[index] for index in best(scores[list(places)], k)]


def _different(texts: Iterable[str], question: str) -> tuple[str, ...]:
    different = dict.fromkeys(text for text in texts if text.strip() and text != question)
    return tuple(different)[: _VECTORS - 1]


def _line(turn: Turn, unit: Unit, side: Role) -> _Line:
    role = "user" if turn.role == side else "assistant"
    content = f"{turn.speaker}: {turn.text}" if turn.speaker else turn.text
    return _Line(f"{role}: {f'[{unit.time_text}]: ' if unit.time_text else ''}{content}", turn, unit)


def _window_fields(lines: Sequence[_Line]) -> dict[str, Any]:
    said = ((line, f"{line.turn.speaker}: " if line.turn.speaker else "") for line in lines)
    text = [dated(name + line.turn.text, line.unit.time_text) for line, name in said]
    return {"lines": [line.text for line in lines], "text": text}


def _node(
    store: _Store, item: Mapping[str, Any], vector: np.ndarray, sources: tuple[str, ...], first: Unit, last: Unit,
    level: int = 1,
) -> _Node:  # fmt: skip
    """A memory of the store from what a model gives."""
    kind = "user" if item.get("memory_type") in ("UserMemory", "user") else "long_term"
    return _Node(f"{store.side}-{store.made}", item["value"].strip(), kind, vector, sources, first, last, level)


def _numbered(nodes: Sequence[_Node]) -> list[Option]:
    return [Option(str(number), node.text) for number, node in enumerate(nodes, start=1)]


def _groups(cluster: Sequence[_Node], reply: Mapping[str, Any]) -> list[list[_Node]]:
    """The groups that a reply names, each memory in the first that claims it, at most 10 in one."""
    free = dict(enumerate(cluster, start=1))
    groups = []
    for group in reply["groups"]:
        ids = [number for number in dict.fromkeys(group["ids"]) if number in free][:_GROUP]
        groups.append([free.pop(number) for number in ids])
    return groups


def _with_time(node: _Node) -> str:
    return dated(node.text, node.time_text)


def _starts_before(unit: Unit, other: Unit) -> bool:
    return unit.time is None or other.time is None or unit.time <= other.time
