"""Mem0 v3: memories that are only added, found by similarity, keywords and entities (mem0ai/mem0, release of April 2026).

There is no paper: the reference is the released code, so there is no `mode`. One call for each unit extracts memories, given the last
messages and the most similar memories. Exact repetitions are dropped by their md5. Rules, not a model, find the entities that a memory
names and link it to them. A recall takes the most similar memories and adds to their cosine a squashed BM25 score and a boost for shared
entities.

SegTreeMem states `fusion="weighted"` and `hashing="normalised"` for its own runs (App. E, with k = 10); neither is in the release.

Deviations and decisions:

- The observation date is that of the unit, and so is the time of a memory; the release reads the clock. The current date is not shown.
- Messages are shown as `role (name): text`; the release shows no names, and without names the facts of two people cannot be distinguished.
- Neighbours are found with `speaker: text`, not with `role: text`: memories hold names and no roles.
- The temperature is 0, so that a run can be repeated; the release sends 0.1. Both limit a reply to 2,000 tokens.
- The prompt's sections for a summary and for recently extracted memories, always empty in the release, are left out; so are the custom
  instructions and the form for agents without a user.
- `entities="rules"` replaces spaCy, and its types are coarser: quoted strings, identifiers (letters with digits), runs of capitalised
  words, and two lower-case words after a determiner. Where spans overlap, earlier types win; the release's order is not known to us.
- The keyword channel is BM25 with the constants for which its squashing curve was calibrated. The reference stores memories with
  `fastembed`'s BM25 vectors in Qdrant (mem0ai 2.2.1): k1 1.2, b 0.75, a fixed average length of 256 words instead of the real one, the
  numerator (k1 + 1), and Qdrant's idf. It encodes a question like a memory (`embed`, never `query_embed`), so each term of a question has
  the same weight as in a memory of that length: 1.7 for a term that a short question has once, more if it is repeated. Stop words are
  removed from memories and questions before terms are counted to choose the squashing curve.
- Porter stems replace Snowball stems of spaCy's lemmas, and NLTK's list of stop words (in `bm25s`, the same as in `fastembed`) replaces
  spaCy's longer one. The release counts a participle in -ing twice, as itself and as its lemma; here it counts once.
- The ids of related memories that the model gives are asked for and ignored, as released.
- A unit without text makes no call. The evidence of a memory is the turns of its unit.
- Channels of the weighted fusion, each in [0, 1]: the cosine, not below 0; the squashed BM25 score; the boost over its maximum of 0.5.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from data_loaders.schema import Question, Unit
from memsys.interface import Item, MemorySystem, NodeView, Positive, Recall, Settings, dated, union
from memsys.llm.ask import ask
from memsys.llm.protocol import LLM
from memsys.prompts import Option, Prompts
from memsys.stop_words import stop_words
from memsys.systems.bm25 import plain_words
from memsys.tokens import stem
from memsys.vectors import Embedder, Vectors, best

LEAST_POOL, POOL_PER_ITEM = 60, 4
MESSAGE_CHARACTERS = 300
QUERY_ENTITIES, LONGEST_ENTITY = 8, 100
SAME_ENTITY, NEAR_ENTITY, NEAREST_ENTITIES, BOOST = 0.95, 0.5, 500, 0.5
_NONE = "(none)"


@dataclass(frozen=True, slots=True)
class _Memory:
    """An extracted statement; it is never changed."""

    text: str
    hash: str
    said_by: str
    """The side to which the model attributes it: user or assistant."""
    unit: Unit


@dataclass(slots=True)
class _Entity:
    """An entity that memories name, and the memories that name it."""

    name: str
    memories: dict[int, None] = field(default_factory=dict)
    """Numbers of the memories that name it, in order (the values are unused)."""


@dataclass(frozen=True)
class Mem0V3Settings(Settings):
    k: Positive = 20
    """Maximum number of items of a recall; they are chosen from the 4k, at least 60, most similar memories."""
    threshold: float = 0.1
    """Minimum cosine of a recalled memory, independent of its other scores."""
    fusion: Literal["official", "weighted"] = "official"
    """`official` (the sum of the scores over its maximum in this search) or `weighted` (by `weights`)."""
    weights: Sequence[float] = (0.7, 0.2, 0.1)
    """Weights of cosine, BM25 and entities (fusion `weighted`)."""
    hashing: Literal["raw", "normalised"] = "raw"
    """Whether repetitions are recognised by the md5 of the `raw` text, or of the text without case and extra white space
    (`normalised`)."""
    entities: Literal["rules", "none"] = "rules"
    """`rules` finds them; `none` links nothing."""
    neighbours: Positive = 10
    """Number of similar memories that are shown to the extraction and searched for repetitions."""
    window: Positive = 10
    """Number of earlier messages that are shown to the extraction, each cut at 300 characters."""


class Mem0V3(MemorySystem):
    """Recalls the `k` memories with the highest fused score among those most similar to the question."""

    READ_KNOBS: ClassVar = ("k", "threshold", "fusion", "weights")
    PROMPTS: ClassVar = ("mem0_v3",)
    ENTRIES: ClassVar = "_memories"
    UNIT: ClassVar = {"rule": "floor_pair", "on_unpaired": "keep_single"}

    def __init__(
        self, llm: LLM, embedder: Embedder, prompts: Prompts, settings: Mem0V3Settings = Mem0V3Settings()
    ) -> None:
        self.llm, self.embedder, self.prompts, self.settings = llm, embedder, prompts, settings
        self._memories: list[_Memory] = []
        self._vectors = Vectors()
        self._keywords = KeywordIndex()
        self._entities: list[_Entity] = []
        self._entity_vectors = Vectors()
        self._by_key: dict[str, int] = {}
        self._recent: deque[str] = deque(maxlen=settings.window)
        self._counts: Counter[str] = Counter()

    def write(self, unit: Unit) -> None:
        """Extract memories from the unit in one call and add those that are new. If a call fails, nothing changes."""
        if not any(turn.text.strip() for turn in unit.turns):
            self._counts["units_without_memories"] += 1
            return
        ranked = self._vectors.top(self.embedder.embed([unit.text])[0], self.settings.neighbours)
        neighbours = [number for number, _ in ranked]
        fresh = self._without_repetitions(self._extract(unit, neighbours), unit, neighbours)
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
        pool = pool_size(self.settings.k)
        terms = content_terms(question.text)
        raw, keywords = self._keywords.scores(terms), np.zeros(len(self._memories))
        hits = [number for number in best(raw, pool) if raw[number] > 0]
        keywords[hits] = squashed(raw[hits], len(terms))
        boosts = self._boosts(question.text)
        # In the order of insertion, so that of equal scores the earlier memory comes first.
        candidates = [
            number for number in sorted(best(similarities, pool)) if similarities[number] >= self.settings.threshold
        ]
        scores = self._fuse(similarities, keywords, boosts)[candidates]
        items = (self._memory_item(candidates[place], float(scores[place])) for place in best(scores, self.settings.k))
        return Recall(tuple(items))

    def nodes(self) -> Iterator[NodeView]:
        """Memories, and as their parents the entities that they name."""
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

    def report(self) -> dict[str, Any]:
        """Counts of memories, entities, links, dropped repetitions, and units without a new memory."""
        links = sum(len(entity.memories) for entity in self._entities)
        return {"memories": self.held, "entities": len(self._entities), "entity_links": links, **self._counts}

    def _extract(self, unit: Unit, neighbours: Sequence[int]) -> list[dict[str, Any]]:
        """The entries with text in the extraction's reply; none where it cannot be read."""
        options = [Option(str(place), self._memories[number].text) for place, number in enumerate(neighbours)]
        reply = ask(
            self.llm,
            self.prompts["mem0_v3/extract"],
            text=unit.text,
            time=unit.time_text or "unknown",
            dialogue=_lines(unit),
            earlier=tuple(self._recent) or _NONE,
            memories=options or _NONE,
            noted="mem0_v3.no_memories",
        )
        return [entry for entry in reply["memory"] if entry.get("text", "").strip()] if reply else []

    def _without_repetitions(
        self, entries: Sequence[Mapping[str, Any]], unit: Unit, neighbours: Sequence[int]
    ) -> list[_Memory]:
        """The entries as memories, without those that repeat a neighbour or an earlier entry."""
        seen = {self._memories[number].hash for number in neighbours}
        fresh = []
        for entry in entries:
            digest = text_hash(entry["text"], normalise=self.settings.hashing == "normalised")
            if digest in seen:
                self._counts["repetitions"] += 1
                continue
            seen.add(digest)
            said_by = "assistant" if entry.get("attributed_to") == "assistant" else "user"
            fresh.append(_Memory(entry["text"], digest, said_by, unit))
        return fresh

    def _named(self, fresh: Sequence[_Memory]) -> dict[str, _Entity]:
        """The entities of new memories by key, each with the numbers that these memories will get."""
        named: dict[str, _Entity] = {}
        if self.settings.entities == "rules":
            for number, memory in enumerate(fresh, start=len(self._memories)):
                for name in entities(memory.text):
                    named.setdefault(entity_key(name), _Entity(name)).memories[number] = None
        return named

    def _link(self, key: str, entity: _Entity, vector: np.ndarray | None) -> None:
        """Link the entity's memories to a stored entity of the same or nearly the same name; without one, store it."""
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

    def _boosts(self, text: str) -> np.ndarray:
        """For each memory, the strongest boost from an entity of the question, float64 [n]."""
        boosts = np.zeros(len(self._memories))
        names = list({entity_key(name): name for name in entities(text)}.values())[:QUERY_ENTITIES]
        if not names or not self._entities:
            return boosts
        # Names are compared with names, so they are not embedded as queries.
        for vector in self.embedder.embed(names):
            for place, similarity in self._entity_vectors.top(vector, NEAREST_ENTITIES):
                if similarity < NEAR_ENTITY:
                    break
                linked = list(self._entities[place].memories)
                boosts[linked] = np.maximum(boosts[linked], boost(similarity, len(linked)))
        return boosts

    def _fuse(self, similarities: np.ndarray, keywords: np.ndarray, boosts: np.ndarray) -> np.ndarray:
        if self.settings.fusion == "official":
            return fused(similarities, keywords, boosts)
        semantic, lexical, entity = self.settings.weights
        weighted: np.ndarray = semantic * np.maximum(similarities, 0) + lexical * keywords + entity * boosts / BOOST
        return weighted

    def _memory_item(self, number: int, score: float) -> Item:
        memory = self._memories[number]
        text = dated(memory.text, memory.unit.time_text)
        return Item(f"memory-{number}", text, score, memory.unit.turn_ids, f"{memory.said_by}_fact", level=1)


