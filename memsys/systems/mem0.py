"""Mem0: facts are extracted from every exchange, and each may add, rewrite or remove a memory (Chhikara et al., 2025, §2.1).

This is the pipeline of the paper, in the release of October 2025; `mem0_v3` is the release after it, which only adds memories. For each
pair of messages one call extracts facts about the user. A second call sees the facts with the memories most similar to each and says
which to ADD, UPDATE or DELETE. As in the authors' evaluation, a dialogue is stored twice, with each of its two sides as the user, in
views that share nothing.

`mode` chooses the input of the two calls:

- `paper`: the extraction sees a running summary and the last 10 messages; the decision sees 10 similar memories for each fact.
- `code`: the extraction sees neither summary nor messages; the decision sees 5 similar memories for each fact.

Deviations and decisions:

- Today's date is that of the unit, and so are the times of a memory; the release takes them from the clock.
- The instructions that the authors' evaluation adds on LoCoMo (names for "user", only the user's own messages, dates, feelings, detail,
  memories that stand alone as a paragraph each) are part of the prompt in both modes. In `code`, the sections for summary and messages
  say "(none)".
- The paper does not say when the summary is renewed. Here it is renewed before the first unit after 10 more messages, once for both
  views. An empty reply keeps the old summary.
- The paper's NOOP is NONE in the release.
- Ids in the decision prompt are small numbers that are mapped back. An UPDATE or DELETE with any other id, and any entry without text, is
  skipped and counted; the other entries of the same reply are carried out. A reply that cannot be read changes nothing.
- The time shown is that of the last change. The md5 of the text, which the release stores, has no effect here and is not kept.
- The graph variant is not offered, because no table here has it.
- The evidence of a memory is the turns of all units that made or changed it.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
    shares,
    union,
)
from memsys.llm import meter
from memsys.llm.ask import ask, ask_all
from memsys.llm.protocol import LLM
from memsys.prompts import Option, Prompts
from memsys.vectors import Embedder, Vectors, best

NEIGHBOURS = {"paper": 10, "code": 5}
"""Memories looked up for each new fact, by mode."""
_NONE = "(none)"


@dataclass(frozen=True, slots=True)
class _Memory:
    """A fact in its current wording, with the units that made it and last changed it."""

    id: str
    text: str
    created: Unit
    updated: Unit
    sources: tuple[str, ...]


class _View:
    """The memories of one side of the dialogue. A memory's number is its row; deleted memories keep their rows and are ignored."""

    def __init__(self, side: Role) -> None:
        self.side: Role = side
        self._memories: list[_Memory] = []
        self._vectors = Vectors()
        self._deleted: set[int] = set()

    def __len__(self) -> int:
        return len(self._memories) - len(self._deleted)

    def __contains__(self, number: object) -> bool:
        return number not in self._deleted

    def __getitem__(self, number: int) -> _Memory:
        return self._memories[number]

    def top(self, query: np.ndarray, k: int) -> list[tuple[int, float]]:
        """The `k` memories most similar to the query as (number, cosine), best first."""
        similarities = self._vectors.similarities(query)
        similarities[list(self._deleted)] = -np.inf
        return [(number, float(similarities[number])) for number in best(similarities, k) if number in self]

    def items(self, query: np.ndarray, k: int) -> list[Item]:
        """The `k` most similar memories as items, best first; the time shown is that of the last change."""
        return [self._memory_item(self._memories[number], score) for number, score in self.top(query, k)]

    def add(self, text: str, vector: np.ndarray, unit: Unit) -> None:
        number = self._vectors.add(vector)
        self._memories.append(_Memory(f"{self.side}-{number}", text, unit, unit, unit.turn_ids))

    def update(self, number: int, text: str, vector: np.ndarray, unit: Unit) -> None:
        memory = self._memories[number]
        sources = union((memory.sources, unit.turn_ids))
        self._memories[number] = replace(memory, text=text, updated=unit, sources=sources)
        self._vectors.matrix[number] = vector

    def delete(self, number: int) -> None:
        self._deleted.add(number)

    def views(self) -> Iterator[NodeView]:
        """The memories as nodes."""
        for number, memory in enumerate(self._memories):
            if number in self:
                yield NodeView(
                    memory.id, (), 1, f"{self.side}_fact", memory.text, self._vectors.matrix[number].copy(),
                    memory.sources, *period((memory.created, memory.updated)),
                )  # fmt: skip

    def _memory_item(self, memory: _Memory, score: float) -> Item:
        text = dated(memory.text, memory.updated.time_text)
        return Item(memory.id, text, score, memory.sources, f"{self.side}_fact", level=1)


