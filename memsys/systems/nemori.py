"""Nemori: a conversation is cut into episodes, and each episode is compared with what was to be expected (Nan et al., 2025;
revision e1a7f9d of September 2025, on which xMemory builds, with the LoCoMo script's settings).

A model says for every message whether it opens a new episode. A finished episode is told as a story with a title and a time; then facts
are learned from it: from the first episode directly, from every later one by predicting it from what is known and keeping what
the messages say beyond the prediction. A recall is the most similar episodes and facts, with the messages of the best episodes.

`EpisodeBuilder` is the construction alone, which xMemory shares. Deviations and decisions:

- A buffer of `buffer_max` messages is cut without asking. The release means to, but cannot while the model draws the boundaries:
  `enforce_max=False`, or `mode="code"`, under which a history of more than 10 messages is also shown without its last.
- Facts are learned before the next message is looked at. The release does it in the background, so that it may know fewer.
- The open buffer becomes an episode in `consolidate`, provisionally: it is kept apart and told anew once messages have followed.
- The time an episode is given by the model holds unless it cannot be read or lies after the last message; then that of the earliest
  message holds (counted). There is no clock to fall back on.
- While there are no facts every episode is learned from directly (the cold start), so twice when the first yields none. Its prompt wants
  facts of seven kinds, beliefs among them, without dates, as that of the comparison does.
- `extraction="direct"` learns from every episode by itself, without a prediction, facts of six kinds that may hold dates: the one prompt
  for statements that xMemory prints (App. C.1), and the release's way where its predictions are turned off.
- No search for duplicate facts: the released threshold of 1.0 turns it off.
- Similar facts are those with 2·cosine − 1 of at least .7 (the released distance), rounded to six decimals, i.e. cosine .85.
- `search="hybrid"` fuses the rankings by vector and by BM25; the release's scripts use vectors.
- The rewrite of 2026 (segmentation in batches, merging of episodes) is not part of this.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, ClassVar, Literal

import numpy as np

from data_loaders.schema import Question, Unit
from memsys.dates import parse_time
from memsys.embed import Embedder
from memsys.interface import Item, MemorySystem, NodeView, Recall, dated, known_mode, positive, union
from memsys.llm import meter
from memsys.llm.ask import ask
from memsys.llm.parsing import ParseFailure
from memsys.llm.protocol import LLM
from memsys.prompts import Prompts
from memsys.systems.bm25 import bm25_index, bm25_scores, words
from memsys.vectors import Vectors, best

Mode = Literal["paper", "code"]
Extraction = Literal["predict", "direct"]
EXTRACTIONS = ("predict", "direct")
SEARCHES = ("vector", "hybrid")
NO_PREDICTION = "Nothing is known yet that would let anybody expect what happens here."
_FULL = "The buffer is full."
_END = "The conversation stops here for now."
_NEW_TOPIC = "A new topic begins."
_LONG_HISTORY = 10
_FUSION = 60


@dataclass(frozen=True, slots=True)
class Episode:
    """Consecutive messages, told as a story."""

    title: str
    content: str
    units: tuple[Unit, ...]
    time_text: str
    """When it happened, as it is shown."""
    reason: str
    """Why it ended."""
    retold: bool = True
    """False when the model's story could not be had and the first and last message stand for it."""
    learned: bool = True
    """False when the facts could not be had."""

    @property
    def document(self) -> str:
        """What is embedded."""
        return f"{self.title}. {self.content}"

    @property
    def sources(self) -> tuple[str, ...]:
        return union(unit.turn_ids for unit in self.units)

    @property
    def messages(self) -> list[str]:
        return [dated(unit.text, unit.time_text) for unit in self.units]


@dataclass(frozen=True, slots=True)
class Statement:
    """A lasting fact that an episode taught."""

    text: str
    episode: int