def pool_size(k: int) -> int:
    """Number of candidates from each channel in a search for `k` memories."""
    return max(POOL_PER_ITEM * k, LEAST_POOL)


def boost(similarity: float, links: int) -> float:
    """The boost of each of an entity's `links` memories; it falls with the number of links.

    Args:
        similarity: cosine of the entity's name with a name in the question.
    """
    return similarity * BOOST / (1 + 0.001 * (links - 1) ** 2)


def fused(similarities: np.ndarray, keywords: np.ndarray, boosts: np.ndarray) -> np.ndarray:
    """The sum of the three channels over its maximum in this search, at most 1; float64 [n].

    The maximum is 1, plus 1 if any memory has a keyword score, plus 0.5 if any memory has a boost.
    """
    maximum = 1 + bool(np.any(keywords > 0)) + BOOST * bool(np.any(boosts > 0))
    total: np.ndarray = np.minimum(1.0, (similarities + keywords + boosts) / maximum)
    return total


def text_hash(text: str, *, normalise: bool) -> str:
    """The md5 of a text in UTF-8; `normalise` ignores case and extra white space."""
    hashed = " ".join(text.casefold().split()) if normalise else text
    return hashlib.md5(hashed.encode(), usedforsecurity=False).hexdigest()


def _lines(unit: Unit) -> list[str]:
    """The unit's messages as `role (name): text`."""
    names = (f" ({turn.speaker})" if turn.speaker not in ("", turn.role) else "" for turn in unit.turns)
    return [f"{turn.role}{name}: {turn.text}" for turn, name in zip(unit.turns, names, strict=True)]


