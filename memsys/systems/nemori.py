"""Nemori: a conversation is cut into episodes, and facts are learned by predicting each episode (Nan et al., 2025; released code,
revision e1a7f9d of September 2025, on which xMemory builds, with the settings of its LoCoMo script).

For every message, a model decides whether it starts a new episode. A model rewrites a finished episode as a narrative with a title and
a time. Then facts ("statements" here) are extracted: from the first episode directly; for every later one, a model predicts the episode
from known facts, and the facts that the messages contain beyond the prediction are kept. A recall returns the most similar episodes
and facts, and the original messages of the best episodes.

`EpisodeBuilder` is the construction alone, which xMemory shares. Deviations and decisions:

- A buffer of `buffer_max` messages is cut without asking. The release intends this, but its rule cannot apply while the model draws
  the boundaries; `enforce_max=False` or `mode="code"` reproduces that. Mode `code` also leaves the last message out of the history in
  the boundary prompt when the history has more than 10 messages, and shows that prompt no times, as released: the rule about a gap of
  30 minutes, which the released prompt has too, can then never be applied. Mode `paper` shows the time of every message.
- A recalled episode is its title and its content, as released: the indexed document, not the content alone.
- Replies may have 2,000 tokens, a prediction 1,000, in the release 8,192; temperatures are the released ones.
- Facts are extracted before the next message is processed. The release does so in the background, so it may know fewer facts.
- `consolidate` turns the open buffer into a provisional episode, which is kept apart and built again after further messages.
- The model states the time of an episode. When that time cannot be parsed or is later than the last message, the time of the earliest
  message is used (counted). The wall clock is never used.
- While no facts are known, every episode is learned from directly (cold start); if the first yields no facts, so is the second. The
  cold-start prompt, like the comparison prompt, asks for seven kinds of facts, beliefs included, without dates.
- `extraction="direct"` extracts facts from every episode without a prediction: six kinds, with dates allowed. It is the only
  extraction prompt that xMemory prints (App. C.1), and the behaviour of the release when predictions are turned off.
- Duplicate facts are not searched for: the released threshold of 1.0 turns that off.
- A known fact is similar to an episode when 2·cosine − 1 (the released distance, rounded to six decimals) is at least 0.7, i.e. from
  cosine 0.85 on.
- `search="hybrid"` fuses the rankings by vector and by BM25; the release's scripts use vectors alone.
- The 2026 rewrite (batch segmentation, merging of episodes) is not included.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, ClassVar, Literal

import numpy as np

from data_loaders.schema import Question, Unit
from memsys.dates import parse_time
from memsys.interface import Item, MemorySystem, NodeView, Positive, Recall, Settings, dated, period, union
from memsys.llm import meter
from memsys.llm.ask import ParseFailure, ask
from memsys.llm.protocol import LLM
from memsys.prompts import Prompts
from memsys.systems.bm25 import bm25_index, bm25_scores, words
from memsys.vectors import Embedder, Vectors, best

Mode = Literal["paper", "code"]
NO_PREDICTION = "Nothing is known yet that would let anybody expect what happens here."
_FULL = "The buffer is full."
_END = "The conversation stops here for now."
_NEW_TOPIC = "A new topic begins."
_LONG_HISTORY = 10
_FUSION = 60
"""Constant of reciprocal rank fusion."""


@dataclass(frozen=True, slots=True)
class Episode:
    """Consecutive messages, rewritten by a model as a narrative."""

    title: str
    content: str
    units: tuple[Unit, ...]
    time_text: str
    """Time of the episode as prompts and items show it."""
    reason: str
    """The reason for the end of the episode."""
    retold: bool = True
    """False when the model's reply could not be parsed; the content is then the first and the last message."""
    learned: bool = True
    """False when the reply with its facts could not be parsed."""

    @property
    def document(self) -> str:
        """The text that is embedded."""
        return f"{self.title}. {self.content}"

    @property
    def sources(self) -> tuple[str, ...]:
        """Turn ids of its messages."""
        return union(unit.turn_ids for unit in self.units)

    @property
    def messages(self) -> list[str]:
        """Its messages, each with its time."""
        return [dated(unit.text, unit.time_text) for unit in self.units]


@dataclass(frozen=True, slots=True)
class Statement:
    """A lasting fact extracted from an episode."""

    text: str
    episode: int
    """Index of the episode in its store."""


