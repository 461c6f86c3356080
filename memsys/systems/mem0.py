"""Mem0: facts extracted from every exchange, each of which may add, rewrite or remove a memory (Chhikara et al., 2025, §2.1).

This is the pipeline of the paper, in the release of October 2025; `mem0_v3` is the additive one that followed. For each pair of
messages one call extracts facts about the user; a second one is shown the facts beside the memories most similar to each and says which
to ADD, UPDATE or DELETE. As in the authors' evaluation a dialogue is taken in twice, once with each of its two sides as the user, into
views that share nothing.

`mode` chooses what the two calls are shown:

- `paper`: a running summary and the last 10 messages go into the extraction; 10 similar memories for each fact into the decision.
- `code`: neither summary nor history; 5 similar memories for each fact.

Deviations and decisions:

- Today's date is that of the unit, and so are the times of a memory; the release stamps the clock.
- The instructions that the authors' evaluation adds on LoCoMo (names for "user", the user's own messages only, dates, feelings, detail,
  memories that stand alone as a paragraph each) are part of the prompt in both modes. In `code`, the sections for summary and history say
  "(none)".
- The paper does not say when the summary is renewed: here before the first unit that comes after 10 more messages, one for both views. A
  summary that comes back empty leaves the old one.
- The paper says NOOP for what the release calls NONE.
- Ids in the decision prompt are small numbers, mapped back. An UPDATE or DELETE with any other id, and any item without text, is left
  out and counted; the others of the same reply hold. An unreadable reply changes nothing.
- The time shown is that of the last change. The md5 of the text, which the release stores, has no effect here and is not kept.
- The graph variant is not offered: no table here has it.
- Evidence is the unit: the turns of all units that made or changed a memory.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from data_loaders.schema import Question, Role, Turn, Unit
from memsys.embed import Embedder
from memsys.interface import Item, MemorySystem, NodeView, Recall, dated, known_mode, positive, union
from memsys.llm import meter
from memsys.llm.ask import ask, ask_all
from memsys.llm.parsing import ParseFailure
from memsys.llm.protocol import LLM
from memsys.prompts import Option, Prompts
from memsys.vectors import Vectors, best

NEIGHBOURS = {"paper": 10, "code": 5}
SIDES: Mapping[str, tuple[Role, ...]] = {"both": ("user", "assistant"), "user": ("user",)}
_NONE = "(none)"


@dataclass(frozen=True, slots=True)
class _Memory:
    """A fact as it stands."""

    id: str
    text: str
    created: Unit
    updated: Unit
    sources: tuple[str, ...]


class _View:
    """What is remembered of one side of the dialogue; deleted memories keep their rows and are passed over."""

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
        """The same as items; the time shown is that of the last change."""
        return [self._item(self._memories[number], score) for number, score in self.top(query, k)]

    def add(self, text: str, vector: np.ndarray, unit: Unit) -> None:
        number = self._vectors.add(vector)
        self._memories.append(_Memory(f"{self.side}-{number}", text, unit, unit, unit.turn_ids))

    def update(self, number: int, text: str, vector: np.ndarray, unit: Unit) -> None:
        memory = self._memories[number]
        sources = union((memory.sources, unit.turn_ids))
        self._memories[number] = replace(memory, text=text, updated=unit, sources=sources)
        self._vectors.set(number, vector)

    def delete(self, number: int) -> None:
        self._deleted.add(number)

    def views(self) -> Iterator[NodeView]:
        for number, memory in enumerate(self._memories):
            if number in self:
                times = sorted(unit.time for unit in (memory.created, memory.updated) if unit.time is not None)
                yield NodeView(
                    memory.id, (), 1, f"{self.side}_fact", memory.text, self._vectors.matrix[number].copy(),
                    memory.sources, times[0] if times else None, times[-1] if times else None,
                )  # fmt: skip

    def _item(self, memory: _Memory, score: float) -> Item:
        text = dated(memory.text, memory.updated.time_text)
        return Item(memory.id, text, score, memory.sources, f"{self.side}_fact", level=1)


@dataclass(frozen=True, slots=True)
class _Batch:
    """New facts about one side, and the memories that they are compared with."""

    view: _View
    vectors: Mapping[str, np.ndarray]
    """Of the facts, by text."""
    facts: tuple[str, ...]
    shown: tuple[int, ...]
    """Numbers of the memories; the place in here is the id in the prompt."""

    def fields(self) -> dict[str, Any]:
        options = [Option(str(place), self.view[number].text) for place, number in enumerate(self.shown)]
        return {"memories": options or _NONE, "text": self.facts}

    def target(self, label: object) -> int | None:
        """The memory that an id stands for; None for an id that was not shown and for a memory that is gone."""
        number = {str(place): number for place, number in enumerate(self.shown)}.get(str(label))
        return number if number is not None and number in self.view else None


class Mem0(MemorySystem):
    """Recalls the `k` memories most similar to the question, half of them about each side of the dialogue.

    Args:
        k: at most so many items; the authors' evaluation takes 30 for each of two speakers.
        neighbours: memories looked up for each new fact; None for those of the mode.
        window: earlier messages shown to the extraction, and messages between two summaries (mode `paper`).
        views: `both` sides of the dialogue in turn as the user, or the `user` alone (half the calls).
        per_view: whether each view that holds something gives an equal share of `k` and its items stand together, as in the authors'
            evaluation; else the best `k` of all views by similarity.

    Raises:
        ValueError: an unknown mode or choice of views, or a number below 1.
    """

    READ_KNOBS: ClassVar = ("k", "per_view")
    MODES: ClassVar = ("paper", "code")
    PROMPTS: ClassVar = ("mem0",)
    EMBEDS_UNITS: ClassVar = False
    UNIT: ClassVar = {"rule": "floor_pair", "on_unpaired": "keep_single"}

    def __init__(
        self,
        llm: LLM,
        embedder: Embedder,
        prompts: Prompts,
        mode: Literal["paper", "code"] = "paper",
        k: int = 60,
        neighbours: int | None = None,
        window: int = 10,
        views: Literal["both", "user"] = "both",
        per_view: bool = True,
    ) -> None:
        if views not in SIDES:
            raise ValueError(f"views must be one of {', '.join(SIDES)}, found {views!r}")
        self.llm, self.embedder, self.prompts, self.mode = llm, embedder, prompts, known_mode(self, mode)
        self.k, self.per_view = positive("k", k), per_view
        self.neighbours = positive("neighbours", NEIGHBOURS[mode] if neighbours is None else neighbours)
        self.window = positive("window", window)
        self._views = tuple(_View(side) for side in SIDES[views])
        self._recent: deque[str] = deque(maxlen=window)
        self._unsummarised: list[str] = []
        self._summary = ""
        self._counts: Counter[str] = Counter()

    def write(self, unit: Unit) -> None:
        """Take the unit in, once for each view: at most two calls each. The views change only after every call has succeeded."""
        if self.mode == "paper" and len(self._unsummarised) >= self.window:
            self._summarise()
        batches = self._batches(self._facts(unit))
        prompt = self.prompts["mem0/decide"]
        replies = ask_all(self.llm, [(prompt, batch.fields()) for batch in batches])
        decisions = [self._decisions(reply) for reply in replies]
        vectors = self._vectors(batches, decisions)
        for batch, decided in zip(batches, decisions, strict=True):
            for decision in decided:
                self._carry_out(batch, decision, vectors, unit)
        if self.mode == "paper":
            lines = [_line(turn) for turn in unit.turns]
            self._recent.extend(lines)
            self._unsummarised += lines
        self._counts["units_without_facts"] += not batches

    def read(self, question: Question) -> Recall:
        if not self.held:
            return Recall(())
        query = self.embedder.embed([question.text], query=True)[0]
        if self.per_view:
            views = [view for view in self._views if len(view)]
            share, left = divmod(self.k, len(views))
            found = [view.items(query, share + (place < left)) for place, view in enumerate(views)]
            return Recall(tuple(item for items in found for item in items))
        items = [item for view in self._views for item in view.items(query, self.k)]
        return Recall(tuple(items[place] for place in best([item.score for item in items], self.k)))

    def nodes(self) -> Iterator[NodeView]:
        for view in self._views:
            yield from view.views()

    @property
    def held(self) -> int:
        return sum(map(len, self._views))

    def report(self) -> dict[str, Any]:
        """Memories by side, decisions by event, and what was left out of them."""
        return {**{f"{view.side}_memories": len(view) for view in self._views}, **self._counts}

    def _facts(self, unit: Unit) -> list[tuple[str, ...]]:
        """New facts for each view."""
        prompt = self.prompts["mem0/extract"]
        replies = ask_all(self.llm, [(prompt, self._shown(unit, view.side)) for view in self._views])
        if failed := sum(isinstance(reply, ParseFailure) for reply in replies):
            meter.note("mem0.no_facts", failed)
        return [
            () if isinstance(reply, ParseFailure) else tuple(fact.strip() for fact in reply["facts"] if fact.strip())
            for reply in replies
        ]

    def _shown(self, unit: Unit, side: Role) -> dict[str, Any]:
        """The fields of the extraction; `text` is what the user of this view says."""
        return {
            "date": unit.time_text or "unknown",
            "summary": self._summary or _NONE,
            "earlier": tuple(self._recent) or _NONE,
            "dialogue": [f"{'user' if turn.role == side else 'assistant'}: {_line(turn)}" for turn in unit.turns],
            "text": [_line(turn) for turn in unit.turns if turn.role == side],
        }

    def _batches(self, facts: Sequence[tuple[str, ...]]) -> list[_Batch]:
        """The views with new facts, each fact beside the memories most similar to it."""
        texts = list(dict.fromkeys(fact for found in facts for fact in found))
        vectors = dict(zip(texts, self.embedder.embed(texts), strict=True)) if texts else {}
        batches = []
        for view, found in zip(self._views, facts, strict=True):
            near = (view.top(vectors[fact], self.neighbours) for fact in found)
            shown = tuple(dict.fromkeys(number for ranked in near for number, _ in ranked))
            if found:
                batches.append(_Batch(view, vectors, found, shown))
        return batches

    def _decisions(self, reply: Any) -> list[dict[str, Any]]:
        if isinstance(reply, ParseFailure):
            meter.note("mem0.no_decision")
            return []
        return list(reply["memory"])

    def _vectors(
        self, batches: Sequence[_Batch], decisions: Sequence[Sequence[Mapping[str, Any]]]
    ) -> dict[str, np.ndarray]:
        """Vectors of all texts that may be stored, by text; those of the facts are known."""
        known = {text: vector for batch in batches for text, vector in batch.vectors.items()}
        wanted = [_text(one) for decided in decisions for one in decided if one["event"] in ("ADD", "UPDATE")]
        new = [text for text in dict.fromkeys(wanted) if text and text not in known]
        return known | dict(zip(new, self.embedder.embed(new), strict=True)) if new else known

    def _carry_out(
        self, batch: _Batch, decision: Mapping[str, Any], vectors: Mapping[str, np.ndarray], unit: Unit
    ) -> None:
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
        texts = [self._summary, *self._unsummarised]
        prompt, summary = self.prompts["mem0/summarise"], self._summary or _NONE
        reply = ask(self.llm, prompt, summary=summary, dialogue=self._unsummarised, texts=texts)
        if isinstance(reply, ParseFailure):
            meter.note("mem0.kept_old_summary")
            reply = self._summary
        self._summary, self._unsummarised = reply, []


def _line(turn: Turn) -> str:
    """A message behind its speaker's name, where the speaker has one."""
    return f"{turn.speaker}: {turn.text}" if turn.speaker not in ("", "user", "assistant") else turn.text


def _text(decision: Mapping[str, Any]) -> str:
    return str(decision.get("text", "")).strip()