@dataclass(frozen=True, slots=True)
class _Batch:
    """New facts about one side, and the memories they are compared with."""

    view: _View
    vectors: Mapping[str, np.ndarray]
    """Vectors of the facts by text."""
    facts: tuple[str, ...]
    neighbours: tuple[int, ...]
    """Numbers of the memories; a memory's id in the prompt is its place in this tuple."""

    def fields(self) -> dict[str, Any]:
        """The fields of the decision prompt."""
        options = [Option(str(place), self.view[number].text) for place, number in enumerate(self.neighbours)]
        return {"memories": options or _NONE, "text": self.facts}

    def target(self, label: object) -> int | None:
        """The number of the memory with that id; None for an id that was not shown and for a deleted memory."""
        number = {str(place): number for place, number in enumerate(self.neighbours)}.get(str(label))
        return number if number is not None and number in self.view else None


@dataclass(frozen=True)
class Mem0Settings(Settings):
    mode: Literal["paper", "code"] = "paper"
    """`paper` or `code`, see the module."""
    k: Positive = 60
    """Maximum number of items of a recall; the authors' evaluation takes 30 for each of two speakers."""
    neighbours: Positive | None = None
    """Memories looked up for each new fact; None for the mode's number."""
    window: Positive = 10
    """Earlier messages shown to the extraction, and messages between two summaries (mode `paper`)."""
    views: Literal["both", "user"] = "both"
    """`both` sides of the dialogue as the user in turn, or only the `user` (half the calls)."""
    per_view: bool = True
    """Whether each view that has memories gives an equal share of `k`, its items together, as in the authors' evaluation; if not, the
    best `k` of all views by similarity are recalled."""