class Store:
    """Episodes and statements in order, each with its vector."""

    def __init__(self) -> None:
        self.episodes: list[Episode] = []
        self.statements: list[Statement] = []
        self.episode_vectors = Vectors()
        self.statement_vectors = Vectors()

    def __len__(self) -> int:
        return len(self.episodes) + len(self.statements)

    def copy(self) -> Store:
        """A store that can grow without this one growing."""
        twin = copy.copy(self)
        twin.episodes, twin.statements = list(self.episodes), list(self.statements)
        twin.episode_vectors = copy.deepcopy(self.episode_vectors)
        twin.statement_vectors = copy.deepcopy(self.statement_vectors)
        return twin

    def episode_item(self, index: int, text: str, score: float, *, originals: bool) -> Item:
        """An episode as a recalled item, with its messages below it where they are wanted."""
        episode = self.episodes[index]
        lines = [dated(text, episode.time_text), *(["Messages:", *episode.messages] if originals else [])]
        return Item(f"episode-{index}", "\n".join(lines), score, episode.sources, "episode", 1)

    def statement_item(self, index: int, score: float) -> Item:
        """A statement as a recalled item; it stands for the messages of its episode."""
        statement = self.statements[index]
        episode = self.episodes[statement.episode]
        text = dated(statement.text, episode.time_text)
        return Item(f"statement-{index}", text, score, episode.sources, "semantic", 2)

    def views(self, themes: Sequence[str] = ()) -> Iterator[NodeView]:
        """Messages, episodes and statements; `themes` names the parent of each statement, where they have one."""
        below: dict[int, list[str]] = {}
        for index, statement in enumerate(self.statements):
            below.setdefault(statement.episode, []).append(f"statement-{index}")
            episode, vector = self.episodes[statement.episode], self.statement_vectors.matrix[index].copy()
            start, end = span(episode.units)
            yield NodeView(
                f"statement-{index}", tuple(themes[index : index + 1]), 2, "semantic", statement.text, vector,
                episode.sources, start, end,
            )  # fmt: skip
        for index, episode in enumerate(self.episodes):
            start, end = span(episode.units)
            vector = self.episode_vectors.matrix[index].copy()
            parents = tuple(below.get(index, ()))
            yield NodeView(
                f"episode-{index}", parents, 1, "episode", episode.document, vector, episode.sources, start, end
            )
            for unit in episode.units:
                parents = (f"episode-{index}",)
                yield NodeView(unit.id, parents, 0, "message", unit.text, None, unit.turn_ids, unit.time, unit.time)

    def report(self) -> dict[str, Any]:
        """Counts, and how many episodes took a fallback."""
        return {
            "episodes": len(self.episodes),
            "semantics": len(self.statements),
            "messages": sum(len(episode.units) for episode in self.episodes),
            "episodes_at_max": sum(episode.reason == _FULL for episode in self.episodes),
            "episodes_not_retold": sum(not episode.retold for episode in self.episodes),
            "episodes_not_learned": sum(not episode.learned for episode in self.episodes),
        }


