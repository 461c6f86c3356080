"""MemoryBank: every exchange, a summary and a portrait of each day and of all days, and a forgetting curve (Zhong et al., 2024).

Exchanges are stored as they are. `consolidate` writes for each day what happened and what it says about the user, and from these one
summary and one portrait of everything. A recall finds the exchanges and daily summaries nearest to the question. With `forgetting`, an
exchange that was not recalled for t days is retained with R = exp(-t / S), where its strength S grows by 1 with every recall.

`mode="code"` reproduces the release of May 2023 where it differs. Its expression evaluates as R = exp(-(t / 5) · S), so that stronger
memories fade faster. The summary of everything is written but never shown, only the portrait is. Without forgetting, whole exchanges are
looked up and all that was said or written on a day has one source, the date: an exchange found is joined by its neighbours of the same
day, and each day found becomes one item. With forgetting, sentences are looked up, whose source is their exchange or summary.

Deviations and decisions:

- "Today" is the day of the question, else of the last unit; the release looks at the clock. A session without a time is a day of its own.
- The release draws a random number for every exchange each time it loads the store, so that memories die with the number of loads. Here an
  exchange gets one number when it is stored (and another when it is recalled), and is gone once R falls below it: the curve itself, whether
  and how often the memory was consolidated. The release calls a module that it does not contain, so its forgetting never ran.
- The summary of a day in which more is said is written anew; the release keeps the first. Summaries are made before anything is forgotten.
- The release deletes a day's summary together with the day's last exchange; the summary and portrait of everything stay.
- Reads neither strengthen nor refresh unless `mutate_on_read`. Summaries have no strength, as released.
- Prompts are not cut when they exceed the model's context, and the penalties on repetition (0.4 and 0.2) are not sent. A summary that comes
  back empty is missing, and is asked for again at the next consolidation.
- Dates are shown beside a piece, and neither embedded with it nor counted when pieces are joined. Each piece found keeps its own score (the
  release gives all the last one's).
- The ChatGPT variant of the release, which indexes whole days and has a model rewrite what it found, is not offered.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from data_loaders.schema import Question, Unit
from memsys.embed import Embedder
from memsys.interface import Item, MemorySystem, NodeView, Recall, dated, known_mode, one_of, positive, union
from memsys.llm import meter
from memsys.llm.ask import ask_all
from memsys.llm.parsing import ParseFailure
from memsys.llm.protocol import LLM
from memsys.prompts import Prompts
from memsys.vectors import Vectors, best

KINDS = ("events", "portrait")
"""What is written of a day and of all days."""
_SENTENCE_END = re.compile(r"(?<=[.!?。！？])\s+|\n+")


@dataclass(frozen=True, slots=True)
class _Piece:
    """A stretch of text that can be found: an exchange, a daily summary, or a sentence of one of them."""

    text: str
    day: int
    exchange: int | None
    """None for a daily summary."""


_Source = tuple[int, int | None]
"""A day, and an exchange of it or None for its summary (or for all of the day)."""


@dataclass(slots=True)
class _Day:
    """What was said on a day, and what was written about it."""

    name: str
    number: int
    """In days, since the year 1 or since the first day without a date."""
    exchanges: list[int] = field(default_factory=list)
    summarised: int = 0
    """How many of the exchanges the texts are about."""
    texts: dict[str, str] = field(default_factory=dict)
    """By kind; empty where the model wrote nothing."""
    pieces: tuple[_Piece, ...] = ()
    vectors: np.ndarray | None = None

    def missing(self) -> list[str]:
        current = self.summarised == len(self.exchanges)
        return [kind for kind in KINDS if not (current and self.texts.get(kind))]


class MemoryBank(MemorySystem):
    """Recalls what is known of the user and of all that happened, then the exchanges and days nearest to the question, in order of time.

    Args:
        k: pieces looked up; those of one source become one item. 2 is the release's default, which overrides the 3 and 6 that
            stand in its modules.
        pieces: what is looked up: whole `exchange`s and summaries, `sentence`s, or `auto`, which is as released: sentences where
            forgetting is on.
        join_chars: a piece found is extended with its neighbours of the same source up to so many characters.
        include_global: whether the summary and the portrait of everything are recalled, on top of `k`.
        forgetting: `off`; `sample`, an exchange is gone where a random number from `rng` exceeds its retention; `threshold`, where its
            retention is below `threshold`.
        threshold: least retention that is not forgotten; the value is ours (three days are too many at strength 1).
        skip_unchanged: whether a consolidation with nothing new makes no call; else the two texts about everything are written again.
        mutate_on_read: whether a recall strengthens what it finds; the questions must then come in order.

    Raises:
        ValueError: an unknown choice, or a number below 1.
    """

    READ_KNOBS: ClassVar = ("mode", "k", "join_chars", "include_global", "threshold")
    MODES: ClassVar = ("paper", "code")
    PROMPTS: ClassVar = ("memorybank",)
    UNIT: ClassVar = {"rule": "floor_pair", "on_unpaired": "keep_single"}
    PAST_K: ClassVar = "k counts the pieces found; the summary and the portrait of everything come on top"

    def __init__(
        self,
        llm: LLM,
        embedder: Embedder,
        prompts: Prompts,
        rng: np.random.Generator,
        mode: Literal["paper", "code"] = "paper",
        k: int = 2,
        pieces: Literal["auto", "exchange", "sentence"] = "auto",
        join_chars: int = 200,
        include_global: bool = True,
        forgetting: Literal["off", "sample", "threshold"] = "off",
        threshold: float = 0.1,
        skip_unchanged: bool = True,
        mutate_on_read: bool = False,
    ) -> None:
        self.llm, self.embedder, self.prompts, self.rng = llm, embedder, prompts, rng
        self.mode = known_mode(self, mode)
        self.k, self.join_chars = positive("k", k), positive("join_chars", join_chars)
        self.pieces = one_of("pieces", pieces, ("auto", "exchange", "sentence"))
        self.forgetting = one_of("forgetting", forgetting, ("off", "sample", "threshold"))
        self.include_global, self.threshold = include_global, threshold
        self.skip_unchanged, self.mutate_on_read = skip_unchanged, mutate_on_read
        self._split = pieces == "sentence" or (pieces == "auto" and forgetting != "off")
        self._units: list[Unit] = []
        self._strength: list[int] = []
        self._recalled: list[int] = []
        self._luck: list[float] = []
        self._days: list[_Day] = []
        self._by_name: dict[str, int] = {}
        self._pieces: list[_Piece] = []
        self._vectors = Vectors()
        self._user = ""
        self._global: dict[str, str] = {}
        self._covered: dict[str, tuple[str, ...]] = {}

    # --- construction ---------------------------------------------------------------------------------------------

    def write(self, unit: Unit) -> None:
        """Store the exchange under its day; no call."""
        place, exchange = self._place(unit), len(self._units)
        day = self._days[place]
        texts = self._cut(unit.text)
        for text, vector in zip(texts, self.embedder.embed(texts), strict=True):
            self._pieces.append(_Piece(text, place, exchange))
            self._vectors.add(vector)
        day.exchanges.append(exchange)
        self._units.append(unit)
        self._strength.append(1)
        self._recalled.append(day.number)
        self._luck.append(self._drawn())
        self._user = self._user or next((turn.speaker for turn in unit.turns if turn.role == "user"), "")

    def consolidate(self) -> None:
        """Write two texts for each day that lacks them (or has grown since), then two about all days."""
        lacking = [(place, kind) for place, day in enumerate(self._days) for kind in day.missing()]
        asks = [(self.prompts[f"memorybank/day_{kind}"], self._day_fields(place)) for place, kind in lacking]
        for (place, kind), reply in zip(lacking, ask_all(self.llm, asks), strict=True):
            self._days[place].texts[kind] = _text(reply, f"memorybank.no_day_{kind}")
        for place in sorted({place for place, _ in lacking}):
            self._index(place)
        if lacking or not self.skip_unchanged or not all(self._global.values()):
            self._summarise_all()

    def _place(self, unit: Unit) -> int:
        """The number of the unit's day, which is begun where it is new."""
        name = unit.time.date().isoformat() if unit.time else f"session {unit.session_id}"
        if name not in self._by_name:
            last = self._days[-1].number if self._days else 0
            number = unit.time.date().toordinal() if unit.time else last + 1
            self._by_name[name] = len(self._days)
            self._days.append(_Day(name, number))
        return self._by_name[name]

    def _cut(self, text: str) -> list[str]:
        parts = [part.strip() for part in _SENTENCE_END.split(text)] if self._split else [text]
        return [part for part in parts if part] or [text]

    def _drawn(self) -> float:
        return float(self.rng.random()) if self.forgetting == "sample" else 0.0

    def _day_fields(self, place: int) -> dict[str, Any]:
        units = [self._units[exchange] for exchange in self._days[place].exchanges]
        texts = [unit.text for unit in units]
        return {"texts": texts, "period": _span(units) or "time unknown", "user": self._user or "the user"}

    def _index(self, place: int) -> None:
        """Cut and embed the day's new summary."""
        day = self._days[place]
        day.summarised = len(day.exchanges)
        texts = self._cut(day.texts["events"]) if day.texts["events"] else []
        day.pieces = tuple(_Piece(text, place, None) for text in texts)
        day.vectors = self.embedder.embed(texts) if texts else None

    def _summarise_all(self) -> None:
        for kind in KINDS:
            self._covered[kind] = union(self._written(place, kind) for place in range(len(self._days)))
        known = [kind for kind in KINDS if self._covered[kind]]
        asks = [(self.prompts[f"memorybank/global_{kind}"], self._global_fields(kind)) for kind in known]
        replies = zip(known, ask_all(self.llm, asks), strict=True)
        self._global = {kind: _text(reply, f"memorybank.no_global_{kind}") for kind, reply in replies}

    def _global_fields(self, kind: str) -> dict[str, Any]:
        days = sorted((day for day in self._days if day.texts[kind]), key=lambda day: day.number)
        texts = [dated(day.texts[kind], self._time_text(day)) for day in days]
        return {"texts": texts, "user": self._user or "the user"}

    def _written(self, place: int, kind: str) -> tuple[str, ...]:
        """The turns that a day's text is about; none where there is no text."""
        day = self._days[place]
        summarised = day.exchanges[: day.summarised] if day.texts.get(kind) else []
        return union(self._units[exchange].turn_ids for exchange in summarised)

    def _time_text(self, day: _Day) -> str:
        return _span([self._units[exchange] for exchange in day.exchanges])

    # --- recall ---------------------------------------------------------------------------------------------------

    def read(self, question: Question) -> Recall:
        if not self._units:
            return Recall(())
        query = self.embedder.embed([question.text], query=True)[0]
        now = self._now(question)
        pieces, scores = self._searchable(query, now)
        hits = [index for index in best(scores, self.k) if scores[index] > -np.inf]
        shelf = sorted(range(len(pieces)), key=lambda index: self._order(pieces[index]))
        sources = [self._source(pieces[index]) for index in shelf]
        lengths = [len(pieces[index].text) for index in shelf]
        found: dict[_Source, set[int]] = {}
        score: dict[_Source, float] = {}
        for hit in hits:
            place = shelf.index(hit)
            # The release looks less far than the piece's own place in the store, by oversight.
            reach = place - 1 if self.mode == "code" else len(shelf)
            near = _joined(lengths, sources, place, self.join_chars, reach)
            found.setdefault(sources[place], set()).update(near)
            score.setdefault(sources[place], float(scores[hit]))
        groups = {source: [pieces[shelf[place]] for place in sorted(places)] for source, places in found.items()}
        if self.mutate_on_read:
            self._reinforce(dict.fromkeys(one.exchange for group in groups.values() for one in group), now)
        chosen = sorted(groups, key=lambda source: self._order(groups[source][0]))
        return Recall((*self._global_items(), *(self._item(groups[source], score[source]) for source in chosen)))

    def _source(self, piece: _Piece) -> _Source:
        """What a piece is part of: its exchange or summary; in the release, where nothing is forgotten, its day."""
        by_day = self.mode == "code" and self.forgetting == "off"
        return piece.day, None if by_day else piece.exchange

    def _now(self, question: Question) -> int:
        """The day of the question, where the history has dates, else that of the last unit."""
        if question.time is not None and self._units[-1].time is not None:
            return question.time.date().toordinal()
        return self._days[self._pieces[-1].day].number

    def _searchable(self, query: np.ndarray, now: int) -> tuple[list[_Piece], np.ndarray]:
        """All pieces, and their cosines with the query; minus infinity for what is forgotten."""
        pieces = [*self._pieces, *(piece for day in self._days for piece in day.pieces)]
        written = [day.vectors @ query for day in self._days if day.vectors is not None]
        scores = np.concatenate([self._vectors.similarities(query), *written])
        if self.forgetting != "off":
            kept = self._kept(now)
            days = [bool(kept[day.exchanges].any()) for day in self._days]
            lost = [not (days[piece.day] if piece.exchange is None else kept[piece.exchange]) for piece in pieces]
            scores[np.array(lost)] = -np.inf
        return pieces, scores

    def _kept(self, now: int) -> np.ndarray:
        """Which exchanges are remembered, bool [n]."""
        if self.forgetting == "off":
            return np.ones(len(self._units), dtype=bool)
        age = np.maximum(0, now - np.array(self._recalled))
        retained = retention(age, np.array(self._strength), inverted=self.mode == "code")
        kept: np.ndarray = retained >= (np.array(self._luck) if self.forgetting == "sample" else self.threshold)
        return kept

    def _reinforce(self, exchanges: Iterable[int | None], now: int) -> None:
        for exchange in exchanges:
            if exchange is None:
                continue
            self._strength[exchange] += 1
            self._recalled[exchange] = now
            self._luck[exchange] = self._drawn()

    def _order(self, piece: _Piece) -> tuple[int, int, int]:
        """By date; a day's summary after its exchanges."""
        exchange = len(self._units) if piece.exchange is None else piece.exchange
        return self._days[piece.day].number, piece.day, exchange

    def _item(self, group: Sequence[_Piece], score: float) -> Item:
        """The joined pieces of one source."""
        place, exchange = group[0].day, group[0].exchange
        day, joined = self._days[place], list(dict.fromkeys(piece.exchange for piece in group))
        text = ("\n" if len(joined) > 1 else " ").join(piece.text for piece in group)
        evidence = [self._written(place, "events") if each is None else self._units[each].turn_ids for each in joined]
        sources = union(evidence)
        if len(joined) > 1:
            return Item(f"day {day.name}", dated(text, self._time_text(day)), score, sources, "day")
        if exchange is not None:
            unit = self._units[exchange]
            return Item(unit.id, dated(text, unit.time_text), score, sources)
        return Item(f"events {day.name}", dated(text, self._time_text(day)), score, sources, "day_events", 1)

    def _global_items(self) -> list[Item]:
        shown = KINDS if self.mode == "paper" else ("portrait",)
        known = [kind for kind in shown if self.include_global and self._global.get(kind)]
        span = _span(self._units)
        return [
            Item(kind, dated(self._global[kind], span), 0.0, self._covered[kind], f"global_{kind}", 2) for kind in known
        ]

    # --- structure ------------------------------------------------------------------------------------------------

    def nodes(self) -> Iterator[NodeView]:
        """Exchanges below the two texts of their day, and those below the two texts about everything."""
        for place, day in enumerate(self._days):
            written = tuple(f"{kind} {day.name}" for kind in KINDS if day.texts.get(kind))
            for order, exchange in enumerate(day.exchanges):
                unit = self._units[exchange]
                parents = written if order < day.summarised else ()
                yield NodeView(unit.id, parents, 0, "leaf", unit.text, None, unit.turn_ids, unit.time, unit.time)
            for kind in KINDS:
                if day.texts.get(kind):
                    units = [self._units[exchange] for exchange in day.exchanges]
                    parents = (kind,) if self._global.get(kind) else ()
                    yield _view(f"{kind} {day.name}", parents, 1, day.texts[kind], self._written(place, kind), units)
        for kind, text in self._global.items():
            if text:
                yield _view(kind, (), 2, text, self._covered[kind], self._units)

    @property
    def held(self) -> int:
        return len(self._pieces) + sum(len(day.pieces) for day in self._days)

    def report(self) -> dict[str, Any]:
        """Days, exchanges, those forgotten on the day of the last unit, the mean strength, and texts that could not be had."""
        kept = self._kept(self._days[self._pieces[-1].day].number) if self._units else np.ones(0, dtype=bool)
        return {
            "days": len(self._days),
            "exchanges": len(self._units),
            "forgotten": int(len(kept) - kept.sum()),
            "mean_strength": sum(self._strength) / max(1, len(self._strength)),
            "missing_day_texts": sum(text == "" for day in self._days for text in day.texts.values()),
            "missing_global_texts": sum(text == "" for text in self._global.values()),
        }


