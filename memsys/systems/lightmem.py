"""LightMem: messages pruned, cut into topics, buffered and turned into facts; the facts are put right while asleep (Fang et al., 2025).

Every message loses the words that say least. Messages gather in a sensory buffer, which is cut into topical segments when it is full;
segments gather in a short-term buffer, from which a model extracts facts when that is full. Facts are inserted as they are. `consolidate`
compares each fact with later ones that are nearly the same and has a model rewrite, delete or keep it. A recall is the `k` nearest facts.

`mode="code"` reproduces the release (8fc9a91) where it differs: the short-term buffer always holds 512 tokens, and a rewritten fact keeps
the vector of its old text.

Deviations and decisions:

- Topic boundaries (`segmenter="embedding"`): the release takes the attention of LLMLingua-2's encoder between neighbouring messages. Here
  the cosine distance of their embeddings stands in for it; the second filter, by embeddings of whole exchanges, is as released.
- Words are deleted by LLMLingua-2 where `model` names its weights, else by `memsys.systems.pruned.Surrogate`, which `report()` calls so.
- Tokens are o200k's; the release counts with the encoder's tokenizer.
- A message's place in the stream takes the part of its time stamp when facts are ordered; facts of one message are of one age, as released.
- A line of the prompt shows date, time and weekday as `2023/05/07 (Sun) 13:00`; messages are numbered from 0 in every prompt.
- A `source_id` that is no number falls to the line that shares most words with the fact; the release fails on it.
- The last buffers are emptied in `consolidate`, on copies, because more may be said; `flush="session"` empties them after every session.
  An update sees every fact as it was extracted, so it makes no difference how often the memory was consolidated.
- A reply may take 16,000 tokens, as in the released scripts. `top_p` 0.1 is not sent. Retrieval is over all speakers together.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar, Literal

import numpy as np

from data_loaders.schema import Question, Unit
from memsys.embed import Embedder
from memsys.interface import Item, MemorySystem, NodeView, Recall, dated, known_mode, one_of, positive, union
from memsys.llm import meter
from memsys.llm.ask import ask, ask_all
from memsys.llm.parsing import ParseFailure
from memsys.llm.protocol import LLM
from memsys.prompts import Option, Prompts
from memsys.systems.bm25 import words
from memsys.systems.pruned import Scorer, prune, scorer_for
from memsys.tokens import count_tokens
from memsys.vectors import best

THRESHOLDS = (0.20, 0.25, 0.30, 0.35, 0.40, 0.45, 0.50)
"""Cosines below which neighbouring exchanges are of different topics: the first that finds a boundary."""
NEAR = 3
"""How far a boundary by exchanges may lie from one by messages."""
LONG = 512
"""Tokens from which on a message is pruned again."""
QUEUE = 10
"""Earlier facts that a fact may have a say in."""
_BLOCK = 512


@dataclass(frozen=True, slots=True)
class _Message:
    speaker: str
    text: str
    role: str
    turn: str


@dataclass(frozen=True, slots=True)
class _Exchange:
    """A user message and what was replied to it."""

    place: int
    """In the stream."""
    messages: tuple[_Message, ...]
    time: datetime | None
    time_text: str

    def text(self, *roles: str) -> str:
        return " ".join(message.text for message in self.messages if message.role in roles)


@dataclass(frozen=True, slots=True)
class _Fact:
    text: str
    place: int
    sources: tuple[str, ...]
    time: datetime | None
    time_text: str


@dataclass(slots=True)
class _Buffers:
    """What has been said and not yet been turned into facts."""

    sensory: list[_Exchange] = field(default_factory=list)
    short_term: list[list[_Exchange]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Table:
    """The facts that a read chooses from."""

    facts: tuple[_Fact, ...] = ()
    vectors: np.ndarray | None = None
    decisions: tuple[str, ...] = ()
    """What became of the facts that had later near-duplicates."""


class LightMem(MemorySystem):
    """Recalls the `k` facts most similar to the question by cosine, best first, each with its date.

    Args:
        k: facts recalled.
        rate: share of a message's tokens that is kept, in (0, 1].
        model: folder of LLMLingua-2's weights; None takes the surrogate.
        sensory_tokens: tokens of user messages that the sensory buffer holds.
        stm_tokens: tokens that the short-term buffer holds.
        feed: `utterance` makes every turn a user message without a reply, as the LoCoMo script does; in `exchange` the turns of the
            assistant are replies to the user's last turn.
        messages_use: whose messages are turned into facts: `user_only`, `assistant_only` or `hybrid`.
        segmenter: how topics are told apart; `embedding` stands in for the attention of the release.
        flush: when the buffers are emptied whatever they hold: at the `end`, or after every `session`.
        update: whether `consolidate` puts facts right.
        update_threshold: cosine from which on a later fact has a say in an earlier one.

    Raises:
        ValueError: an unknown choice, or a number out of range.
    """

    READ_KNOBS: ClassVar = ("k",)
    MODES: ClassVar = ("paper", "code")
    PROMPTS: ClassVar = ("lightmem",)
    EMBEDS_UNITS: ClassVar = False
    UNIT: ClassVar = {"rule": "utterance"}

    def __init__(
        self,
        llm: LLM,
        embedder: Embedder,
        prompts: Prompts,
        mode: Literal["paper", "code"] = "paper",
        k: int = 60,
        rate: float = 0.6,
        model: str | None = None,
        sensory_tokens: int = 512,
        stm_tokens: int = 512,
        feed: Literal["utterance", "exchange"] = "utterance",
        messages_use: Literal["user_only", "assistant_only", "hybrid"] = "user_only",
        segmenter: Literal["embedding"] = "embedding",
        flush: Literal["end", "session"] = "end",
        update: bool = True,
        update_threshold: float = 0.9,
    ) -> None:
        if not 0 < rate <= 1:
            raise ValueError(f"rate must be above 0 and at most 1, found {rate}")
        self.llm, self.embedder, self.prompts, self.rate = llm, embedder, prompts, rate
        self.mode = known_mode(self, mode)
        self.k, self.sensory_tokens = positive("k", k), positive("sensory_tokens", sensory_tokens)
        self.stm_tokens = 512 if mode == "code" else positive("stm_tokens", stm_tokens)
        self.feed = one_of("feed", feed, ("utterance", "exchange"))
        self.messages_use = one_of("messages_use", messages_use, ("user_only", "assistant_only", "hybrid"))
        self.segmenter = one_of("segmenter", segmenter, ("embedding",))
        self.flush = one_of("flush", flush, ("end", "session"))
        self.update, self.update_threshold = update, update_threshold
        self._roles = ("user", "assistant") if messages_use == "hybrid" else (messages_use.removesuffix("_only"),)
        self._scorer: Scorer = scorer_for(model)
        self._open: _Exchange | None = None
        self._places = 0
        self._buffers = _Buffers()
        self._facts: list[_Fact] = []
        self._table = _Table()
        self._stale = False
        self._decided: dict[tuple[str, ...], tuple[str, str]] = {}

    # --- construction ---------------------------------------------------------------------------------------------

    def write(self, unit: Unit) -> None:
        """Prune the unit's messages and buffer them; a call for each time that the short-term buffer overflows."""
        for turn in unit.turns:
            if not turn.text.strip():
                continue
            role = "user" if self.feed == "utterance" else turn.role
            message = _Message(turn.speaker, self._pruned(turn.text), role, turn.id)
            if self._open is not None and role == "assistant":
                self._open = replace(self._open, messages=(*self._open.messages, message))
            else:
                self._close()
                self._open = _Exchange(self._places, (message,), unit.time, unit.time_text)
                self._places += 1
            if self.feed == "utterance":
                self._close()
        self._stale = True

    def end_session(self, session_id: str) -> None:
        self._close()
        if self.flush == "session":
            self._facts += self._extracted(self._emptied(self._buffers))

    def consolidate(self) -> None:
        """Turn what is buffered into facts and put all facts right, without touching the buffers or the facts themselves."""
        if not self._stale:
            return
        buffers = _Buffers(list(self._buffers.sensory), list(self._buffers.short_term))
        pending = self._taken(buffers, self._open) if self._open is not None else []
        facts = [*self._facts, *self._extracted([*pending, *self._emptied(buffers)])]
        vectors = self.embedder.embed([fact.text for fact in facts]) if facts else None
        self._table = _Table(tuple(facts), vectors)
        if self.update and vectors is not None:
            self._table = self._put_right(facts, vectors)
        self._stale = False

    def _pruned(self, text: str) -> str:
        self._scorer.learn(text)
        shorter = prune(text, self.rate, self._scorer)
        while count_tokens(shorter) >= LONG and self.rate < 1:
            again = prune(shorter, self.rate, self._scorer)
            if count_tokens(again) >= count_tokens(shorter):
                break
            shorter = again
        return shorter

    def _close(self) -> None:
        """The open exchange is complete: it goes into the sensory buffer."""
        if self._open is not None:
            exchange, self._open = self._open, None
            self._facts += self._extracted(self._taken(self._buffers, exchange))

    def _taken(self, buffers: _Buffers, exchange: _Exchange) -> list[list[list[_Exchange]]]:
        """Put an exchange into the sensory buffer, making room first; the short-term contents that overflowed."""
        overflowed: list[list[list[_Exchange]]] = []
        size = _tokens([exchange], "user")
        while buffers.sensory and _tokens(buffers.sensory, "user") + size > self.sensory_tokens:
            for segment in self._cut(buffers, whole=False):
                overflowed += self._stored(buffers, segment)
        if size > self.sensory_tokens:
            return overflowed + self._stored(buffers, [exchange])
        buffers.sensory.append(exchange)
        return overflowed

    def _stored(self, buffers: _Buffers, segment: list[_Exchange]) -> list[list[list[_Exchange]]]:
        """Put a segment into the short-term buffer; what it held, where both are too much for it."""
        overflowed = []
        held = sum(_tokens(each, *self._roles) for each in buffers.short_term)
        if buffers.short_term and held + _tokens(segment, *self._roles) > self.stm_tokens:
            overflowed, buffers.short_term = [buffers.short_term], []
        buffers.short_term.append(segment)
        return overflowed

    def _emptied(self, buffers: _Buffers) -> list[list[list[_Exchange]]]:
        overflowed = [each for segment in self._cut(buffers, whole=True) for each in self._stored(buffers, segment)]
        if buffers.short_term:
            overflowed.append(buffers.short_term)
            buffers.short_term = []
        return overflowed

    def _cut(self, buffers: _Buffers, *, whole: bool) -> list[list[_Exchange]]:
        """The topical segments of the sensory buffer; the last stays in it unless `whole` or alone."""
        held = buffers.sensory
        edges = [0, *self._boundaries(held), len(held)]
        segments = [held[start:end] for start, end in itertools.pairwise(edges) if end > start]
        buffers.sensory = [] if whole or len(segments) < 2 else segments.pop()
        return segments

    def _boundaries(self, held: Sequence[_Exchange]) -> list[int]:
        if len(held) < 3:
            return []  # a peak has a neighbour on its left
        said = self.embedder.embed([exchange.text("user") for exchange in held])
        coarse = peaks(1 - np.sum(said[1:] * said[:-1], axis=1))
        if not coarse:
            return []
        exchanges = self.embedder.embed([exchange.text("user", "assistant") for exchange in held])
        return fine(np.sum(exchanges[1:] * exchanges[:-1], axis=1), coarse)

    # --- facts ----------------------------------------------------------------------------------------------------

    def _extracted(self, batches: Sequence[list[list[_Exchange]]]) -> list[_Fact]:
        """The facts of each batch of segments, one call each."""
        facts: list[_Fact] = []
        for segments in batches:
            exchanges = [exchange for segment in segments for exchange in segment]
            lines = [self._lines(exchange, number) for number, exchange in enumerate(exchanges)]
            if not any(lines):
                continue  # nothing was said by those whose messages are used
            reply = ask(self.llm, self.prompts["lightmem/extract"], text=_marked(segments, lines))
            if isinstance(reply, ParseFailure):
                meter.note("lightmem.no_facts")
                continue
            for entry in reply["data"]:
                if entry["fact"].strip():
                    number = _source(entry["source_id"], entry["fact"], lines)
                    facts.append(self._fact(entry["fact"].strip(), exchanges[number]))
        return facts

    def _lines(self, exchange: _Exchange, number: int) -> list[str]:
        time = f"{exchange.time:%Y/%m/%d (%a) %H:%M}" if exchange.time else exchange.time_text
        used = [message for message in exchange.messages if message.role in self._roles]
        return [dated(f"{number}. {message.speaker}: {message.text}", time) for message in used]

    def _fact(self, text: str, exchange: _Exchange) -> _Fact:
        sources = tuple(message.turn for message in exchange.messages if message.role in self._roles)
        if not sources:
            sources = tuple(message.turn for message in exchange.messages)
        return _Fact(text, exchange.place, union([sources]), exchange.time, exchange.time_text)

    def _put_right(self, facts: list[_Fact], vectors: np.ndarray) -> _Table:
        """What remains of the facts when each has been compared with its later near-duplicates, all at once."""
        later = having_a_say(vectors, np.array([fact.place for fact in facts]), self.update_threshold)
        cases = {old: (facts[old].text, *(facts[new].text for new in later[old])) for old in sorted(later)}
        self._decide([texts for texts in cases.values() if texts not in self._decided])
        kept, rewritten = list[int](), list[int]()
        facts = list(facts)
        for index in range(len(facts)):
            action, text = self._decided[cases[index]] if index in cases else ("ignore", "")
            if action == "delete":
                continue
            kept.append(index)
            if action == "update":
                sources = union([facts[index].sources, *(facts[new].sources for new in later[index])])
                facts[index] = replace(facts[index], text=text, sources=sources)
                rewritten.append(index)
        if rewritten and self.mode == "paper":
            vectors = vectors.copy()
            vectors[rewritten] = self.embedder.embed([facts[index].text for index in rewritten])
        decisions = tuple(self._decided[texts][0] for texts in cases.values())
        return _Table(tuple(facts[index] for index in kept), vectors[kept], decisions)

    def _decide(self, cases: Sequence[tuple[str, ...]]) -> None:
        asked = list(dict.fromkeys(cases))
        asks = [(self.prompts["lightmem/update"], _update_fields(texts)) for texts in asked]
        for texts, reply in zip(asked, ask_all(self.llm, asks), strict=True):
            self._decided[texts] = _decision(reply)

    # --- recall ---------------------------------------------------------------------------------------------------

    def read(self, question: Question) -> Recall:
        """Facts as of the last `consolidate`."""
        if self._table.vectors is None or not self._table.facts:
            return Recall(())
        scores = self._table.vectors @ self.embedder.embed([question.text], query=True)[0]
        return Recall(tuple(self._item(index, float(scores[index])) for index in best(scores, self.k)))

    def _item(self, index: int, score: float) -> Item:
        fact = self._table.facts[index]
        time = f"{fact.time:%d %B %Y, %A}" if fact.time else fact.time_text
        return Item(f"fact-{index}", dated(fact.text, time), score, fact.sources, "fact", 1)

    def nodes(self) -> Iterator[NodeView]:
        """The facts as of the last `consolidate`."""
        vectors = self._table.vectors if self._table.vectors is not None else ()
        for index, (fact, vector) in enumerate(zip(self._table.facts, vectors, strict=True)):
            yield NodeView(f"fact-{index}", (), 1, "fact", fact.text, vector, fact.sources, fact.time, fact.time)

    @property
    def held(self) -> int:
        return len(self._facts) if self._stale else len(self._table.facts)

    def report(self) -> dict[str, Any]:
        return {
            "facts": len(self._table.facts),
            "messages": self._places,
            "pruned_by": self._scorer.name,
            "segmenter": self.segmenter,
            "decisions": {action: self._table.decisions.count(action) for action in ("update", "delete", "ignore")},
        }


