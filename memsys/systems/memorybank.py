"""MemoryBank: exchanges, a summary and a portrait for each day and for all days, and a forgetting curve (Zhong et al., 2024).

Exchanges are stored as they are. `consolidate` writes for each day a summary of the events and a portrait of the user, and from these one
summary and one portrait of everything. A recall holds the exchanges and daily summaries nearest to the question. With `forgetting`, the
retention of an exchange that was not recalled for t days is R = exp(-t / S); its strength S grows by 1 with every recall.

`mode="code"` reproduces the release of May 2023 where it differs:

- Its expression evaluates to R = exp(-(t / 5) · S), so that stronger memories fade faster.
- The summary of everything is written but never shown; the portrait is.
- Without forgetting, whole exchanges are searched, and everything said or written on a day has one source, the date: a hit is extended
  by its neighbours of the same day, and each day with a hit becomes one item.
- With forgetting, sentences are searched; their source is their exchange or summary.

Deviations and decisions:

- "Today" is the day of the question, else of the last unit; the release reads the clock. Each session without a time counts as one day.
- The release draws a random number for every exchange each time it loads the store, so that memories are lost with the number of loads.
  Here an exchange gets one number when it is stored and another when it is recalled, and is forgotten once R falls below it. This gives
  the curve itself, however often the memory is consolidated. The release calls a module that it does not contain, so its forgetting
  never ran.
- When more is said on a day, its summary is written again; the release keeps the first. Summaries are written before anything is forgotten.
- The release deletes a day's summary together with the day's last exchange. The summary and portrait of everything stay.
- Reads neither strengthen nor refresh memories unless `mutate_on_read` is set. Summaries have no strength, as released.
- Prompts that exceed the model's context are not cut, and the repetition penalties (0.4 and 0.2) are not sent. A summary with an empty
  reply is missing and is asked for again at the next consolidation.
- Dates are shown with a piece, but neither embedded with it nor counted when pieces are joined; nor is the space or line break between
  joined pieces, which the release leaves out. Each piece keeps its own score; the
  release gives all pieces the score of the last piece.
- The ChatGPT variant of the release, which indexes whole days and lets a model rewrite its hits, is not offered.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from data_loaders.schema import Question, Unit
from memsys.interface import Item, MemorySystem, NodeView, Positive, Recall, Settings, dated, period, period_text, union
from memsys.llm import meter
from memsys.llm.ask import ParseFailure, ask_all
from memsys.llm.protocol import LLM
from memsys.prompts import Prompts
from memsys.vectors import Embedder, Vectors, best, cosines

KINDS = ("events", "portrait")
"""The two texts that are written about a day and about all days."""
_SENTENCE_END = re.compile(r"(?<=[.!?。！？])\s+|\n+")


@dataclass(frozen=True, slots=True)
class _Piece:
    """A text that is searched: an exchange, a daily summary, or a sentence of one of them."""

    text: str
    day: int
    """Number of the day, in the order in which days were first written."""
    exchange: int | None
    """Number of the exchange; None for a daily summary."""


_Source = tuple[int, int | None]
"""A day, and one of its exchanges; None for the day's summary, or for the whole day."""


@dataclass(slots=True)
class _Day:
    """The exchanges of a day and the texts about it."""

    name: str
    number: int
    """Days since the year 1, or since the first day where there are no dates."""
    exchanges: list[int] = field(default_factory=list)
    summarised: int = 0
    """Number of exchanges that the texts cover."""
    texts: dict[str, str] = field(default_factory=dict)
    """The texts by kind; an empty one where the model wrote nothing."""
    pieces: tuple[_Piece, ...] = ()
    """The day's summary as searched."""
    vectors: np.ndarray | None = None
    """Vectors of `pieces`, float32 [pieces, d]."""

    def missing(self) -> list[str]:
        """The kinds of text that are missing or do not cover all exchanges."""
        current = self.summarised == len(self.exchanges)
        return [kind for kind in KINDS if not (current and self.texts.get(kind))]


