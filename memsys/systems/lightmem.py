"""LightMem: messages are pruned, cut into topics, buffered and turned into facts, which are revised offline (Fang et al., 2025).

Every message loses its least informative words. Messages gather in a sensory buffer; a full buffer is cut into topical segments. Segments
gather in a short-term buffer; when it is full, a model extracts facts from it. Facts are inserted as they are. `consolidate` compares
each fact with later ones that are nearly the same, and a model rewrites, deletes or keeps it (the paper's sleep-time update). A recall
holds the `k` nearest facts.

`mode="code"` reproduces the release (8fc9a91) where it differs: the short-term buffer always holds 512 tokens, and a rewritten fact keeps
the vector of its old text.

Deviations and decisions:

- Topic boundaries: the release uses the attention of LLMLingua-2's encoder between neighbouring messages. Here
  the cosine distance of their embeddings replaces it. The second filter, by embeddings of whole exchanges, is as released.
- Facts are extracted by one prompt, after that of the LoCoMo script, which asks for inferred facts next to stated ones. The LongMemEval
  script has another prompt.
- The release reports LoCoMo with gpt-4o-mini for short-term buffers and rates of 512/.7 (`conf/memory/lightmem_locomo.yaml`), 768/.7 and
  768/.8; `conf/memory/lightmem.yaml` has 512/.6.
- Words are deleted by LLMLingua-2 where `model` names its weights, else by `memsys.systems.pruned.Surrogate`; `report()` says which.
- Tokens are counted with o200k; the release counts with the encoder's tokenizer.
- Facts are ordered by their message's place in the stream, instead of its time stamp; facts of one message have the same age, as released.
- A line of the prompt shows date, weekday and time as `2023/05/07 (Sun) 13:00`; messages are numbered from 0 in every prompt.
- A `source_id` that is not a number is replaced by the line that shares most words with the fact; the release fails on it.
- `consolidate` empties the last buffers on copies, because more messages may follow; `flush="session"` empties them after every session.
  An update sees every fact as it was extracted, so the result does not depend on how often the memory was consolidated. The release loses
  the segments that its last message pushes out of the sensory buffer; here they are kept.
- A reply may have 16,000 tokens, as in the released scripts. `top_p` 0.1 is not sent. Retrieval searches the facts of all speakers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar, Literal

import numpy as np

from data_loaders.schema import Question, Unit
from memsys.interface import Item, MemorySystem, NodeView, Positive, Recall, Settings, SomeOf, dated, union
from memsys.llm import meter
from memsys.llm.ask import ParseFailure, ask, ask_all
from memsys.llm.protocol import LLM
from memsys.prompts import Option, Prompts
from memsys.systems.bm25 import words
from memsys.systems.pruned import Scorer, prune, scorer_for
from memsys.tokens import count_tokens
from memsys.vectors import Embedder, best, cosines

LONG = 512
"""A message of at least this many tokens is pruned again."""


@dataclass(frozen=True)
class LightMemSettings(Settings):
    mode: Literal["paper", "code"] = "paper"
    """`paper` or `code`, see the module."""
    k: Positive = 60
    """Facts recalled."""
    rate: SomeOf = 0.6
    """Share of a message's tokens that pruning keeps, in (0, 1]."""
    model: str | None = None
    """Folder of LLMLingua-2's weights; None uses the surrogate."""
    sensory_tokens: Positive = 512
    """Maximum number of tokens of user messages in the sensory buffer."""
    stm_tokens: Positive = 512
    """Maximum number of tokens in the short-term buffer (mode `paper`)."""
    feed: Literal["utterance", "exchange"] = "utterance"
    """`utterance` takes every turn as a user message without a reply, as the LoCoMo script does; `exchange` takes the assistant's turns
    as replies to the user's last turn."""
    messages_use: Literal["user_only", "assistant_only", "hybrid"] = "user_only"
    """The roles whose messages are turned into facts: `user_only`, `assistant_only` or `hybrid`."""
    flush: Literal["end", "session"] = "end"
    """The time at which partly filled buffers are emptied: at the `end`, or after every `session`."""
    update: bool = True
    """Whether `consolidate` revises facts."""
    update_threshold: float = 0.9
    """Minimum cosine of a later fact that is shown in the update of an earlier one."""


