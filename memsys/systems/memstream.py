"""MemoryStream: a flat list of rated memories, recalled by recency, relevance and importance (Generative Agents, Park et al., 2023, §4).

Every unit is rated once for importance. A recall ranks memories by the sum of three terms, each scaled to [0, 1] over all memories. With
`reflections`, the agent stops whenever the importance of new events adds up to `trigger`, asks itself three questions and stores the
insights it finds. The baseline of MemTree's tables (Rezazadeh et al., 2024, §4.2, App. A.3.4) is a flat list with one call per insertion,
so without reflections. We read it as ranked by relevance alone (`conf/memory/memstream_relevance.yaml`): MemTree's §1 speaks of similarity
only, and with recency almost nothing of the first 80 of 200 rounds is recalled, of which its Table 2 shows no sign.

`mode` chooses the recency term and the weights (recency, relevance, importance):

- `paper`: 0.995 per hour since the last access; weights 1, 1, 1.
- `code`: the release of 2023. 0.99^rank, where rank 1 is the memory accessed *longest ago*, so the term is reversed; weights 0.5, 3, 2.
  Texts with "is idle" get importance 1 without a call; texts with the word "idle" are never recalled. A reflection looks at the memories
  added since the last reflection.
- `genagents`: the release of 2024. 0.99 per insertion since the last access; weights 0, 1, 0.5; a recall is in the order of creation.

Deviations and decisions:

- Hours are counted from the first unit's time. Where that has none, and in `genagents`, one unit is one unit of time; `report` says which.
- Ages are measured from the most recent access, not from the question: the scaling removes the difference.
- A read does not count as an access unless `mutate_on_read` is set: otherwise answers would depend on the order of the questions.
  Memories that a reflection looks up do count as accessed.
- The releases recall 30 and 120 memories, the paper as many as fit. Ours is MemTree's setting: k = 10 within 8192 tokens. The first item
  that exceeds the budget ends the recall; if it is the very first item, it is cut.
- Only events count towards a reflection, not insights, as released. A unit is an event; chats are not a separate kind.
- The importance is 4 where three attempts give no number from 1 to 10. Where questions cannot be read, one general question is used
  three times; where insights cannot be read, none are stored (the release stores a placeholder).
- There are no subject-predicate-object triples and no expiry: the release makes and stores them, but they have no effect on the recall.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Literal

import numpy as np

from data_loaders.schema import Question, Unit
from memsys.interface import Item, MemorySystem, NodeView, Positive, Recall, Settings, dated, union, unit_item
from memsys.llm import meter
from memsys.llm.ask import ask, ask_all
from memsys.llm.protocol import LLM
from memsys.prompts import Option, Prompts
from memsys.systems.memtree import within_budget
from memsys.vectors import Embedder, Vectors, best, scaled

Mode = Literal["paper", "code", "genagents"]
DECAY = {"paper": 0.995, "code": 0.99, "genagents": 0.99}
WEIGHTS = {"paper": (1.0, 1.0, 1.0), "code": (0.5, 3.0, 2.0), "genagents": (0.0, 1.0, 0.5)}
_UNRATED = 4
"""Importance of a memory whose rating cannot be read."""
_ATTEMPTS = 3
_GENERAL_QUESTION = "What do these memories say about the people in them?"


@dataclass(frozen=True, slots=True)
class _Memory:
    """An event (a unit) or a thought (an insight of a reflection)."""

    text: str
    unit: Unit
    """The event's unit; for a thought, the last unit before it."""
    importance: int
    sources: tuple[str, ...]
    evidence: tuple[int, ...] = ()
    """Numbers of the memories that a thought rests on."""
    depth: int = 0
    """0 for an event; for a thought, 1 more than for its deepest evidence."""


@dataclass(frozen=True)
class MemoryStreamSettings(Settings):
    mode: Mode = "paper"
    """`paper`, `code` or `genagents`, see the module."""
    k: Positive = 10
    """Maximum number of items of a recall."""
    max_tokens: Positive | None = 8192
    """Budget of the recalled texts (o200k tokens), None for no limit."""
    weights: Sequence[float] | None = None
    """Weights of recency, relevance and importance; None for the mode's. (0, 1, 0) ranks by relevance only."""
    decay: float | None = None
    """Factor of recency per unit of time; None for the mode's."""
    reflections: bool = False
    """Whether the agent reflects."""
    trigger: Positive = 150
    """Sum of importance that starts a reflection."""
    window: Positive = 100
    """Number of recent memories from which a reflection draws its questions (mode `paper`)."""
    reflection_k: Positive = 30
    """Memories recalled for each of these questions; 30 as released."""
    identity: str = "an assistant who takes part in the conversation"
    """The description of the agent in the prompts."""
    mutate_on_read: bool = False
    """Whether a recall counts as an access; the questions must then come in order."""