@dataclass(frozen=True)
class MemoryBankSettings(Settings):
    mode: Literal["paper", "code"] = "paper"
    """`paper` or `code`, see the module."""
    k: Positive = 2
    """Number of hits; those of one source become one item. 2 is the release's default, which overrides the 3 and 6 in its modules."""
    pieces: Literal["auto", "exchange", "sentence"] = "auto"
    """The searched texts: whole exchanges and summaries (`exchange`), their sentences (`sentence`), or sentences only where forgetting is
    on (`auto`, as released)."""
    join_chars: Positive = 200
    """Maximum number of characters of a hit that is extended with its neighbours of the same source."""
    include_global: bool = True
    """Whether the summary and the portrait of everything are recalled in addition to `k`."""
    forgetting: Literal["off", "sample", "threshold"] = "off"
    """`off`; `sample`: an exchange is forgotten when its retention falls below a random number from `rng`; `threshold`: when it falls
    below `threshold`."""
    threshold: float = 0.1
    """Minimum retention of an exchange that is not forgotten. The value is ours; at strength 1 an exchange is forgotten after three
    days."""
    skip_unchanged: bool = True
    """Whether a consolidation without new units makes no call; if not, the two texts about everything are written again."""
    mutate_on_read: bool = False
    """Whether a recall strengthens the exchanges it returns; the questions must then come in order."""