class LightMem(MemorySystem):
    """Recalls the `k` facts most similar to the question by cosine, best first, each with its date."""

    READ_KNOBS: ClassVar = ("k",)
    MODES: ClassVar = ("paper", "code")
    PROMPTS: ClassVar = ("lightmem",)
    EMBEDS_UNITS: ClassVar = False
    UNIT: ClassVar = {"rule": "utterance"}

    def __init__(
        self, llm: LLM, embedder: Embedder, prompts: Prompts, settings: LightMemSettings = LightMemSettings()
    ) -> None:
        self.llm, self.embedder, self.prompts, self.settings = llm, embedder, prompts, settings
        self.stm_tokens = 512 if settings.mode == "code" else settings.stm_tokens
        use = settings.messages_use
        self._roles = ("user", "assistant") if use == "hybrid" else (use.removesuffix("_only"),)
        self._scorer: Scorer = scorer_for(settings.model)
        self._open: Exchange | None = None
        self._places = 0
        self._buffers = Buffers()
        self._facts: list[Fact] = []
        self._table = FactTable()
        self._stale = False
        self._decided: dict[tuple[str, ...], tuple[str, str]] = {}

    def write(self, unit: Unit) -> None:
        """Prune the unit's messages and buffer them; one call whenever the short-term buffer overflows."""
        for turn in unit.turns:
            if not turn.text.strip():
                continue
            role = "user" if self.settings.feed == "utterance" else turn.role
            message = ExchangeMessage(turn.speaker, self._prune(turn.text), role, turn.id)
            if self._open is not None and role == "assistant":
                self._open = replace(self._open, messages=(*self._open.messages, message))
            else:
                self._close()
                self._open = Exchange(self._places, (message,), unit.time, unit.time_text)
                self._places += 1
            if self.settings.feed == "utterance":
                self._close()
        self._stale = True

    def end_session(self, session_id: str) -> None:
        """Close the open exchange; with `flush="session"`, extract facts from all buffered messages."""
        self._close()
        if self.settings.flush == "session":
            self._facts += self._extract(self._empty(self._buffers))

    def consolidate(self) -> None:
        """Extract facts from copies of the buffers and revise all facts; buffers and extracted facts stay as they are."""
        if not self._stale:
            return
        buffers = Buffers(list(self._buffers.sensory), list(self._buffers.short_term))
        pending = self._put_sensory(buffers, self._open) if self._open is not None else []
        facts = [*self._facts, *self._extract([*pending, *self._empty(buffers)])]
        vectors = self.embedder.embed([fact.text for fact in facts]) if facts else None
        self._table = FactTable(tuple(facts), vectors)
        if self.settings.update and vectors is not None:
            self._table = self._revised(facts, vectors)
        self._stale = False

    def _prune(self, text: str) -> str:
        """The text pruned by `rate`, repeatedly while it is long and still gets shorter."""
        self._scorer.learn(text)
        shorter = prune(text, self.settings.rate, self._scorer)
        while count_tokens(shorter) >= LONG and self.settings.rate < 1:
            again = prune(shorter, self.settings.rate, self._scorer)
            if count_tokens(again) >= count_tokens(shorter):
                break
            shorter = again
        return shorter

    def _close(self) -> None:
        """Move the open exchange, now complete, into the sensory buffer."""
        if self._open is not None:
            exchange, self._open = self._open, None
            self._facts += self._extract(self._put_sensory(self._buffers, exchange))

    def _put_sensory(self, buffers: Buffers, exchange: Exchange) -> list[list[list[Exchange]]]:
        """Put an exchange into the sensory buffer, after making room; returns the segments of the short-term buffer at each overflow."""
        overflowed: list[list[list[Exchange]]] = []
        size = tokens_of([exchange], "user")
        while buffers.sensory and tokens_of(buffers.sensory, "user") + size > self.settings.sensory_tokens:
            for segment in self._cut(buffers, whole=False):
                overflowed += self._put_short_term(buffers, segment)
        if size > self.settings.sensory_tokens:
            return overflowed + self._put_short_term(buffers, [exchange])
        buffers.sensory.append(exchange)
        return overflowed

    def _put_short_term(self, buffers: Buffers, segment: list[Exchange]) -> list[list[list[Exchange]]]:
        """Put a segment into the short-term buffer; returns its former contents if the segment did not fit in addition to them."""
        overflowed = []
        held = sum(tokens_of(stored, *self._roles) for stored in buffers.short_term)
        if buffers.short_term and held + tokens_of(segment, *self._roles) > self.stm_tokens:
            overflowed, buffers.short_term = [buffers.short_term], []
        buffers.short_term.append(segment)
        return overflowed

    def _empty(self, buffers: Buffers) -> list[list[list[Exchange]]]:
        """Empty both buffers; returns the short-term contents at each overflow and at the end."""
        segments = self._cut(buffers, whole=True)
        overflowed = [contents for segment in segments for contents in self._put_short_term(buffers, segment)]
        if buffers.short_term:
            overflowed.append(buffers.short_term)
            buffers.short_term = []
        return overflowed

    def _cut(self, buffers: Buffers, *, whole: bool) -> list[list[Exchange]]:
        """Take the topical segments out of the sensory buffer; the last stays in it, unless `whole` is set or it is the only segment."""
        exchanges = buffers.sensory
        edges = [0, *self._boundaries(exchanges), len(exchanges)]
        segments = [exchanges[start:end] for start, end in itertools.pairwise(edges) if end > start]
        buffers.sensory = [] if whole or len(segments) < 2 else segments.pop()
        return segments

    def _boundaries(self, exchanges: Sequence[Exchange]) -> list[int]:
        """The places of the exchanges that begin a new topic."""
        if len(exchanges) < 3:
            return []  # a peak has a neighbour on its left
        messages = self.embedder.embed([exchange.text("user") for exchange in exchanges])
        coarse = peaks(1 - np.sum(messages[1:] * messages[:-1], axis=1))
        if not coarse:
            return []
        whole = self.embedder.embed([exchange.text("user", "assistant") for exchange in exchanges])
        return fine(np.sum(whole[1:] * whole[:-1], axis=1), coarse)

    def _extract(self, batches: Sequence[list[list[Exchange]]]) -> list[Fact]:
        """The facts of each batch of segments, one call each."""
        facts: list[Fact] = []
        for segments in batches:
            exchanges = [exchange for segment in segments for exchange in segment]
            lines = [self._lines(exchange, number) for number, exchange in enumerate(exchanges)]
            if not any(lines):
                continue  # no message of the roles that are used
            prompt, text = self.prompts["lightmem/extract"], with_headings(segments, lines)
            reply = ask(self.llm, prompt, text=text, noted="lightmem.no_facts")
            for entry in reply["data"] if reply else ():
                if entry["fact"].strip():
                    number = source_exchange(entry["source_id"], entry["fact"], lines)
                    facts.append(self._fact(entry["fact"].strip(), exchanges[number]))
        return facts

    def _lines(self, exchange: Exchange, number: int) -> list[str]:
        """The exchange's used messages as numbered, dated lines of the prompt."""
        time = f"{exchange.time:%Y/%m/%d (%a) %H:%M}" if exchange.time else exchange.time_text
        used = [message for message in exchange.messages if message.role in self._roles]
        return [dated(f"{number}. {message.speaker}: {message.text}", time) for message in used]

    def _fact(self, text: str, exchange: Exchange) -> Fact:
        """A fact whose evidence is the exchange's used messages, or all of them where none is used."""
        sources = tuple(message.turn for message in exchange.messages if message.role in self._roles)
        if not sources:
            sources = tuple(message.turn for message in exchange.messages)
        return Fact(text, exchange.place, union([sources]), exchange.time, exchange.time_text)

    def _revised(self, facts: list[Fact], vectors: np.ndarray) -> FactTable:
        """The facts after each was compared with its later near-duplicates, all as they were extracted; a call for each new comparison."""
        later = later_duplicates(vectors, np.array([fact.place for fact in facts]), self.settings.update_threshold)
        cases = {old: (facts[old].text, *(facts[new].text for new in later[old])) for old in sorted(later)}
        undecided = list(dict.fromkeys(texts for texts in cases.values() if texts not in self._decided))
        prompt = self.prompts["lightmem/update"]
        asks = [
            (prompt, {"query": text, "options": [Option(str(place), each) for place, each in enumerate(newer, 1)]})
            for text, *newer in undecided
        ]
        self._decided |= zip(undecided, map(decision, ask_all(self.llm, asks)), strict=True)
        decided = {old: self._decided[texts] for old, texts in cases.items()}
        revised = dict(enumerate(facts))
        for old, (action, text) in decided.items():
            if action == "delete":
                del revised[old]
            elif action == "update":
                sources = union(facts[place].sources for place in (old, *later[old]))
                revised[old] = replace(facts[old], text=text, sources=sources)
        rewritten = [old for old, (action, _) in decided.items() if action == "update"]
        if rewritten and self.settings.mode == "paper":
            vectors = vectors.copy()
            vectors[rewritten] = self.embedder.embed([revised[old].text for old in rewritten])
        decisions = tuple(action for action, _ in decided.values())
        return FactTable(tuple(revised.values()), vectors[list(revised)], decisions)

    def read(self, question: Question) -> Recall:
        """The nearest facts as of the last `consolidate`."""
        if self._table.vectors is None or not self._table.facts:
            return Recall(())
        scores = cosines(self._table.vectors, self.embedder.embed([question.text], query=True)[0])
        items = []
        for index in best(scores, self.settings.k):
            fact = self._table.facts[index]
            text = dated(fact.text, f"{fact.time:%d %B %Y, %A}" if fact.time else fact.time_text)
            items.append(Item(f"fact-{index}", text, float(scores[index]), fact.sources, "fact", 1))
        return Recall(tuple(items))

    def nodes(self) -> Iterator[NodeView]:
        """The facts as of the last `consolidate`."""
        vectors = self._table.vectors if self._table.vectors is not None else ()
        for index, (fact, vector) in enumerate(zip(self._table.facts, vectors, strict=True)):
            yield NodeView(f"fact-{index}", (), 1, "fact", fact.text, vector, fact.sources, fact.time, fact.time)

    @property
    def held(self) -> int:
        return len(self._facts) if self._stale else len(self._table.facts)

    def report(self) -> dict[str, Any]:
        """Counts of facts, messages and decisions, and the methods that pruned and segmented the messages."""
        return {
            "facts": len(self._table.facts),
            "messages": self._places,
            "pruned_by": self._scorer.name,
            "segmenter": "embedding",
            "decisions": {action: self._table.decisions.count(action) for action in ("update", "delete", "ignore")},
        }