class EpisodeBuilder:
    """Turns a stream of messages into a `Store`: Nemori's construction.

    Args:
        mode: `code` shows long histories without their last message and never cuts a full buffer.
        buffer_min: a boundary counts only when the buffer holds so many messages.
        buffer_max: so many messages are an episode in any case, where that is enforced.
        enforce_max: None enforces it in mode `paper`.
        known: most statements from which an episode is predicted.
        known_threshold: least 2·cosine − 1 of such a statement with the episode.
        extraction: whether facts are what an episode holds beyond its prediction (`predict`), or are taken from it by itself (`direct`).

    Raises:
        ValueError: an unknown choice, or a size below 1.
    """

    def __init__(
        self,
        llm: LLM,
        embedder: Embedder,
        prompts: Prompts,
        mode: Mode = "paper",
        buffer_min: int = 1,
        buffer_max: int = 20,
        enforce_max: bool | None = None,
        known: int = 10,
        known_threshold: float = 0.7,
        extraction: Extraction = "predict",
    ) -> None:
        self.llm, self.embedder, self.prompts, self.mode, self.extraction = llm, embedder, prompts, mode, extraction
        if extraction not in EXTRACTIONS:
            raise ValueError(f"extraction must be one of {', '.join(EXTRACTIONS)}, found {extraction!r}")
        self.buffer_min, self.buffer_max = positive("buffer_min", buffer_min), positive("buffer_max", buffer_max)
        self.enforce_max = mode == "paper" if enforce_max is None else enforce_max
        self.known, self.known_threshold = positive("known", known), known_threshold
        self._buffer: list[Unit] = []
        self._settled = Store()
        self._shown: Store | None = Store()
        self._undecided = 0

    def write(self, unit: Unit) -> None:
        """Take in a message; the buffer becomes an episode where the message opens a new one."""
        self._shown = None
        if self._buffer and (reason := self._boundary(unit)):
            self._add(self._settled, self._buffer, reason)
            self._buffer = []
        self._buffer.append(unit)

    def consolidated(self) -> Store:
        """Everything so far, the open buffer as a provisional episode; the same object until the next message."""
        if self._shown is None:
            shown = self._settled.copy()
            if self._buffer:
                self._add(shown, self._buffer, _END)
            self._shown = shown
        return self._shown

    @property
    def held(self) -> int:
        return len(self._settled if self._shown is None else self._shown)

    def report(self) -> dict[str, Any]:
        """Decisions of the boundary model that could not be had."""
        return {"boundaries_undecided": self._undecided}

    def _boundary(self, unit: Unit) -> str:
        """Why the buffer ends before the message; empty when it goes on."""
        if self.enforce_max and len(self._buffer) >= self.buffer_max:
            return _FULL
        hidden = self.mode == "code" and len(self._buffer) > _LONG_HISTORY
        history = [dated(one.text, one.time_text) for one in self._buffer]
        new = dated(unit.text, unit.time_text)
        reply = ask(self.llm, self.prompts["nemori/boundary"], history=history[:-1] if hidden else history, new=new)
        if isinstance(reply, ParseFailure):
            self._undecided += 1
            meter.note("nemori.no_boundary")
            return ""
        ends = reply["should_end"] and len(self._buffer) >= self.buffer_min
        return (reply.get("reason") or _NEW_TOPIC) if ends else ""

    def _add(self, store: Store, units: Sequence[Unit], reason: str) -> None:
        episode = self._told(tuple(units), reason)
        vector = self.embedder.embed([episode.document])[0]
        texts = self._learned(store, episode, vector)
        if texts is None:
            meter.note("nemori.no_statements")
            episode, texts = replace(episode, learned=False), []
        store.episodes.append(episode)
        store.episode_vectors.add(vector)
        for text, row in zip(texts, self.embedder.embed(texts) if texts else (), strict=True):
            store.statements.append(Statement(text, len(store.episodes) - 1))
            store.statement_vectors.add(row)

    def _told(self, units: tuple[Unit, ...], reason: str) -> Episode:
        lines = [dated(unit.text, unit.time_text) for unit in units]
        reply = ask(self.llm, self.prompts["nemori/episode"], texts=lines, reason=reason)
        if isinstance(reply, ParseFailure):
            meter.note("nemori.first_and_last_message")
            ends = dict.fromkeys((units[0].text, units[-1].text))
            return Episode(units[0].text, "\n".join(ends), units, _earliest(units), reason, retold=False)
        stated = _placed(parse_time(reply.get("timestamp", "")), units)
        if stated is None:
            meter.note("nemori.time_of_messages")
        return Episode(reply["title"], reply["content"], units, stated or _earliest(units), reason)

    def _learned(self, store: Store, episode: Episode, vector: np.ndarray) -> list[str] | None:
        """The statements that an episode teaches; None where the model's reply cannot be read."""
        if self.extraction == "direct":
            reply = ask(self.llm, self.prompts["nemori/direct"], text=dated(episode.document, episode.time_text))
        elif not store.statements:
            reply = ask(self.llm, self.prompts["nemori/learn"], text=episode.document)
        else:
            prediction = self._predicted(store, episode, vector)
            prompt = self.prompts["nemori/compare"]
            reply = ask(self.llm, prompt, text=episode.messages, prediction=prediction)
        if isinstance(reply, ParseFailure):
            return None
        return [text for statement in reply["statements"] if (text := statement.strip())]

    def _predicted(self, store: Store, episode: Episode, vector: np.ndarray) -> str:
        """What the episode should hold judging by what is known; a fixed sentence where nothing similar is."""
        similar = store.statement_vectors.top(vector, self.known)
        known = [store.statements[index].text for index, cosine in similar if self.is_known(cosine)]
        if not known:
            return NO_PREDICTION
        reply = ask(self.llm, self.prompts["nemori/predict"], title=episode.title, texts=known)
        if isinstance(reply, ParseFailure):
            meter.note("nemori.no_prediction")
            return NO_PREDICTION
        return str(reply)

    def is_known(self, cosine: float) -> bool:
        """Whether a statement is similar enough to an episode to predict it."""
        return round(2 * cosine - 1, 6) >= self.known_threshold