class MemoryBank(MemorySystem):
    """Recalls the summary and portrait of everything, then the exchanges and days nearest to the question, in order of time."""

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
        settings: MemoryBankSettings = MemoryBankSettings(),
    ) -> None:
        self.llm, self.embedder, self.prompts, self.rng, self.settings = llm, embedder, prompts, rng, settings
        pieces, forgetting = settings.pieces, settings.forgetting
        self._split = pieces == "sentence" or (pieces == "auto" and forgetting != "off")
        self._units: list[Unit] = []
        self._strength: list[int] = []
        self._recalled: list[int] = []
        self._forgotten_below: list[float] = []
        self._days: list[_Day] = []
        self._by_name: dict[str, int] = {}
        self._pieces: list[_Piece] = []
        self._vectors = Vectors()
        self._user = ""
        self._global: dict[str, str] = {}
        self._covered: dict[str, tuple[str, ...]] = {}

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
        self._forgotten_below.append(self._drawn())
        self._user = self._user or next((turn.speaker for turn in unit.turns if turn.role == "user"), "")

    def consolidate(self) -> None:
        """Write two texts for each day that lacks them or has new exchanges, then two about all days."""
        missing = [(place, kind) for place, day in enumerate(self._days) for kind in day.missing()]
        asks = [(self.prompts[f"memorybank/day_{kind}"], self._day_fields(place)) for place, kind in missing]
        for (place, kind), reply in zip(missing, ask_all(self.llm, asks), strict=True):
            self._days[place].texts[kind] = _text(reply, f"memorybank.no_day_{kind}")
        for place in sorted({place for place, _ in missing}):
            self._index(place)
        if missing or not self.settings.skip_unchanged or not all(self._global.values()):
            self._summarise_all()

    def _place(self, unit: Unit) -> int:
        """The number of the unit's day; a new day is added."""
        name = unit.time.date().isoformat() if unit.time else f"session {unit.session_id}"
        if name not in self._by_name:
            last = self._days[-1].number if self._days else 0
            number = unit.time.date().toordinal() if unit.time else last + 1
            self._by_name[name] = len(self._days)
            self._days.append(_Day(name, number))
        return self._by_name[name]

    def _cut(self, text: str) -> list[str]:
        """The texts that are searched for `text`: its sentences, or the whole."""
        parts = [part.strip() for part in _SENTENCE_END.split(text)] if self._split else [text]
        return [part for part in parts if part] or [text]

    def _drawn(self) -> float:
        """The retention below which an exchange is forgotten (`sample`)."""
        return float(self.rng.random()) if self.settings.forgetting == "sample" else 0.0

    def _day_fields(self, place: int) -> dict[str, Any]:
        """The fields of the prompts about one day."""
        units = [self._units[exchange] for exchange in self._days[place].exchanges]
        texts = [unit.text for unit in units]
        return {
            "texts": texts,
            "period": period_text(units[0], units[-1]) or "time unknown",
            "user": self._user or "the user",
        }

    def _index(self, place: int) -> None:
        """Cut and embed the day's new summary."""
        day = self._days[place]
        day.summarised = len(day.exchanges)
        texts = self._cut(day.texts["events"]) if day.texts["events"] else []
        day.pieces = tuple(_Piece(text, place, None) for text in texts)
        day.vectors = self.embedder.embed(texts) if texts else None

    def _summarise_all(self) -> None:
        """Write the summary and the portrait of everything from those of the days."""
        for kind in KINDS:
            self._covered[kind] = union(self._covered_turns(place, kind) for place in range(len(self._days)))
        kinds = [kind for kind in KINDS if self._covered[kind]]
        days, user, asks = sorted(self._days, key=lambda day: day.number), self._user or "the user", []
        for kind in kinds:
            texts = [dated(day.texts[kind], self._time_text(day)) for day in days if day.texts[kind]]
            asks.append((self.prompts[f"memorybank/global_{kind}"], {"texts": texts, "user": user}))
        replies = zip(kinds, ask_all(self.llm, asks), strict=True)
        self._global = {kind: _text(reply, f"memorybank.no_global_{kind}") for kind, reply in replies}

    def _covered_turns(self, place: int, kind: str) -> tuple[str, ...]:
        """The turns that a day's text covers; none where there is no text."""
        day = self._days[place]
        summarised = day.exchanges[: day.summarised] if day.texts.get(kind) else []
        return union(self._units[exchange].turn_ids for exchange in summarised)

    def _time_text(self, day: _Day) -> str:
        return period_text(self._units[day.exchanges[0]], self._units[day.exchanges[-1]])

    def read(self, question: Question) -> Recall:
        if not self._units:
            return Recall(())
        query = self.embedder.embed([question.text], query=True)[0]
        now = self._now(question)
        pieces, scores = self._searchable(query, now)
        hits = [index for index in best(scores, self.settings.k) if scores[index] > -np.inf]
        groups = self._extended(pieces, hits)
        if self.settings.mutate_on_read:
            recalled = {piece.exchange: None for group in groups.values() for piece in group}
            for exchange in (each for each in recalled if each is not None):  # each is drawn for once, in this order
                self._strength[exchange] += 1
                self._recalled[exchange] = now
                self._forgotten_below[exchange] = self._drawn()
        best_scores: dict[_Source, float] = {}
        for hit in hits:
            best_scores.setdefault(self._source(pieces[hit]), float(scores[hit]))
        sources = sorted(groups, key=lambda source: self._order(groups[source][0]))
        items = [self._group_item(groups[source], best_scores[source]) for source in sources]
        return Recall((*self._global_items(), *items))

    def _extended(self, pieces: Sequence[_Piece], hits: Sequence[int]) -> dict[_Source, list[_Piece]]:
        """The pieces at `hits` and their neighbours, in order of time, by source."""
        by_time = sorted(range(len(pieces)), key=lambda index: self._order(pieces[index]))
        sources = [self._source(pieces[index]) for index in by_time]
        lengths = [len(pieces[index].text) for index in by_time]
        places_of: dict[_Source, set[int]] = {}
        for hit in hits:
            place = by_time.index(hit)
            # The release looks no farther than the piece's own place in the store, less one, by oversight.
            reach = place - 1 if self.settings.mode == "code" else len(by_time)
            joined = _joined(lengths, sources, place, self.settings.join_chars, reach)
            places_of.setdefault(sources[place], set()).update(joined)
        return {source: [pieces[by_time[place]] for place in sorted(places)] for source, places in places_of.items()}

    def _source(self, piece: _Piece) -> _Source:
        """The exchange or summary that a piece is part of; its day in mode `code` without forgetting."""
        by_day = self.settings.mode == "code" and self.settings.forgetting == "off"
        return piece.day, None if by_day else piece.exchange

    def _now(self, question: Question) -> int:
        """The day of the question where question and history have dates, else the day of the last unit."""
        if question.time is not None and self._units[-1].time is not None:
            return question.time.date().toordinal()
        return self._days[self._pieces[-1].day].number

    def _searchable(self, query: np.ndarray, now: int) -> tuple[list[_Piece], np.ndarray]:
        """All pieces, and their cosines with the query, float [pieces]; minus infinity for forgotten ones."""
        pieces = [*self._pieces, *(piece for day in self._days for piece in day.pieces)]
        summary_scores = [cosines(day.vectors, query) for day in self._days if day.vectors is not None]
        scores = np.concatenate([self._vectors.similarities(query), *summary_scores])
        if self.settings.forgetting != "off":
            kept = self._kept(now)
            day_kept = [bool(kept[day.exchanges].any()) for day in self._days]
            gone = [not (day_kept[piece.day] if piece.exchange is None else kept[piece.exchange]) for piece in pieces]
            scores[np.array(gone)] = -np.inf
        return pieces, scores

    def _kept(self, now: int) -> np.ndarray:
        """Whether each exchange is still remembered, bool [exchanges]."""
        if self.settings.forgetting == "off":
            return np.ones(len(self._units), dtype=bool)
        age = np.maximum(0, now - np.array(self._recalled))
        retained = retention(age, np.array(self._strength), inverted=self.settings.mode == "code")
        kept: np.ndarray = retained >= (
            np.array(self._forgotten_below) if self.settings.forgetting == "sample" else self.settings.threshold
        )
        return kept

    def _order(self, piece: _Piece) -> tuple[int, int, int]:
        """The sort key of a piece: by date, a day's summary after its exchanges."""
        exchange = len(self._units) if piece.exchange is None else piece.exchange
        return self._days[piece.day].number, piece.day, exchange

    def _group_item(self, group: Sequence[_Piece], score: float) -> Item:
        """The joined pieces of one source as an item."""
        place, exchange = group[0].day, group[0].exchange
        day, exchanges = self._days[place], list(dict.fromkeys(piece.exchange for piece in group))
        text = ("\n" if len(exchanges) > 1 else " ").join(piece.text for piece in group)
        sources = union(
            self._covered_turns(place, "events") if number is None else self._units[number].turn_ids
            for number in exchanges
        )
        if len(exchanges) > 1:
            return Item(f"day {day.name}", dated(text, self._time_text(day)), score, sources, "day")
        if exchange is not None:
            unit = self._units[exchange]
            return Item(unit.id, dated(text, unit.time_text), score, sources)
        return Item(f"events {day.name}", dated(text, self._time_text(day)), score, sources, "day_events", 1)

    def _global_items(self) -> list[Item]:
        """The summary and the portrait of everything as items; only the portrait in mode `code`."""
        recalled = KINDS if self.settings.mode == "paper" else ("portrait",)
        kinds = [kind for kind in recalled if self.settings.include_global and self._global.get(kind)]
        span = period_text(self._units[0], self._units[-1])
        return [
            Item(kind, dated(self._global[kind], span), 0.0, self._covered[kind], f"global_{kind}", 2) for kind in kinds
        ]

    def nodes(self) -> Iterator[NodeView]:
        """Exchanges below the two texts about their day, and these below the two texts about everything."""
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
                    yield _view(
                        f"{kind} {day.name}", parents, 1, day.texts[kind], self._covered_turns(place, kind), units
                    )
        for kind, text in self._global.items():
            if text:
                yield _view(kind, (), 2, text, self._covered[kind], self._units)

    @property
    def held(self) -> int:
        return len(self._pieces) + sum(len(day.pieces) for day in self._days)

    def report(self) -> dict[str, Any]:
        """Counts of days, exchanges, exchanges forgotten by the last unit's day and missing texts, and the mean strength."""
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
    """The retention of each memory, exp(-t / S), float64 [n] in [0, 1].

    Args:
        days: t, days since the last recall, int [n].
        strength: S, int [n].
        inverted: compute exp(-(t / 5) · S) instead, as the release does.
    """
    retained: np.ndarray = np.exp(-(days / 5) * strength) if inverted else np.exp(-days / strength)
    return retained