THRESHOLDS = (0.20, 0.25, 0.30, 0.35, 0.40, 0.45, 0.50)
"""Cosines below which neighbouring exchanges have different topics; the first threshold that gives a boundary is used."""
NEAR = 3
"""Maximum number of exchanges between a boundary by exchanges and a boundary by messages."""


@dataclass(frozen=True, slots=True)
class ExchangeMessage:
    """A pruned turn."""

    speaker: str
    text: str
    role: str
    turn: str


@dataclass(frozen=True, slots=True)
class Exchange:
    """A user message and the replies to it."""

    place: int
    """Its place in the stream of exchanges."""
    messages: tuple[ExchangeMessage, ...]
    time: datetime | None
    time_text: str

    def text(self, *roles: str) -> str:
        """The texts of the messages with one of the roles."""
        return " ".join(message.text for message in self.messages if message.role in roles)


@dataclass(slots=True)
class Buffers:
    """Exchanges that are not yet turned into facts."""

    sensory: list[Exchange] = field(default_factory=list)
    short_term: list[list[Exchange]] = field(default_factory=list)
    """Topical segments."""


def peaks(distances: np.ndarray) -> list[int]:
    """Exchanges that may begin a new topic: exchange k + 1 for every strict local maximum k >= 1 of the distances.

    Args:
        distances: of exchanges k and k + 1, float [exchanges - 1].
    """
    padded = np.append(distances, -np.inf)
    return [k + 1 for k in range(1, len(distances)) if padded[k - 1] < padded[k] > padded[k + 1]]


