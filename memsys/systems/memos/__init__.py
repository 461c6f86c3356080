"""MemOS: textual memories read out of windows of messages, kept in a working, a long-term and a user store (Li et al., 2025).

This is the tree-text memory as its authors evaluated it (release of August 2025). Messages fill windows of `window` lines; the last
`overlap` lines of a window begin the next one; the end of a session closes the window. One call lists the memories that the user would keep
of a window. Every memory is held twice: in the short working store, and in the long-term store or the user store (`memos.store`). A search
takes the best of each store by cosine. As in the evaluation, a dialogue is stored twice, with each of its two sides as the user.

`reorganise`, which the evaluation leaves off, fuses memories that contradict or repeat each other and writes parents over groups
(`memos.store.Reorganiser`).

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

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, ClassVar, Literal

import numpy as np

from data_loaders.schema import Question, Role, Turn, Unit
from memsys.embed import Embedder
from memsys.interface import SIDES, Item, MemorySystem, NodeView, Recall, dated, period, shares, spoken
from memsys.llm import meter
from memsys.llm.ask import ParseFailure, ask_all
from memsys.llm.protocol import LLM
from memsys.prompts import Prompts
from memsys.settings import Positive, Settings
from memsys.systems.memos.store import CAPACITY, Line, Memory, MemoryStore, Reorganiser

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
        self._reorganiser = Reorganiser(llm, embedder, prompts)
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
        asks = [(prompt, _window_fields(lines)) for _, lines in windows]
        for (store, lines), reply in zip(windows, ask_all(self.llm, asks), strict=True):
            store.counts["windows"] += 1
            if isinstance(reply, ParseFailure):
                store.counts["unread_windows"] += 1
                meter.note("memos.unread_window")
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
                self._reorganiser.reconcile(store, memory)
        if self.settings.reorganise:
            self._reorganiser.structure(store)

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
        replies = ask_all(self.llm, asks)
        if failed := sum(isinstance(reply, ParseFailure) for reply in replies):
            meter.note("memos.fast_parse", failed)
        statements = [
            () if isinstance(reply, ParseFailure) else _distinct(reply["memories"], question) for reply in replies
        ]
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


def _window_fields(lines: Sequence[Line]) -> dict[str, Any]:
    """The fields of the reading prompt for one window."""
    text = [dated(spoken(line.turn), line.unit.time_text) for line in lines]
    return {"lines": [line.text for line in lines], "text": text}