def _joined(lengths: Sequence[int], sources: Sequence[_Source], place: int, limit: int, reach: int) -> set[int]:
    """The places of a piece and of its neighbours of the same source, as long as together they have at most `limit` characters.

    Neighbours are tried by distance, the later before the earlier. A neighbour of any source that does not fit also excludes the earlier
    neighbour at the same distance; those farther away are still tried, as released.

    Args:
        lengths, sources: characters and source of each piece, in order of time.
        place, limit, reach: place of the hit, most characters of the joined text, largest distance that is tried.
    """
    joined, length = {place}, lengths[place]
    for distance in range(1, reach + 1):
        near = [other for other in (place + distance, place - distance) if 0 <= other < len(lengths)]
        if all(sources[other] != sources[place] for other in near):
            break  # the pieces of a source are neighbours
        for other in near:
            if length + lengths[other] > limit:
                break
            if sources[other] == sources[place]:
                length += lengths[other]
                joined.add(other)
    return joined


def _text(reply: Any, missing: str) -> str:
    """The text of a reply; empty, and counted under the name `missing`, where it cannot be read."""
    if isinstance(reply, ParseFailure):
        meter.note(missing)
        return ""
    return str(reply)


def _view(
    name: str, parents: tuple[str, ...], level: int, text: str, sources: tuple[str, ...], units: Sequence[Unit]
) -> NodeView:
    kind = f"{'global' if level == 2 else 'day'}_{name.split()[0]}"
    return NodeView(name, parents, level, kind, text, None, sources, *period(units))