def fine(cosines: np.ndarray, coarse: Sequence[int]) -> list[int]:
    """The first exchanges of new topics: those whose cosine with the exchange before is below the first threshold that gives any.

    Only exchanges within `NEAR` of a coarse boundary are used, unless there are none.

    Args:
        cosines: of exchanges k and k + 1, float [exchanges - 1].
        coarse: boundaries found by messages (`peaks`).
    """
    for threshold in THRESHOLDS:
        boundaries = [int(place) + 1 for place in np.flatnonzero(cosines < threshold)]
        if boundaries:
            near = [place for place in boundaries if any(abs(place - other) <= NEAR for other in coarse)]
            return near or boundaries
    return []


def tokens_of(exchanges: Sequence[Exchange], *roles: str) -> int:
    """Tokens of the messages that have one of the roles."""
    return sum(count_tokens(exchange.text(*roles)) for exchange in exchanges)


QUEUE = 10
"""Maximum number of earlier facts whose update is shown a given fact."""
_BLOCK = 512
"""Facts whose cosines are computed at once."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A statement extracted from an exchange, with that exchange's place and time."""

    text: str
    place: int
    sources: tuple[str, ...]
    time: datetime | None
    time_text: str


@dataclass(frozen=True, slots=True)
class FactTable:
    """The facts that a read chooses from, as of one `consolidate`."""

    facts: tuple[Fact, ...] = ()
    vectors: np.ndarray | None = None
    """float32 [facts, d]."""
    decisions: tuple[str, ...] = ()
    """The action (`update`, `delete`, `ignore`) for each fact that had later near-duplicates."""