class MemoryStream(MemorySystem):
    """Recalls the `k` memories with the highest sum of recency, relevance and importance, best first."""

    READ_KNOBS: ClassVar = ("k", "max_tokens")  # reflections rank by `weights` and `decay`, too
    MODES: ClassVar = ("paper", "code", "genagents")
    PROMPTS: ClassVar = ("memstream",)
    ENTRIES: ClassVar = "_memories"

    def __init__(
        self, llm: LLM, embedder: Embedder, prompts: Prompts, settings: MemoryStreamSettings = MemoryStreamSettings()
    ) -> None:
        self.llm, self.embedder, self.prompts, self.settings = llm, embedder, prompts, settings
        self._memories: list[_Memory] = []
        self._vectors = Vectors()
        self._accessed: list[float] = []
        self._origin: datetime | None = None
        self._time = 0.0
        self._events = 0
        self._until_reflection = settings.trigger
        self._new_events = 0
        self._reflected = 0
        self._unrated = 0

    def write(self, unit: Unit) -> None:
        """Rate the unit and append it; reflect when the importance since the last reflection reaches the trigger."""
        vector = self.embedder.embed([unit.text])[0]
        idle = self.settings.mode == "code" and "is idle" in unit.text
        importance = 1 if idle else self._rate([unit.text])[0]
        if not self._events and self.settings.mode != "genagents":
            self._origin = unit.time
        self._time = self._now(unit.time)
        self._events += 1
        self._append(_Memory(unit.text, unit, importance, unit.turn_ids), vector)
        self._until_reflection -= importance
        self._new_events += 1
        if self.settings.reflections and self._until_reflection <= 0:
            self._reflect(unit)
            self._until_reflection, self._new_events = self.settings.trigger, 0

    def read(self, question: Question) -> Recall:
        if not self._memories:
            return Recall(())
        query = self.embedder.embed([question.text], query=True)[0]
        ranked = self._ranked(query, self.settings.k)
        if self.settings.mutate_on_read:
            self._mark_accessed((index for index, _ in ranked), self._now(question.time))
        ordered = sorted(ranked) if self.settings.mode == "genagents" else ranked
        return Recall(
            within_budget((self._memory_item(index, score) for index, score in ordered), self.settings.max_tokens)
        )

    def nodes(self) -> Iterator[NodeView]:
        """Events and thoughts; a memory's parents are the thoughts that cite it."""
        citing: dict[int, list[str]] = {}
        for index, memory in enumerate(self._memories):
            for evidence in memory.evidence:
                citing.setdefault(evidence, []).append(self._name(index))
        for index, memory in enumerate(self._memories):
            kind = "thought" if memory.depth else "leaf"
            yield NodeView(
                self._name(index), tuple(citing.get(index, ())), memory.depth, kind, memory.text,
                self._vectors.matrix[index].copy(), memory.sources, memory.unit.time, memory.unit.time,
            )  # fmt: skip

    def report(self) -> dict[str, Any]:
        """Counts, the mean importance, and the unit of time in which recency is measured."""
        return {
            "events": self._events,
            "thoughts": len(self._memories) - self._events,
            "reflections": self._reflected,
            "default_importance": self._unrated,
            "mean_importance": sum(memory.importance for memory in self._memories) / max(1, len(self._memories)),
            "time_unit": "unit" if self._origin is None else "hour",
        }

    def _now(self, time: datetime | None) -> float:
        """Hours since the first unit; the number of units written where the first has no time. A missing time is the last unit's."""
        if self._origin is None:
            return float(self._events)
        return self._time if time is None else (time - self._origin).total_seconds() / 3600

    def _append(self, memory: _Memory, vector: np.ndarray) -> None:
        self._memories.append(memory)
        self._vectors.add(vector)
        self._accessed.append(self._time)

    def _mark_accessed(self, indices: Iterable[int], now: float) -> None:
        for index in indices:
            self._accessed[index] = now

    def _ranked(self, query: np.ndarray, k: int) -> list[tuple[int, float]]:
        """The `k` best candidates as (number, score), best first; equal scores in order of creation."""
        candidates = self._candidates()
        if not len(candidates):
            return []
        decay = DECAY[self.settings.mode] if self.settings.decay is None else self.settings.decay
        weights = WEIGHTS[self.settings.mode] if self.settings.weights is None else self.settings.weights
        terms = (
            recency(np.array(self._accessed)[candidates], decay, by_rank=self.settings.mode == "code"),
            self._vectors.similarities(query)[candidates],
            np.array([memory.importance for memory in self._memories])[candidates],
        )
        scores = np.zeros(len(candidates))
        for weight, term in zip(weights, terms, strict=True):
            scores += weight * scaled(term.astype(np.float64), flat=0.5)
        return [(int(candidates[place]), float(scores[place])) for place in best(scores, k)]

    def _candidates(self) -> np.ndarray:
        """Numbers of the memories that may be recalled, int [n]."""
        if self.settings.mode != "code":
            return np.arange(len(self._memories))
        return np.flatnonzero(["idle" not in memory.text for memory in self._memories])

    def _rate(self, texts: Sequence[str]) -> list[int]:
        """The importance of each text, from 1 to 10."""
        prompt = self.prompts["memstream/importance"]
        asks = [(prompt, {"text": text, "identity": self.settings.identity}) for text in texts]
        labels = ask_all(self.llm, asks, retries=_ATTEMPTS - 1, noted="memstream.default_importance")
        self._unrated += sum(not label for label in labels)
        return [int(label) if label else _UNRATED for label in labels]

    def _reflect(self, unit: Unit) -> None:
        """Ask questions about recent memories, draw insights from the memories recalled for each question, and rate and store them."""
        self._reflected += 1
        questions = self._questions()
        queries = self.embedder.embed(questions, query=True)
        recalled = [[index for index, _ in self._ranked(query, self.settings.reflection_k)] for query in queries]
        self._mark_accessed((index for indices in recalled for index in indices), self._time)
        prompt = self.prompts["memstream/insights"]
        asks = [
            (prompt, {"question": question, **self._statements(indices)})
            for question, indices in zip(questions, recalled, strict=True)
        ]
        replies = ask_all(self.llm, asks, retries=_ATTEMPTS - 1, noted="memstream.no_insights")
        insights = [
            (insight["insight"], _cited(insight["evidence"], indices))
            for reply, indices in zip(replies, recalled, strict=True)
            if reply
            for insight in reply["insights"][:5]
            if insight["insight"].strip()
        ]
        self._add_thoughts(insights, unit)

    def _questions(self) -> list[str]:
        """Three questions about the recent memories."""
        recent = self._candidates()
        if self.settings.mode == "code":
            recent = recent[np.argsort(np.array(self._accessed)[recent], kind="stable")][-self._new_events :]
        else:
            recent = recent[-self.settings.window :]
        prompt, event = self.prompts["memstream/questions"], "memstream.general_question"
        reply = ask(self.llm, prompt, retries=_ATTEMPTS - 1, noted=event, **self._statements(recent.tolist()))
        return list(reply["questions"][:3]) if reply else [_GENERAL_QUESTION] * 3

    def _statements(self, indices: Sequence[int]) -> dict[str, Any]:
        """The prompt fields that show memories, numbered from 1."""
        texts = [self._memories[index].text for index in indices]
        numbered = [Option(str(number), text) for number, text in enumerate(texts, start=1)]
        return {"text": texts, "statements": numbered, "identity": self.settings.identity}

    def _add_thoughts(self, insights: Sequence[tuple[str, tuple[int, ...]]], unit: Unit) -> None:
        """Rate insights, given with the numbers of their evidence, and append them."""
        if not insights:
            return
        texts = [text for text, _ in insights]
        vectors = self.embedder.embed(texts)
        for (text, evidence), vector, importance in zip(insights, vectors, self._rate(texts), strict=True):
            sources = union(self._memories[index].sources for index in evidence)
            depth = 1 + max((self._memories[index].depth for index in evidence), default=0)
            self._append(_Memory(text, unit, importance, sources, evidence, depth), vector)

    def _memory_item(self, index: int, score: float) -> Item:
        memory = self._memories[index]
        if not memory.depth:
            return unit_item(memory.unit, score)
        text = dated(memory.text, memory.unit.time_text)
        return Item(self._name(index), text, score, memory.sources, "thought", memory.depth)

    def _name(self, index: int) -> str:
        memory = self._memories[index]
        return f"thought-{index}" if memory.depth else memory.unit.id


def recency(accessed: np.ndarray, decay: float, *, by_rank: bool) -> np.ndarray:
    """The recency of each memory: `decay` to the power of its age, float64 [n].

    Args:
        accessed: time of the last access, float [n]; the latest access has age 0.
        decay: factor per unit of time.
        by_rank: take the rank instead of the age, 1 for the memory accessed longest ago, as the release of 2023 does.
    """
    if not by_rank:
        aged: np.ndarray = decay ** (accessed.max() - accessed)
        return aged
    ranks = np.empty(len(accessed))
    ranks[np.argsort(accessed, kind="stable")] = np.arange(1, len(accessed) + 1)
    ranked: np.ndarray = decay**ranks
    return ranked


def _cited(numbers: Sequence[int], memories: Sequence[int]) -> tuple[int, ...]:
    """The memories that an insight cites by the numbers of its statements; other numbers are dropped.

    Args:
        numbers: statement numbers in the reply, from 1.
        memories: numbers of the memories that were shown, in order.
    """
    valid = dict.fromkeys(number for number in numbers if 1 <= number <= len(memories))
    if len(valid) < len(set(numbers)) or not valid:
        meter.note("memstream.bad_citation")
    return tuple(memories[number - 1] for number in valid)