def peaks(distances: np.ndarray) -> list[int]:
    """Where a new topic may begin: exchange k + 1 for every strict local maximum k >= 1 of the distances of exchanges k and k + 1."""
    padded = np.append(distances, -np.inf)
    return [k + 1 for k in range(1, len(distances)) if padded[k - 1] < padded[k] > padded[k + 1]]


def fine(cosines: np.ndarray, coarse: Sequence[int]) -> list[int]:
    """The first exchanges of new topics: where neighbours' cosine falls below the first threshold that finds any.

    Of these only the ones within `NEAR` of a coarse boundary, unless that leaves none.
    """
    for threshold in THRESHOLDS:
        found = [int(place) + 1 for place in np.flatnonzero(cosines < threshold)]
        if found:
            near = [place for place in found if any(abs(place - other) <= NEAR for other in coarse)]
            return near or found
    return []


def having_a_say(vectors: np.ndarray, places: np.ndarray, threshold: float) -> dict[int, list[int]]:
    """For each fact the facts not older than it that count it among their `QUEUE` nearest ones not younger, at `threshold` or above."""
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


def _tokens(exchanges: Sequence[_Exchange], *roles: str) -> int:
    return sum(count_tokens(exchange.text(*roles)) for exchange in exchanges)


def _marked(segments: Sequence[Sequence[_Exchange]], lines: Sequence[Sequence[str]]) -> list[str]:
    """The lines of all exchanges in order, under a heading for each topic."""
    shown: list[str] = []
    rest = iter(lines)
    for number, segment in enumerate(segments, start=1):
        shown.append(f"--- Topic {number} ---")
        shown += [line for _ in segment for line in next(rest)]
    return shown


def _source(given: Any, fact: str, lines: Sequence[Sequence[str]]) -> int:
    """The exchange that a fact names, or the nearest that exists; where it names none, the one that shares most words with it."""
    if isinstance(given, int) or (isinstance(given, str) and given.strip().lstrip("-").isdecimal()):
        return max(0, min(int(given), len(lines) - 1))
    meter.note("lightmem.source_by_words")
    stems = set(words(fact))
    return max(range(len(lines)), key=lambda number: (len(stems & set(words(" ".join(lines[number])))), -number))


def _update_fields(texts: tuple[str, ...]) -> dict[str, Any]:
    options = [Option(str(number), text) for number, text in enumerate(texts[1:], start=1)]
    return {"query": texts[0], "options": options}


def _decision(reply: Any) -> tuple[str, str]:
    if isinstance(reply, ParseFailure):
        meter.note("lightmem.no_decision")
        return "ignore", ""
    text = (reply.get("new_memory") or "").strip()
    if reply["action"] == "update" and not text:
        meter.note("lightmem.no_new_text")
        return "ignore", ""
    return reply["action"], text