def retention(days: np.ndarray, strength: np.ndarray, *, inverted: bool = False) -> np.ndarray:
    """The share of memories still retained after so many days without a recall, float64 [n] in [0, 1].

    exp(-t / S) as published; `inverted` is the law that the release computes, exp(-(t / 5) · S).
    """
    retained: np.ndarray = np.exp(-(days / 5) * strength) if inverted else np.exp(-days / strength)
    return retained


def _joined(lengths: Sequence[int], sources: Sequence[_Source], place: int, limit: int, reach: int) -> set[int]:
    """The places of a piece and of its neighbours of the same source, as long as their joined text has at most `limit` characters.

    Neighbours are tried by distance, the later before the earlier. One that does not fit, of whatever source, also keeps out the earlier
    one at its distance; those farther away are still tried (as released).
    """
    chosen, length = {place}, lengths[place]
    for distance in range(1, reach + 1):
        near = [other for other in (place + distance, place - distance) if 0 <= other < len(lengths)]
        if all(sources[other] != sources[place] for other in near):
            break  # a source's pieces stand together
        for other in near:
            if length + 1 + lengths[other] > limit:
                break
            if sources[other] == sources[place]:
                length += 1 + lengths[other]
                chosen.add(other)
    return chosen


def _text(reply: Any, missing: str) -> str:
    if isinstance(reply, ParseFailure):
        meter.note(missing)
        return ""
    return str(reply)


def _span(units: Sequence[Unit]) -> str:
    """The time texts of the first and the last unit, or the one that they share."""
    return " – ".join(dict.fromkeys(unit.time_text for unit in (units[0], units[-1]) if unit.time_text))


def _view(
    name: str, parents: tuple[str, ...], level: int, text: str, sources: tuple[str, ...], units: Sequence[Unit]
) -> NodeView:
    kind = f"{'global' if level == 2 else 'day'}_{name.split()[0]}"
    times = [unit.time for unit in units if unit.time is not None]
    return NodeView(
        name, parents, level, kind, text, None, sources, min(times, default=None), max(times, default=None)
    )  # fmt: skip