@dataclass(eq=False)
class NemoriStore:
    """Episodes and statements in order, each with its vector."""

    episodes: list[Episode] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    episode_vectors: Vectors = field(default_factory=Vectors)
    statement_vectors: Vectors = field(default_factory=Vectors)

    def __len__(self) -> int:
        return len(self.episodes) + len(self.statements)

    def copy(self) -> NemoriStore:
        """Copy the store, so that either can grow without the other."""
        vectors = deepcopy((self.episode_vectors, self.statement_vectors))
        return NemoriStore(list(self.episodes), list(self.statements), *vectors)

    def episode_item(self, index: int, score: float, *, originals: bool) -> Item:
        """Make an item of an episode: its time and document, followed by its messages with `originals`."""
        episode = self.episodes[index]
        lines = [dated(episode.document, episode.time_text), *(["Messages:", *episode.messages] if originals else [])]
        return Item(f"episode-{index}", "\n".join(lines), score, episode.sources, "episode", 1)

    def statement_item(self, index: int, score: float) -> Item:
        """Make an item of a statement; its sources are the messages of its episode."""
        statement = self.statements[index]
        episode = self.episodes[statement.episode]
        text = dated(statement.text, episode.time_text)
        return Item(f"statement-{index}", text, score, episode.sources, "semantic", 2)

    def views(self, themes: Sequence[str] = ()) -> Iterator[NodeView]:
        """Yield messages, episodes and statements; `themes` gives the parent of each statement, if it has one."""
        statements_of: dict[int, list[str]] = {}
        for index, statement in enumerate(self.statements):
            statements_of.setdefault(statement.episode, []).append(f"statement-{index}")
            episode, vector = self.episodes[statement.episode], self.statement_vectors.matrix[index].copy()
            yield NodeView(
                f"statement-{index}", tuple(themes[index : index + 1]), 2, "semantic", statement.text, vector,
                episode.sources, *period(episode.units),
            )  # fmt: skip
        for index, episode in enumerate(self.episodes):
            vector, parents = self.episode_vectors.matrix[index].copy(), tuple(statements_of.get(index, ()))
            yield NodeView(
                f"episode-{index}", parents, 1, "episode", episode.document, vector, episode.sources,
                *period(episode.units),
            )  # fmt: skip
            for unit in episode.units:
                parents = (f"episode-{index}",)
                yield NodeView(unit.id, parents, 0, "message", unit.text, None, unit.turn_ids, unit.time, unit.time)

    def report(self) -> dict[str, Any]:
        """Counts of episodes, statements and messages, and of the episodes that used a fallback."""
        return {
            "episodes": len(self.episodes),
            "semantics": len(self.statements),
            "messages": sum(len(episode.units) for episode in self.episodes),
            "episodes_at_max": sum(episode.reason == _FULL for episode in self.episodes),
            "episodes_not_retold": sum(not episode.retold for episode in self.episodes),
            "episodes_not_learned": sum(not episode.learned for episode in self.episodes),
        }


@dataclass(frozen=True)
class EpisodeRules(Settings):
    """Settings of the construction of episodes and statements."""

    mode: Mode = "paper"
    """`code` shows the boundary prompt no times, leaves the last message out of long histories and never cuts a full buffer."""
    buffer_min: Positive = 1
    """Minimum number of messages in the buffer at which a boundary counts."""
    buffer_max: Positive = 20
    """Number of messages at which the buffer is cut without asking, if `enforce_max` says so."""
    enforce_max: bool | None = None
    """Whether a full buffer is cut; None means in mode `paper` only."""
    known: Positive = 10
    """Maximum number of statements from which an episode is predicted."""
    known_threshold: float = 0.7
    """Minimum 2·cosine − 1 of such a statement with the episode."""
    extraction: Literal["predict", "direct"] | None = "predict"
    """`predict` extracts the facts of an episode beyond its prediction; `direct` extracts from the episode alone. None: xMemory's choice
    for the mode."""