class Mem0(MemorySystem):
    """Recalls the `k` memories most similar to the question, half of them about each side of the dialogue."""

    READ_KNOBS: ClassVar = ("k", "per_view")
    MODES: ClassVar = ("paper", "code")
    PROMPTS: ClassVar = ("mem0",)
    EMBEDS_UNITS: ClassVar = False
    UNIT: ClassVar = {"rule": "floor_pair", "on_unpaired": "keep_single"}

    def __init__(self, llm: LLM, embedder: Embedder, prompts: Prompts, settings: Mem0Settings = Mem0Settings()) -> None:
        self.llm, self.embedder, self.prompts, self.settings = llm, embedder, prompts, settings
        self.neighbours = NEIGHBOURS[settings.mode] if settings.neighbours is None else settings.neighbours
        self._views = tuple(_View(side) for side in SIDES[settings.views])
        self._recent: deque[str] = deque(maxlen=settings.window)
        self._unsummarised: list[str] = []
        self._summary = ""
        self._counts: Counter[str] = Counter()

    def write(self, unit: Unit) -> None:
        """Update each view with the unit: at most two calls per view. Views change only after every call has succeeded."""
        if self.settings.mode == "paper" and len(self._unsummarised) >= self.settings.window:
            self._summarise()
        batches = self._batches(self._facts(unit))
        prompt = self.prompts["mem0/decide"]
        replies = ask_all(self.llm, [(prompt, batch.fields()) for batch in batches], noted="mem0.no_decision")
        decisions = [list(reply["memory"]) if reply else [] for reply in replies]
        vectors = self._vectors(batches, decisions)
        for batch, entries in zip(batches, decisions, strict=True):
            for decision in entries:
                self._carry_out(batch, decision, vectors, unit)
        if self.settings.mode == "paper":
            lines = [_line(turn) for turn in unit.turns]
            self._recent.extend(lines)
            self._unsummarised += lines
        self._counts["units_without_facts"] += not batches

    def read(self, question: Question) -> Recall:
        if not self.held:
            return Recall(())
        query = self.embedder.embed([question.text], query=True)[0]
        if self.settings.per_view:
            views = [view for view in self._views if len(view)]
            limits = shares(self.settings.k, len(views))
            return Recall(
                tuple(item for view, limit in zip(views, limits, strict=True) for item in view.items(query, limit))
            )
        items = [item for view in self._views for item in view.items(query, self.settings.k)]
        return Recall(tuple(items[place] for place in best([item.score for item in items], self.settings.k)))

    def nodes(self) -> Iterator[NodeView]:
        for view in self._views:
            yield from view.views()

    @property
    def held(self) -> int:
        return sum(map(len, self._views))

    def report(self) -> dict[str, Any]:
        """Counts of memories by side, of decisions by event, and of decisions that were skipped."""
        return {**{f"{view.side}_memories": len(view) for view in self._views}, **self._counts}

    def _facts(self, unit: Unit) -> list[tuple[str, ...]]:
        """New facts for each view."""
        prompt = self.prompts["mem0/extract"]
        asks = [(prompt, self._extraction_fields(unit, view.side)) for view in self._views]
        return [
            tuple(fact.strip() for fact in reply["facts"] if fact.strip()) if reply else ()
            for reply in ask_all(self.llm, asks, noted="mem0.no_facts")
        ]

    def _extraction_fields(self, unit: Unit, side: Role) -> dict[str, Any]:
        """The fields of the extraction prompt; `text` holds the messages of this view's user."""
        return {
            "date": unit.time_text or "unknown",
            "summary": self._summary or _NONE,
            "earlier": tuple(self._recent) or _NONE,
            "dialogue": [f"{'user' if turn.role == side else 'assistant'}: {_line(turn)}" for turn in unit.turns],
            "text": [_line(turn) for turn in unit.turns if turn.role == side],
        }

    def _batches(self, facts: Sequence[tuple[str, ...]]) -> list[_Batch]:
        """The views with new facts, each fact with the memories most similar to it."""
        texts = list(dict.fromkeys(fact for view_facts in facts for fact in view_facts))
        vectors = dict(zip(texts, self.embedder.embed(texts), strict=True)) if texts else {}
        batches = []
        for view, view_facts in zip(self._views, facts, strict=True):
            rankings = (view.top(vectors[fact], self.neighbours) for fact in view_facts)
            neighbours = tuple(dict.fromkeys(number for ranking in rankings for number, _ in ranking))
            if view_facts:
                batches.append(_Batch(view, vectors, view_facts, neighbours))
        return batches

    def _vectors(
        self, batches: Sequence[_Batch], decisions: Sequence[Sequence[Mapping[str, Any]]]
    ) -> dict[str, np.ndarray]:
        """Vectors of all texts that may be stored, by text; texts other than the facts are embedded here."""
        known = {text: vector for batch in batches for text, vector in batch.vectors.items()}
        stored = [_text(entry) for entries in decisions for entry in entries if entry["event"] in ("ADD", "UPDATE")]
        new = [text for text in dict.fromkeys(stored) if text and text not in known]
        return known | dict(zip(new, self.embedder.embed(new), strict=True)) if new else known

    def _carry_out(
        self, batch: _Batch, decision: Mapping[str, Any], vectors: Mapping[str, np.ndarray], unit: Unit
    ) -> None:
        """Apply one decision to the batch's view, and count it by its event."""
        event, text, target = decision["event"], _text(decision), batch.target(decision.get("id"))
        if event == "NONE":
            pass
        elif not text or (event != "ADD" and target is None):
            event = "skipped"
            meter.note("mem0.skipped_decision")
        elif event == "ADD":
            batch.view.add(text, vectors[text], unit)
        elif target is not None and event == "UPDATE":
            batch.view.update(target, text, vectors[text], unit)
        elif target is not None:
            batch.view.delete(target)
        self._counts[event.lower()] += 1

    def _summarise(self) -> None:
        """Rewrite the summary with the messages since it was written."""
        texts = [self._summary, *self._unsummarised]
        fields: dict[str, Any] = {"summary": self._summary or _NONE, "dialogue": self._unsummarised, "texts": texts}
        reply = ask(self.llm, self.prompts["mem0/summarise"], noted="mem0.kept_old_summary", **fields)
        self._summary, self._unsummarised = reply or self._summary, []


def _line(turn: Turn) -> str:
    """A message with its speaker's name in front, if the speaker has one."""
    return f"{turn.speaker}: {turn.text}" if turn.speaker not in ("", "user", "assistant") else turn.text


def _text(decision: Mapping[str, Any]) -> str:
    return str(decision.get("text", "")).strip()