class Nemori(MemorySystem):
    """Recalls the most similar episodes, then the most similar statements; the best episodes bring their messages along.

    Reads see what the last `consolidate` saw.

    Args:
        k_episodes, k_statements: so many of each are recalled.
        originals: so many of the best episodes show their messages.
        search: `vector`, or `hybrid`, which fuses it with BM25 (twice as many of each, by the sum of 1 / (60 + rank)).
        mode, buffer_min, buffer_max, enforce_max, known, known_threshold, extraction: see `EpisodeBuilder`.

    Raises:
        ValueError: a setting that is none of the known choices, or out of range.
    """

    READ_KNOBS: ClassVar = ("k_episodes", "k_statements", "originals")
    MODES: ClassVar = ("paper", "code")
    PROMPTS: ClassVar = ("nemori",)
    EMBEDS_UNITS: ClassVar = False
    UNIT: ClassVar = {"rule": "utterance"}

    def __init__(
        self,
        llm: LLM,
        embedder: Embedder,
        prompts: Prompts,
        mode: Mode = "paper",
        k_episodes: int = 10,
        k_statements: int = 20,
        originals: int = 2,
        search: Literal["vector", "hybrid"] = "vector",
        buffer_min: int = 1,
        buffer_max: int = 20,
        enforce_max: bool | None = None,
        known: int = 10,
        known_threshold: float = 0.7,
        extraction: Extraction = "predict",
    ) -> None:
        self.embedder, self.mode = embedder, known_mode(self, mode)
        self.k_episodes, self.k_statements = positive("k_episodes", k_episodes), positive("k_statements", k_statements)
        self.originals, self.search = originals, search
        if search not in SEARCHES:
            raise ValueError(f"search must be one of {', '.join(SEARCHES)}, found {search!r}")
        self._builder = EpisodeBuilder(
            llm, embedder, prompts, mode, buffer_min, buffer_max, enforce_max, known, known_threshold, extraction
        )
        self._store = self._builder.consolidated()
        self._indexes: tuple[object | None, object | None] = (None, None)

    def write(self, unit: Unit) -> None:
        self._builder.write(unit)

    def consolidate(self) -> None:
        store = self._builder.consolidated()
        if store is not self._store and self.search == "hybrid":
            documents = (words(episode.document) for episode in store.episodes)
            texts = (words(statement.text) for statement in store.statements)
            self._indexes = bm25_index(list(documents), 1.5, 0.75), bm25_index(list(texts), 1.5, 0.75)
        self._store = store

    def read(self, question: Question) -> Recall:
        store = self._store
        query = self.embedder.embed([question.text], query=True)[0]
        asked = words(question.text) if self.search == "hybrid" else None
        episodes = _ranked(store.episode_vectors, query, self._indexes[0], asked, self.k_episodes)
        statements = _ranked(store.statement_vectors, query, self._indexes[1], asked, self.k_statements)
        items = [
            store.episode_item(index, store.episodes[index].content, score, originals=rank < self.originals)
            for rank, (index, score) in enumerate(episodes)
        ]
        return Recall((*items, *(store.statement_item(index, score) for index, score in statements)))

    def nodes(self) -> Iterator[NodeView]:
        return self._store.views()

    @property
    def held(self) -> int:
        return self._builder.held

    def report(self) -> dict[str, Any]:
        return {**self._store.report(), **self._builder.report()}


def span(units: Iterable[Unit]) -> tuple[datetime | None, datetime | None]:
    """First and last time of some units; None where none is known."""
    times = [unit.time for unit in units if unit.time is not None]
    return min(times, default=None), max(times, default=None)


def fused(rankings: Sequence[Sequence[int]], k: int) -> list[tuple[int, float]]:
    """The `k` indices with the highest sum of 1 / (60 + rank) over the rankings, which count from 1; ties to the lower index."""
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, index in enumerate(ranking, start=1):
            scores[index] = scores.get(index, 0.0) + 1 / (_FUSION + rank)
    return sorted(scores.items(), key=lambda one: (-one[1], one[0]))[:k]


def _ranked(
    vectors: Vectors, query: np.ndarray, index: object | None, asked: list[str] | None, k: int
) -> list[tuple[int, float]]:
    """The `k` best rows by vector, or by vector and BM25 where the words that are asked for are given."""
    if asked is None:
        return vectors.top(query, k)
    scores = bm25_scores(index, asked, len(vectors))
    lexical = [row for row in best(scores, 2 * k) if scores[row] > 0]
    return fused([[row for row, _ in vectors.top(query, 2 * k)], lexical], k)


def _placed(stated: datetime | None, units: Sequence[Unit]) -> str | None:
    """A stated time as the messages of that day write it, else in digits; None without one, or where it lies after the last message."""
    days = {unit.time.date(): unit.time_text for unit in reversed(units) if unit.time is not None}
    if stated is None or not days or stated.date() > max(days):
        return None
    return days.get(stated.date()) or stated.strftime("%Y-%m-%d %H:%M")


def _earliest(units: Sequence[Unit]) -> str:
    return min(units, key=lambda unit: unit.time or datetime.max).time_text