class EpisodeBuilder:
    """Turns a stream of messages into a `NemoriStore`: Nemori's construction."""

    def __init__(self, llm: LLM, embedder: Embedder, prompts: Prompts, rules: EpisodeRules) -> None:
        self.llm, self.embedder, self.prompts, self.rules = llm, embedder, prompts, rules
        self._buffer: list[Unit] = []
        self._finished = NemoriStore()
        """The finished episodes, without the open buffer."""
        self._provisional: NemoriStore | None = NemoriStore()
        """The store that `consolidated` returns; None after a message until it is built again."""
        self._undecided = 0

    def write(self, unit: Unit) -> None:
        """Add a message to the buffer; if it starts a new episode, the buffer before it becomes an episode."""
        self._provisional = None
        if self._buffer and (reason := self._boundary(unit)):
            self._add(self._finished, self._buffer, reason)
            self._buffer = []
        self._buffer.append(unit)

    def consolidated(self) -> NemoriStore:
        """All episodes, the open buffer included as a provisional one; the same object until the next message."""
        if self._provisional is None:
            store = self._finished.copy()
            if self._buffer:
                self._add(store, self._buffer, _END)
            self._provisional = store
        return self._provisional

    @property
    def held(self) -> int:
        """Number of episodes and statements."""
        return len(self._finished if self._provisional is None else self._provisional)

    def report(self) -> dict[str, Any]:
        """Number of boundary replies that could not be parsed."""
        return {"boundaries_undecided": self._undecided}

    def _boundary(self, unit: Unit) -> str:
        """The reason why the buffer ends before the message; empty when the message continues it."""
        rules = self.rules
        cuts = rules.mode == "paper" if rules.enforce_max is None else rules.enforce_max
        if cuts and len(self._buffer) >= rules.buffer_max:
            return _FULL
        *history, new = (
            message.text if rules.mode == "code" else dated(message.text, message.time_text)
            for message in (*self._buffer, unit)
        )
        if rules.mode == "code" and len(history) > _LONG_HISTORY:
            history.pop()
        reply = ask(self.llm, self.prompts["nemori/boundary"], history=history, new=new, noted="nemori.no_boundary")
        if isinstance(reply, ParseFailure):
            self._undecided += 1
            return ""
        ends = reply["should_end"] and len(self._buffer) >= rules.buffer_min
        return (reply.get("reason") or _NEW_TOPIC) if ends else ""

    def _add(self, store: NemoriStore, units: Sequence[Unit], reason: str) -> None:
        """Add messages as an episode to a store, with the statements extracted from it."""
        episode = self._narrated(tuple(units), reason)
        vector = self.embedder.embed([episode.document])[0]
        texts = self._statements(store, episode, vector)
        if texts is None:
            meter.note("nemori.no_statements")
            episode, texts = replace(episode, learned=False), []
        store.episodes.append(episode)
        store.episode_vectors.add(vector)
        for text, row in zip(texts, self.embedder.embed(texts) if texts else (), strict=True):
            store.statements.append(Statement(text, len(store.episodes) - 1))
            store.statement_vectors.add(row)

    def _narrated(self, units: tuple[Unit, ...], reason: str) -> Episode:
        """Rewrite messages as an episode; the first and the last message replace a reply that cannot be parsed."""
        lines = [dated(unit.text, unit.time_text) for unit in units]
        prompt, event = self.prompts["nemori/episode"], "nemori.first_and_last_message"
        reply = ask(self.llm, prompt, texts=lines, reason=reason, noted=event)
        if isinstance(reply, ParseFailure):
            ends = dict.fromkeys((units[0].text, units[-1].text))
            return Episode(units[0].text, "\n".join(ends), units, _earliest(units), reason, retold=False)
        stated = _valid_time(parse_time(reply.get("timestamp", "")), units)
        if stated is None:
            meter.note("nemori.time_of_messages")
        return Episode(reply["title"], reply["content"], units, stated or _earliest(units), reason)

    def _statements(self, store: NemoriStore, episode: Episode, vector: np.ndarray) -> list[str] | None:
        """Extract the statements of an episode; None when the model's reply cannot be parsed."""
        if self.rules.extraction == "direct":
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

    def _predicted(self, store: NemoriStore, episode: Episode, vector: np.ndarray) -> str:
        """Predict an episode from similar known statements; a fixed sentence replaces the prediction when there are none."""
        similar = store.statement_vectors.top(vector, self.rules.known)
        near = [index for index, cosine in similar if round(2 * cosine - 1, 6) >= self.rules.known_threshold]
        known = [store.statements[index].text for index in near]
        if not known:
            return NO_PREDICTION
        prompt = self.prompts["nemori/predict"]
        return str(
            ask(self.llm, prompt, title=episode.title, texts=known, noted="nemori.no_prediction") or NO_PREDICTION
        )


