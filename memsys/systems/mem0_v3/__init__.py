"""Mem0 v3: memories that are only ever added, found by similarity, keywords and entities (mem0ai/mem0, release of April 2026).

There is no paper: the reference is the released code, so there is no `mode`. One call for each unit extracts memories, given the last
messages and the most similar memories. Exact repetitions are dropped by their md5. The entities that a memory names are linked to it
without a model. A recall takes the most similar memories and adds to their cosine a squashed BM25 score and a boost from shared entities.

`fusion="weighted"` and `hashing="normalised"` are what SegTreeMem says of its own runs (App. E, with k = 10); neither is in the release.

Deviations and decisions:

- The observation date is that of the unit, and so is the time of a memory; the release takes the clock's. The current date is not shown.
- The prompt's sections for a summary and for recently extracted memories, always empty in the release, are left out, as are the custom
  instructions and the form for agents without a user.
- `entities="rules"` stands in for spaCy, and its types are cruder: quoted strings, identifiers (letters with digits), runs of capitalised
  words, and two lower-case words behind a determiner. Earlier types win where spans overlap; the release's order is not known to us.
- The keyword channel and what it leaves out is in `memsys.systems.mem0_v3.keywords`.
- The ids of related memories that the model gives are asked for and ignored, as released.
- A unit without any text makes no call. Evidence is the unit: the turns of the unit that a memory came from.
- Channels of the weighted fusion, each in [0, 1]: the cosine, not below 0; the squashed BM25 score; the boost over its maximum of 0.5.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from data_loaders.schema import Question, Unit
from memsys.embed import Embedder
from memsys.interface import Item, MemorySystem, NodeView, Recall, dated, positive, union
from memsys.llm import meter
from memsys.llm.ask import ask
from memsys.llm.parsing import ParseFailure
from memsys.llm.protocol import LLM
from memsys.prompts import Option, Prompts
from memsys.systems.mem0_v3.keywords import KeywordIndex, content_terms, squashed
from memsys.vectors import Vectors, best

LEAST_POOL, POOL_PER_ITEM = 60, 4
MESSAGE_CHARACTERS = 300
QUERY_ENTITIES, LONGEST_ENTITY = 8, 100
SAME_ENTITY, NEAR_ENTITY, NEAREST_ENTITIES, BOOST = 0.95, 0.5, 500, 0.5
_CHOICES = {"fusion": ("official", "weighted"), "hashing": ("raw", "normalised"), "entities": ("rules", "none")}
_NONE = "(none)"


@dataclass(frozen=True, slots=True)
class _Memory:
    """One extracted statement; never changed."""

    text: str
    hash: str
    said_by: str
    """user or assistant, as the model attributes it."""
    unit: Unit


@dataclass(slots=True)
class _Entity:
    """Something that memories name."""

    name: str
    memories: dict[int, None] = field(default_factory=dict)
    """Numbers of the memories linked to it, in order."""


class Mem0V3(MemorySystem):
    """Recalls the `k` memories with the highest fused score among those most similar to the question.

    Args:
        k: at most so many items; the pool that they are chosen from has 4k, and at least 60.
        threshold: least cosine of a candidate, whatever its other scores.
        fusion: `official` (the sum, divided by what it could be in this search) or `weighted` by `weights`.
        weights: of cosine, BM25 and entities (fusion `weighted`).
        hashing: whether a repetition is told by the md5 of the `raw` text or of the `normalised` one (case and white space).
        entities: `rules` finds them; `none` links nothing.
        neighbours: memories shown to the extraction, and compared with for repetitions.
        window: earlier messages shown to it, cut at 300 characters each.

    Raises:
        ValueError: an unknown choice, or a number below 1.
    """

    READ_KNOBS: ClassVar = ("k", "threshold", "fusion", "weights")
    PROMPTS: ClassVar = ("mem0_v3",)
    UNIT: ClassVar = {"rule": "floor_pair", "on_unpaired": "keep_single"}

    def __init__(
        self,
        llm: LLM,
        embedder: Embedder,
        prompts: Prompts,
        k: int = 20,
        threshold: float = 0.1,
        fusion: Literal["official", "weighted"] = "official",
        weights: Sequence[float] = (0.7, 0.2, 0.1),
        hashing: Literal["raw", "normalised"] = "raw",
        entities: Literal["rules", "none"] = "rules",
        neighbours: int = 10,
        window: int = 10,
    ) -> None:
        self.llm, self.embedder, self.prompts = llm, embedder, prompts
        self.k, self.threshold, self.fusion, self.weights = positive("k", k), threshold, fusion, tuple(weights)
        self.hashing, self.entities = hashing, entities
        self.neighbours, self.window = positive("neighbours", neighbours), positive("window", window)
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, found {getattr(self, name)!r}")
        self._memories: list[_Memory] = []
        self._vectors = Vectors()
        self._keywords = KeywordIndex()
        self._entities: list[_Entity] = []
        self._entity_vectors = Vectors()
        self._by_key: dict[str, int] = {}
        self._recent: deque[str] = deque(maxlen=window)
        self._counts: Counter[str] = Counter()

    def write(self, unit: Unit) -> None:
        """Extract memories from the unit in one call and add those that are new. Nothing changes when a call fails."""
        if not any(turn.text.strip() for turn in unit.turns):
            self._counts["units_without_memories"] += 1
            return
        ranked = self._vectors.top(self.embedder.embed([unit.text])[0], self.neighbours)
        shown = [number for number, _ in ranked]
        fresh = self._new(self._extracted(unit, shown), unit, shown)
        vectors = self.embedder.embed([memory.text for memory in fresh]) if fresh else ()
        named = self._named(fresh)
        new = [key for key in named if key not in self._by_key]
        names = [named[key].name for key in new]
        entity_vectors = dict(zip(new, self.embedder.embed(names), strict=True)) if new else {}
        for memory, vector in zip(fresh, vectors, strict=True):
            self._vectors.add(vector)
            self._memories.append(memory)
            self._keywords.add(content_terms(memory.text))
        for key, entity in named.items():
            self._link(key, entity, entity_vectors.get(key))
        self._recent.extend(_cut(line) for line in _lines(unit))
        self._counts["units_without_memories"] += not fresh

    def read(self, question: Question) -> Recall:
        if not self._memories:
            return Recall(())
        similarities = self._vectors.similarities(self.embedder.embed([question.text], query=True)[0])
        pool = pool_size(self.k)
        keywords = self._keyword_scores(question.text, pool)
        boosts = self._boosts(question.text)
        # In the order of insertion, so that equal scores go to the earlier memory.
        candidates = [number for number in sorted(best(similarities, pool)) if similarities[number] >= self.threshold]
        scores = self._fused(similarities, keywords, boosts)[candidates]
        return Recall(tuple(self._item(candidates[at], float(scores[at])) for at in best(scores, self.k)))

    def nodes(self) -> Iterator[NodeView]:
        """Memories, and above them the entities that they name."""
        parents: dict[int, list[str]] = {}
        for place, entity in enumerate(self._entities):
            for number in entity.memories:
                parents.setdefault(number, []).append(f"entity-{place}")
        for number, memory in enumerate(self._memories):
            vector, time = self._vectors.matrix[number].copy(), memory.unit.time
            above = tuple(parents.get(number, ()))
            yield NodeView(
                f"memory-{number}", above, 1, f"{memory.said_by}_fact", memory.text, vector, memory.unit.turn_ids, time, time
            )  # fmt: skip
        for place, entity in enumerate(self._entities):
            sources = union(self._memories[number].unit.turn_ids for number in entity.memories)
            vector = self._entity_vectors.matrix[place].copy()
            yield NodeView(f"entity-{place}", (), 2, "entity", entity.name, vector, sources)

    @property
    def held(self) -> int:
        return len(self._memories)

    def report(self) -> dict[str, Any]:
        """Memories, entities and their links, repetitions dropped, and units that left nothing."""
        links = sum(len(entity.memories) for entity in self._entities)
        return {"memories": self.held, "entities": len(self._entities), "entity_links": links, **self._counts}

    def _extracted(self, unit: Unit, shown: Sequence[int]) -> list[dict[str, Any]]:
        options = [Option(str(place), self._memories[number].text) for place, number in enumerate(shown)]
        reply = ask(
            self.llm,
            self.prompts["mem0_v3/extract"],
            text=unit.text,
            time=unit.time_text or "unknown",
            dialogue=_lines(unit),
            earlier=tuple(self._recent) or _NONE,
            memories=options or _NONE,
        )
        if isinstance(reply, ParseFailure):
            meter.note("mem0_v3.no_memories")
            return []
        return [one for one in reply["memory"] if one.get("text", "").strip()]

    def _new(self, extracted: Sequence[Mapping[str, Any]], unit: Unit, shown: Sequence[int]) -> list[_Memory]:
        """The extracted memories that repeat neither those shown nor one another."""
        seen = {self._memories[number].hash for number in shown}
        fresh = []
        for one in extracted:
            digest = text_hash(one["text"], normalise=self.hashing == "normalised")
            if digest in seen:
                self._counts["repetitions"] += 1
                continue
            seen.add(digest)
            said_by = "assistant" if one.get("attributed_to") == "assistant" else "user"
            fresh.append(_Memory(one["text"], digest, said_by, unit))
        return fresh

    def _named(self, fresh: Sequence[_Memory]) -> dict[str, _Entity]:
        """The entities of new memories by key, each with the numbers that those memories are going to have."""
        named: dict[str, _Entity] = {}
        if self.entities == "rules":
            for number, memory in enumerate(fresh, start=len(self._memories)):
                for name in entities(memory.text):
                    named.setdefault(entity_key(name), _Entity(name)).memories[number] = None
        return named

    def _link(self, key: str, entity: _Entity, vector: np.ndarray | None) -> None:
        """Add the links to the entity of the same name, else to one whose name is nearly the same, else make it a new one."""
        known = self._by_key.get(key)
        if known is None and vector is not None:
            nearest = self._entity_vectors.top(vector, 1)
            if nearest and nearest[0][1] >= SAME_ENTITY:
                known = nearest[0][0]
            else:
                self._by_key[key] = self._entity_vectors.add(vector)
                self._entities.append(entity)
        if known is not None:
            self._entities[known].memories.update(entity.memories)

    def _keyword_scores(self, text: str, pool: int) -> np.ndarray:
        """Squashed BM25 scores of the `pool` best memories, float64 [n]; 0 for all others."""
        terms = content_terms(text)
        raw = self._keywords.scores(terms)
        scores = np.zeros(len(self._memories))
        hits = [number for number in best(raw, pool) if raw[number] > 0]
        scores[hits] = squashed(raw[hits], len(terms))
        return scores

    def _boosts(self, text: str) -> np.ndarray:
        """The strongest boost that an entity of the question gives each memory, float64 [n]."""
        boosts = np.zeros(len(self._memories))
        asked = list({entity_key(name): name for name in entities(text)}.values())[:QUERY_ENTITIES]
        if not asked or not self._entities:
            return boosts
        # A name is compared with names: no question side.
        for vector in self.embedder.embed(asked):
            for place, similarity in self._entity_vectors.top(vector, NEAREST_ENTITIES):
                if similarity < NEAR_ENTITY:
                    break
                linked = list(self._entities[place].memories)
                boosts[linked] = np.maximum(boosts[linked], boost(similarity, len(linked)))
        return boosts

    def _fused(self, similarities: np.ndarray, keywords: np.ndarray, boosts: np.ndarray) -> np.ndarray:
        if self.fusion == "official":
            return fused(similarities, keywords, boosts)
        semantic, lexical, entity = self.weights
        weighted: np.ndarray = semantic * np.maximum(similarities, 0) + lexical * keywords + entity * boosts / BOOST
        return weighted

    def _item(self, number: int, score: float) -> Item:
        memory = self._memories[number]
        text = dated(memory.text, memory.unit.time_text)
        return Item(f"memory-{number}", text, score, memory.unit.turn_ids, f"{memory.said_by}_fact", level=1)


def pool_size(k: int) -> int:
    """How many memories a search for `k` takes from each channel."""
    return max(POOL_PER_ITEM * k, LEAST_POOL)


def boost(similarity: float, links: int) -> float:
    """What an entity of that similarity gives to each of its `links` memories; less where it names many."""
    return similarity * BOOST / (1 + 0.001 * (links - 1) ** 2)


def fused(similarities: np.ndarray, keywords: np.ndarray, boosts: np.ndarray) -> np.ndarray:
    """The sum of the three channels over the most that it could be, at most 1; float64 [n].

    That is 1, and 1 more when any memory has a keyword score, and 0.5 more when any has a boost.
    """
    most = 1 + bool(np.any(keywords > 0)) + BOOST * bool(np.any(boosts > 0))
    total: np.ndarray = np.minimum(1.0, (similarities + keywords + boosts) / most)
    return total


def text_hash(text: str, *, normalise: bool) -> str:
    """The md5 of a text in UTF-8; `normalise` overlooks case and white space."""
    shown = " ".join(text.casefold().split()) if normalise else text
    return hashlib.md5(shown.encode(), usedforsecurity=False).hexdigest()


def _lines(unit: Unit) -> list[str]:
    """The messages as `role (name): text`."""
    named = (f" ({turn.speaker})" if turn.speaker not in ("", turn.role) else "" for turn in unit.turns)
    return [f"{turn.role}{name}: {turn.text}" for turn, name in zip(unit.turns, named, strict=True)]


def _cut(line: str) -> str:
    return line if len(line) <= MESSAGE_CHARACTERS else f"{line[:MESSAGE_CHARACTERS]}…"


# --- entities by rules ----------------------------------------------------------------------------------------------

# Words that name nothing by themselves, wherever they stand …
_IDLE = frozenset(
    """
    a about after again ago all also am an and any anyone are as at be because been before but by can could did do does
    during each every for from had has have he hello her here hers hey hi him his how i if in into is it its just maybe
    me more most much must my never no not now of off oh ok okay on once only or our out over please really she should
    since so some soon still such sure thank thanks that the their them then there these they this those though through
    to today tomorrow too tonight under until up us very was way we well were what when where which while who whom whose
    why will with would wow yeah yes yesterday yet you your monday tuesday wednesday thursday friday saturday sunday
    january february march april may june july august september october november december assistant user
    """.split()
)
# … and those that make no compound of the word behind them, though they may begin a name (New York).
_BLAND = _IDLE | frozenset(
    """
    bad best better big different few first good great last later like little long lot made many new next nice old one
    other own same second several small thing things third three time two
    """.split()
)
_UPPER = "[A-ZÀ-ÖØ-Þ]"


def _proper(name: str) -> str:
    """A name without idle words at its ends, possessive s and contractions; empty where nothing remains."""
    tokens = [re.sub(r"['’](?:s|m|re|ve|ll|d|t)?$", "", token) for token in name.split()]
    kept = [place for place, token in enumerate(tokens) if token.lower() not in _IDLE]
    return " ".join(tokens[kept[0] : kept[-1] + 1]) if kept else ""


def _compound(name: str) -> str:
    """Two words as they stand; empty where one of them says too little."""
    return "" if set(name.split()) & _BLAND else name


# Patterns in order of precedence, with what tidies a match.
_TYPES: tuple[tuple[re.Pattern[str], Callable[[str], str]], ...] = (
    (re.compile(r'["“«]([^"”»\n]+)["”»]'), str.strip),
    (re.compile(r"(?<![\w-])([A-Za-z][\w-]*\d[\w-]*|\d[\w-]*[A-Z][\w-]*)"), str.strip),
    (
        re.compile(
            rf"(?<!\w)({_UPPER}[\w'’-]*(?:\s(?:(?:of|the|de|van|von|la)\s){{0,2}}{_UPPER}[\w'’-]*)*)",
        ),
        _proper,
    ),
    (re.compile(r"\b(?:a|an|the|my|his|her|our|their|your|its)\s([a-z-]{3,}\s[a-z-]{3,})\b"), _compound),
)


def entities(text: str) -> list[str]:
    """Names of what a text is about, in order, by rules: quoted strings, identifiers, capitalised runs and noun compounds."""
    found: dict[tuple[int, int], str] = {}
    for pattern, tidied in _TYPES:
        for match in pattern.finditer(text):
            (start, end), name = match.span(1), tidied(match[1])
            overlaps = any(start < last and first < end for first, last in found)
            if name and len(name) <= LONGEST_ENTITY and not overlaps:
                found[start, end] = name
    return [found[span] for span in sorted(found)]


def entity_key(name: str) -> str:
    """What tells entities apart: the name in lower case, with single spaces."""
    return " ".join(name.lower().split())