def _cut(line: str) -> str:
    return line if len(line) <= MESSAGE_CHARACTERS else f"{line[:MESSAGE_CHARACTERS]}…"


# Words that are not names: they are removed from both ends of a capitalised run.
_STOP_WORDS = frozenset(
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
# Words that form no compound with the word after them, although they may begin a name (New York).
_NO_COMPOUND = _STOP_WORDS | frozenset(
    """
    bad best better big different few first good great last later like little long lot made many new next nice old one
    other own same second several small thing things third three time two
    """.split()
)
_UPPER = "[A-ZÀ-ÖØ-Þ]"


def _proper(name: str) -> str:
    """A name without stop words at its ends, possessive s and contractions; empty where nothing is left."""
    tokens = [re.sub(r"['’](?:s|m|re|ve|ll|d|t)?$", "", token) for token in name.split()]
    kept = [place for place, token in enumerate(tokens) if token.lower() not in _STOP_WORDS]
    return " ".join(tokens[kept[0] : kept[-1] + 1]) if kept else ""


# Patterns in order of precedence, each with the function that cleans a match.
_PATTERNS: tuple[tuple[re.Pattern[str], Callable[[str], str]], ...] = (
    # The second branch takes a line's rest without a closing quote, whose quotes would each be followed to its end.
    (re.compile(r'["“«](?:([^"”»\n]++)["”»]|[^"”»\n]*+)'), str.strip),
    (re.compile(r"(?<![\w-])([A-Za-z][\w-]*\d[\w-]*|\d[\w-]*[A-Z][\w-]*)"), str.strip),
    (
        re.compile(
            rf"(?<!\w)({_UPPER}[\w'’-]*(?:\s(?:(?:of|the|de|van|von|la)\s){{0,2}}{_UPPER}[\w'’-]*)*)",
        ),
        _proper,
    ),
    (
        re.compile(r"\b(?:a|an|the|my|his|her|our|their|your|its)\s([a-z-]{3,}\s[a-z-]{3,})\b"),
        lambda name: "" if set(name.split()) & _NO_COMPOUND else name,
    ),
)


def entities(text: str) -> list[str]:
    """The names in a text, in order: quoted strings, identifiers, capitalised runs and noun compounds, found by rules."""
    names: dict[int, str] = {}
    taken = bytearray(len(text))
    for pattern, clean in _PATTERNS:
        for match in pattern.finditer(text):
            (start, end), name = match.span(1), clean(match[1] or "")
            if name and len(name) <= LONGEST_ENTITY and not any(taken[start:end]):
                names[start] = name
                taken[start:end] = b"\1" * (end - start)
    return [names[start] for start in sorted(names)]


def entity_key(name: str) -> str:
    """The name in lower case with single spaces; entities with the same key are the same."""
    return " ".join(name.lower().split())


K1, B, AVERAGE_LENGTH = 1.2, 0.75, 256
_SQUASHING = ((3, 5.0, 0.7), (6, 7.0, 0.6), (9, 9.0, 0.5), (15, 10.0, 0.5), (math.inf, 12.0, 0.5))
"""Maximum number of terms of the query, and the midpoint and steepness of the squashing curve for them."""


class KeywordIndex:
    """An inverted index of memories; an added memory is searched at once."""

    def __init__(self) -> None:
        self._postings: dict[str, list[tuple[int, float]]] = {}
        self._count = 0

    def add(self, terms: Sequence[str]) -> None:
        """Add the next memory by its terms."""
        for term, weight in _weights(terms).items():
            self._postings.setdefault(term, []).append((self._count, weight))
        self._count += 1

    def scores(self, terms: Sequence[str]) -> np.ndarray:
        """BM25 of every memory with the weighted terms of a question, float64 [n]; 0 where no term is shared."""
        scores = np.zeros(self._count)
        for term, asked in _weights(terms).items():
            postings = self._postings.get(term, ())
            idf = math.log(1 + (self._count - len(postings) + 0.5) / (len(postings) + 0.5))
            for number, weight in postings:
                scores[number] += idf * asked * weight
        return scores


def content_terms(text: str) -> list[str]:
    """Stems of the words in a text that are not stop words, in order, with repetitions."""
    return [stemmed for word in plain_words(text) if word not in stop_words() and (stemmed := stem(word))]


def _weights(terms: Sequence[str]) -> dict[str, float]:
    """Weight of each distinct term of a memory or a question: its frequency, saturated by k1 and by the length of the text."""
    penalty = K1 * (1 - B + B * len(terms) / AVERAGE_LENGTH)
    return {term: times * (K1 + 1) / (times + penalty) for term, times in Counter(terms).items()}


def squashed(raw: np.ndarray, terms: int) -> np.ndarray:
    """BM25 scores mapped into (0, 1), float64 [n], by a logistic curve that depends on the number of terms in the query."""
    middle, steepness = next((middle, steepness) for most, middle, steepness in _SQUASHING if terms <= most)
    values: np.ndarray = 1 / (1 + np.exp(-steepness * (raw.astype(np.float64) - middle)))
    return values