@dataclass(frozen=True)
class NemoriSettings(EpisodeRules):
    extraction: Literal["predict", "direct"] = "predict"
    """As in `EpisodeRules`, without the None that leaves the choice to xMemory."""
    k_episodes: Positive = 10
    """Number of episodes to recall."""
    k_statements: Positive = 20
    """Number of statements to recall."""
    originals: int = 2
    """Number of best episodes that include their messages."""
    search: Literal["vector", "hybrid"] = "vector"
    """`vector`, or `hybrid`, which fuses the best 2k by vector and the best 2k by BM25 by the sum of 1 / (60 + rank)."""


class Nemori(MemorySystem):
    """Recalls the most similar episodes, then the most similar statements; the best episodes include their messages.

    Reads use the state of the last `consolidate`.
    """

    READ_KNOBS: ClassVar = ("k_episodes", "k_statements", "originals")
    MODES: ClassVar = ("paper", "code")
    PROMPTS: ClassVar = ("nemori",)
    EMBEDS_UNITS: ClassVar = False
    UNIT: ClassVar = {"rule": "utterance"}

    def __init__(
        self, llm: LLM, embedder: Embedder, prompts: Prompts, settings: NemoriSettings = NemoriSettings()
    ) -> None:
        self.embedder, self.settings = embedder, settings
        self._builder = EpisodeBuilder(llm, embedder, prompts, settings)
        self._store = self._builder.consolidated()
        self._bm25_episodes: object | None = None
        self._bm25_statements: object | None = None

    def write(self, unit: Unit) -> None:
        self._builder.write(unit)

    def consolidate(self) -> None:
        """Turn the open buffer into a provisional episode and index the new entries."""
        store = self._builder.consolidated()
        if store is not self._store and self.settings.search == "hybrid":
            self._bm25_episodes = bm25_index([words(episode.document) for episode in store.episodes], 1.5, 0.75)
            self._bm25_statements = bm25_index([words(statement.text) for statement in store.statements], 1.5, 0.75)
        self._store = store

    def read(self, question: Question) -> Recall:
        store = self._store
        query = self.embedder.embed([question.text], query=True)[0]
        query_words = words(question.text) if self.settings.search == "hybrid" else None
        episodes = _ranked(store.episode_vectors, query, self._bm25_episodes, query_words, self.settings.k_episodes)
        statements = _ranked(
            store.statement_vectors, query, self._bm25_statements, query_words, self.settings.k_statements
        )
        items = [
            store.episode_item(index, score, originals=rank < self.settings.originals)
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


def fused(rankings: Sequence[Sequence[int]], k: int) -> list[tuple[int, float]]:
    """Reciprocal rank fusion: the `k` indices with the highest sum of 1 / (60 + rank), and that sum.

    Ranks count from 1. Ties go to the lower index.
    """
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, index in enumerate(ranking, start=1):
            scores[index] = scores.get(index, 0.0) + 1 / (_FUSION + rank)
    return sorted(scores.items(), key=lambda entry: (-entry[1], entry[0]))[:k]


def _ranked(
    vectors: Vectors, query: np.ndarray, index: object | None, query_words: list[str] | None, k: int
) -> list[tuple[int, float]]:
    """The `k` best rows by vector, or by vector and BM25 when the words of the question are given."""
    if query_words is None:
        return vectors.top(query, k)
    scores = bm25_scores(index, query_words, len(vectors))
    lexical = [row for row in best(scores, 2 * k) if scores[row] > 0]
    return fused([[row for row, _ in vectors.top(query, 2 * k)], lexical], k)


def _valid_time(stated: datetime | None, units: Sequence[Unit]) -> str | None:
    """A stated time, in the notation of a message of that day or else in digits; None if missing or after the last message."""
    days = {unit.time.date(): unit.time_text for unit in reversed(units) if unit.time is not None}
    if stated is None or not days or stated.date() > max(days):
        return None
    return days.get(stated.date()) or stated.strftime("%Y-%m-%d %H:%M")


def _earliest(units: Sequence[Unit]) -> str:
    """Time text of the earliest message."""
    return min(units, key=lambda unit: unit.time or datetime.max).time_text