def later_duplicates(vectors: np.ndarray, places: np.ndarray, threshold: float) -> dict[int, list[int]]:
    """For each fact, the later facts whose update it gets, by place in `vectors`.

    Every fact looks for its `QUEUE` nearest facts of the same age or older with a cosine of at least `threshold`; it is listed under each.

    Args:
        vectors: float32 [facts, d], unit length.
        places: in the stream, int [facts]; the age of the facts.
    """
    later: dict[int, list[int]] = {}
    for start in range(0, len(vectors), _BLOCK):
        cosines = vectors[start : start + _BLOCK] @ vectors.T
        for row, new in enumerate(range(start, start + len(cosines))):
            allowed = (places <= places[new]) & (cosines[row] >= threshold)
            allowed[new] = False
            old = np.flatnonzero(allowed)
            for place in best(cosines[row][old], QUEUE):
                later.setdefault(int(old[place]), []).append(new)
    return later


def with_headings(segments: Sequence[Sequence[Exchange]], lines: Sequence[Sequence[str]]) -> list[str]:
    """The lines of all exchanges in order, under a heading for each topic."""
    text: list[str] = []
    rest = iter(lines)
    for number, segment in enumerate(segments, start=1):
        text.append(f"--- Topic {number} ---")
        text += [line for _ in segment for line in next(rest)]
    return text


def source_exchange(source_id: Any, fact: str, lines: Sequence[Sequence[str]]) -> int:
    """The number of the exchange that a `source_id` names, or of the nearest exchange that exists.

    If it is not a number, the exchange that shares most words with the fact.
    """
    if isinstance(source_id, int) or (isinstance(source_id, str) and source_id.strip().lstrip("-").isdecimal()):
        return max(0, min(int(source_id), len(lines) - 1))
    meter.note("lightmem.source_by_words")
    stems = set(words(fact))
    return max(range(len(lines)), key=lambda number: (len(stems & set(words(" ".join(lines[number])))), -number))


def decision(reply: Any) -> tuple[str, str]:
    """The action and the new text in a reply; `ignore` where it cannot be used."""
    if isinstance(reply, ParseFailure):
        meter.note("lightmem.no_decision")
        return "ignore", ""
    text = (reply.get("new_memory") or "").strip()
    if reply["action"] == "update" and not text:
        meter.note("lightmem.no_new_text")
        return "ignore", ""
    return reply["action"], text
