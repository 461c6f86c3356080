"""MemoryOS: short-, mid- and long-term memory; what is talked about most becomes knowledge about the people (Kang et al., 2025).

A page is what the user said and the reply. The latest pages wait in a queue (short term). A page that leaves it is filed by subject under
a segment (mid term), and a line on what led up to it is kept. Each segment has a heat, from how often it was visited, how much was filed
there and how recently. When the hottest reaches a threshold, its new pages are read for a profile of the user and for facts about
both sides (long term). A recall is the short term, the best pages of the best segments, the profile and the best facts.

`mode` chooses among the three sets of settings that exist (`RELEASES`):

- `paper`: a page is filed where cosine + Jaccard of the keywords (Eq. 3) is highest, and the segments for a question are those with the
  highest such sum; the question's keywords cost a call. The coldest segment makes room; an analysis resets L alone.
- `code`: the code of the authors' evaluation. The queue is left at once. Themes are those of the user's part of a page alone. The segment
  is chosen by cosine and judged by cosine + mean overlap of the keywords, which cost calls of their own (for a new segment, for its page
  and for the question; those of pages have no effect). The chosen segment's L grows even when a new one is made. A page without themes is
  lost. Recency is always 1.
- `library`: the package; files as the paper and reads by cosine alone, with R = exp(-hours / 24), other sizes, and the least visited
  segment making room.

Deviations and decisions:

- Times are those of units and questions; all releases look at the clock.
- Visits are not counted on reads unless `mutate_on_read`, because answers would depend on the order of the questions.
- Pages come from the unit rule, one a unit. A page that lacks either side is dropped when it leaves the queue, as released.
- A page leaves the queue before the next is added, except in `code`; the package lost the oldest page until April 2026.
- A page with two themes is filed under both segments, stored once and recalled once (the releases hold and recall it twice).
- A running line is shared by its chain of pages, and the turns of the others are not evidence of a page. Page vectors are those of the text
  without its time. The order in which heats are compared is always current (in the evaluation code it may lag behind by a page).
- Replies are JSON where the releases part prose at headers. One profile prompt with the package's three groups serves all modes.
- Where the paper sets no threshold for segments, pages or facts, there is none. It does not say where a question's keywords come from:
  here from the prompt that the evaluation code uses.
"""

from __future__ import annotations

import math
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Literal

import numpy as np

from data_loaders.schema import Question, Role, Unit
from memsys.embed import Embedder
from memsys.interface import Item, MemorySystem, NodeView, Recall, dated, known_mode, one_of, positive, union, unit_item
from memsys.llm import meter
from memsys.llm.ask import ask, ask_all
from memsys.llm.parsing import ParseFailure
from memsys.llm.protocol import LLM
from memsys.prompts import Prompts
from memsys.vectors import Vectors, best

_THEMES, _KEYWORDS = 2, 3
_NONE = "(none)"


@dataclass(frozen=True, slots=True)
class Release:
    """The settings in which the paper, its evaluation code and the package differ."""

    short_term: int
    """Pages in the queue."""
    mid_term: int
    """Segments."""
    long_term: int | None
    """Facts about each side, the oldest going first; None for no limit."""
    k: int
    """Pages recalled."""
    knowledge_k: int
    """Facts about the user recalled."""
    traits_k: int | None
    """Facts about the assistant recalled; None for all."""
    weights: tuple[float, float, float]
    """Of visits, length and recency in the heat."""
    decay: float
    """Seconds after which recency is 1/e."""
    thresholds: tuple[float, float, float]
    """Least similarity of segments, pages and facts to the question."""
    coldest_goes: bool
    """Whether the segment with the least heat makes room, or the least visited one."""
    resets_all: bool
    """Whether an analysis resets visits and recency beside the length."""
    question_keywords: bool
    """Whether the keywords of a question have a say in the choice of segments."""
    evaluation: bool
    """What only the evaluation code does (see the module)."""


RELEASES: Mapping[str, Release] = {
    "paper": Release(7, 200, 100, 10, 10, 10, (1, 1, 1), 1e7, (-1, -1, -1), True, False, True, False),
    "code": Release(
        1, 2000, None, 10, 10, None, (0.8, 0.8, 0.0001), math.inf, (0.1, 0.1, 0.1), False, True, True, True
    ),
    "library": Release(10, 2000, 100, 7, 20, 20, (1, 1, 1), 86_400, (0.1, 0.1, 0.01), False, True, False, False),
}


@dataclass(slots=True)
class _Page:
    """A unit on its way through the memory; its number is its row in the matrix of page vectors."""

    number: int
    unit: Unit
    chain: int = -1
    """Which run of continuous pages it belongs to, once it has left the queue."""
    segments: list[int] = field(default_factory=list)
    analysed: bool = False

    def said(self, *roles: Role) -> str:
        return "\n".join(turn.text for turn in self.unit.turns if turn.role in roles).strip()


@dataclass(slots=True)
class _Segment:
    """Pages about one subject."""

    number: int
    row: int
    """In the matrix of segment vectors; that of an evicted segment is used again."""
    summary: str
    keywords: frozenset[str]
    last: datetime | None
    """When it was last visited or filed under."""
    pages: list[_Page] = field(default_factory=list)
    visits: int = 0
    length: int = 0
    accessed: int = 0
    """As `visits`, but never reset."""


@dataclass(frozen=True, slots=True)
class _Theme:
    """A subject of a page."""

    summary: str
    keywords: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Knowledge:
    """A profile or a fact, and the pages that it was drawn from."""

    text: str
    sources: tuple[str, ...]
    first: Unit
    last: Unit

    @property
    def time_text(self) -> str:
        return " – ".join(dict.fromkeys(unit.time_text for unit in (self.first, self.last) if unit.time_text))


class _Facts:
    """Facts about one side; beyond the limit the oldest are passed over."""

    def __init__(self, kind: str, limit: int | None) -> None:
        self._kind, self._limit = kind, limit
        self._facts: list[_Knowledge] = []
        self._vectors = Vectors()

    def __len__(self) -> int:
        return len(self._facts) - self._oldest

    @property
    def _oldest(self) -> int:
        return max(0, len(self._facts) - self._limit) if self._limit is not None else 0

    def add(self, facts: Sequence[_Knowledge], vectors: np.ndarray) -> None:
        self._facts += facts
        for vector in vectors:
            self._vectors.add(vector)

    def items(self, query: np.ndarray, k: int | None, threshold: float) -> list[Item]:
        """The `k` facts most similar to the query (None: all), best first."""
        similarities = self._vectors.similarities(query)[self._oldest :]
        ranked = best(similarities, len(similarities) if k is None else k)
        return [
            self._item(self._oldest + place, float(similarities[place]))
            for place in ranked
            if similarities[place] >= threshold
        ]

    def views(self) -> Iterator[NodeView]:
        for number in range(self._oldest, len(self._facts)):
            yield _view(f"{self._kind}-{number}", self._kind, self._facts[number], self._vectors.matrix[number].copy())

    def _item(self, number: int, score: float) -> Item:
        fact = self._facts[number]
        return Item(
            f"{self._kind}-{number}", dated(fact.text, fact.time_text), score, fact.sources, self._kind, level=2
        )


class MemoryOS(MemorySystem):
    """Recalls the latest pages, then the `k` best pages of the best segments, then profile and facts.

    Args:
        k: mid-term pages recalled; None for the mode's number (the paper: 10 on LoCoMo, 5 on GVD). The short term (at most `short_term`
            items), the profile and the facts come on top.
        segments: segments whose pages are looked at.
        short_term, mid_term, knowledge_k: sizes (see `Release`); None for the mode's.
        merge_threshold: least score with which a page is filed under an existing segment.
        heat_threshold: heat with which a segment is analysed.
        incomplete: what becomes of a page without a reply, or without a user's part, that leaves the queue: `drop`, or `keep` where
            units are no pairs.
        mutate_on_read: whether a read visits the segments that it recalls from; the questions must then come in order.

    Raises:
        ValueError: an unknown choice, or a number below 1.
    """

    READ_KNOBS: ClassVar = ("k", "segments", "knowledge_k")
    MODES: ClassVar = tuple(RELEASES)
    PROMPTS: ClassVar = ("memoryos",)
    UNIT: ClassVar = {"rule": "page"}
    PAST_K: ClassVar = "k counts the mid-term pages; the short term, the profile and the facts come on top"

    def __init__(
        self,
        llm: LLM,
        embedder: Embedder,
        prompts: Prompts,
        mode: Literal["paper", "code", "library"] = "paper",
        k: int | None = None,
        segments: int = 5,
        short_term: int | None = None,
        mid_term: int | None = None,
        knowledge_k: int | None = None,
        merge_threshold: float = 0.6,
        heat_threshold: float = 5.0,
        incomplete: Literal["drop", "keep"] = "drop",
        mutate_on_read: bool = False,
    ) -> None:
        self.llm, self.embedder, self.prompts = llm, embedder, prompts
        self.mode = known_mode(self, mode)
        self.release = RELEASES[mode]
        self.k, self.knowledge_k = k, knowledge_k
        self.segments = positive("segments", segments)
        for name in ("k", "knowledge_k"):
            if getattr(self, name) is not None:
                positive(name, getattr(self, name))
        self.short_term = positive("short_term", self.release.short_term if short_term is None else short_term)
        self.mid_term = positive("mid_term", self.release.mid_term if mid_term is None else mid_term)
        self.merge_threshold, self.heat_threshold = merge_threshold, heat_threshold
        self.incomplete = one_of("incomplete", incomplete, ("drop", "keep"))
        self.mutate_on_read = mutate_on_read
        self._clock: datetime | None = None
        self._short: deque[_Page] = deque()
        self._page_vectors = Vectors()
        self._filed: dict[int, _Page] = {}
        self._previous: _Page | None = None
        self._chains: list[str] = []
        self._segments: dict[int, _Segment] = {}
        self._segment_vectors = Vectors()
        self._free: list[int] = []
        self._made = 0
        self._profile: _Knowledge | None = None
        self._facts = {kind: _Facts(kind, self.release.long_term) for kind in ("user_fact", "assistant_fact")}
        self._counts: Counter[str] = Counter()

    # --- short to mid term ----------------------------------------------------------------------------------------

    def write(self, unit: Unit) -> None:
        """Queue the unit as a page; file the page that has to leave; analyse the hottest segment when it is due."""
        self._clock = unit.time or self._clock
        page = _Page(self._page_vectors.add(self.embedder.embed([unit.text])[0]), unit)
        # The evaluation code adds first: with its capacity of one the queue is empty whenever it is read.
        if self.release.evaluation:
            self._short.append(page)
        while len(self._short) >= self.short_term:
            self._leave(self._short.popleft())
        if not self.release.evaluation:
            self._short.append(page)
        self._analyse_hottest()

    def _leave(self, page: _Page) -> None:
        """Link the page to the one before it, and file it under its themes."""
        if self.incomplete == "drop" and not (page.said("user") and page.said("assistant")):
            self._count("incomplete_page")
            return
        text = self._subject(page)
        asks: list[Any] = [(self.prompts["memoryos/themes"], {"text": text})]
        if self._previous is not None:
            fields = {"history": self._previous.unit.text, "new": page.unit.text}
            asks.insert(0, (self.prompts["memoryos/continuity"], fields))
        *continuity, reply = ask_all(self.llm, asks)
        self._link(page, continuity[0] if continuity else "false")
        themes = self._themes(reply, text)
        vectors = self.embedder.embed([theme.summary for theme in themes]) if themes else ()
        for theme, vector in zip(themes, vectors, strict=True):
            self._file(page, theme, vector)

    def _subject(self, page: _Page) -> str:
        """What a page's themes are drawn from: the whole page, in the evaluation code the user's part alone."""
        return (page.said("user") or page.said("assistant")) if self.release.evaluation else page.unit.text

    def _link(self, page: _Page, continuity: Any) -> None:
        if isinstance(continuity, ParseFailure):
            self._count("unknown_continuity")
        continues = self._previous if continuity == "true" else None
        meta = self._chains[continues.chain] if continues else ""
        prompt, texts = self.prompts["memoryos/meta"], [text for text in (meta, page.unit.text) if text]
        reply = ask(self.llm, prompt, texts=texts, earlier=meta or _NONE, dialogue=_shown([page]))
        if isinstance(reply, ParseFailure):
            self._count("copied_page")
            reply = page.unit.text
        if continues:
            page.chain = continues.chain
            self._chains[page.chain] = reply
        else:
            page.chain = len(self._chains)
            self._chains.append(reply)
        self._previous = page

    def _themes(self, reply: Any, text: str) -> list[_Theme]:
        found = [] if isinstance(reply, ParseFailure) else reply["themes"][:_THEMES]
        pairs = [((one.get("content") or one["theme"]).strip(), one.get("keywords", ())) for one in found]
        themes = [_Theme(summary, _normal(keywords)) for summary, keywords in pairs if summary]
        if themes:
            return themes
        if self.release.evaluation:
            self._count("lost_page")
            return []
        self._count("generic_theme")
        return [_Theme(text, frozenset())]

    def _file(self, page: _Page, theme: _Theme, vector: np.ndarray) -> None:
        nearest, score = self._nearest(theme, vector)
        if nearest is not None and score >= self.merge_threshold:
            self._append(nearest, page)
            return
        if nearest is not None and self.release.evaluation:
            nearest.length += 1
        keywords = self._asked([theme.summary, page.unit.text])[0] if self.release.evaluation else theme.keywords
        segment = _Segment(self._made, self._row(vector), theme.summary, keywords, self._clock)
        self._made += 1
        self._segments[segment.number] = segment
        self._append(segment, page)
        if len(self._segments) > self.mid_term:
            self._make_room()

    def _row(self, vector: np.ndarray) -> int:
        if not self._free:
            return self._segment_vectors.add(vector)
        row = self._free.pop()
        self._segment_vectors.set(row, vector)
        return row

    def _similarities(self, vector: np.ndarray) -> np.ndarray:
        """Cosine of the vector with each segment's, oldest segment first."""
        similarities = self._segment_vectors.similarities(vector)
        return similarities[[segment.row for segment in self._segments.values()]]

    def _nearest(self, theme: _Theme, vector: np.ndarray) -> tuple[_Segment | None, float]:
        """The segment that the theme fits best, and how well it does."""
        if not self._segments:
            return None, 0.0
        segments, scores = list(self._segments.values()), self._similarities(vector)
        if not self.release.evaluation:
            scores = scores + [jaccard(theme.keywords, segment.keywords) for segment in segments]
        place = int(np.argmax(scores))
        extra = mean_overlap(theme.keywords, segments[place].keywords) if self.release.evaluation else 0.0
        return segments[place], float(scores[place]) + extra

    def _append(self, segment: _Segment, page: _Page) -> None:
        segment.last = self._clock
        if segment.number not in page.segments:
            segment.pages.append(page)
            segment.length += 1
            page.segments.append(segment.number)
            self._filed[page.number] = page

    def _make_room(self) -> None:
        def worth(segment: _Segment) -> float:
            return self._heat(segment) if self.release.coldest_goes else segment.accessed

        gone = min(self._segments.values(), key=worth)
        del self._segments[gone.number]
        self._free.append(gone.row)
        for page in gone.pages:
            page.segments.remove(gone.number)
            if not page.segments:
                del self._filed[page.number]
        self._count("evicted_segment")

    def _asked(self, texts: Sequence[str]) -> list[frozenset[str]]:
        """Keywords that the model gives for each text; none where it gives nothing."""
        prompt = self.prompts["memoryos/keywords"]
        replies = ask_all(self.llm, [(prompt, {"text": text}) for text in texts])
        if failed := sum(isinstance(reply, ParseFailure) for reply in replies):
            meter.note("memoryos.no_keywords", failed)
        return [frozenset() if isinstance(reply, ParseFailure) else _normal(_split(reply)) for reply in replies]

    # --- mid to long term -----------------------------------------------------------------------------------------

    def _heat(self, segment: _Segment) -> float:
        elapsed = (self._clock - segment.last).total_seconds() if self._clock and segment.last else 0.0
        return heat(segment.visits, segment.length, recency(elapsed, self.release.decay), self.release.weights)

    def _analyse_hottest(self) -> None:
        # Recency is at most 1: what would not reach the threshold with that need not be looked at more closely.
        warm = [
            segment
            for segment in self._segments.values()
            if heat(segment.visits, segment.length, 1.0, self.release.weights) >= self.heat_threshold
        ]
        hottest = max(warm, key=self._heat, default=None)
        if hottest is None or self._heat(hottest) < self.heat_threshold:
            return
        pages = [page for page in hottest.pages if not page.analysed]
        if not pages:
            return
        self._count("analysis")
        self._analyse(pages)
        for page in hottest.pages:
            page.analysed = True
        hottest.length = 0
        if self.release.resets_all:
            hottest.visits, hottest.last = 0, self._clock

    def _analyse(self, pages: Sequence[_Page]) -> None:
        """Read pages for the profile and for facts about both sides."""
        asks = [
            (self.prompts["memoryos/profile"], {"text": _shown(pages), "user": _named(pages, "user")}),
            (self.prompts["memoryos/assistant"], {
                "text": _shown(pages, "assistant"), "dialogue": _shown(pages), "assistant": _named(pages, "assistant"),
            }),
        ]  # fmt: skip
        profile, assistant = ask_all(self.llm, asks)
        if isinstance(profile, ParseFailure):
            self._count("kept_old_profile")
        else:
            self._portray(profile["profile"].strip(), pages)
            self._learn("user_fact", profile["facts"], pages)
        if isinstance(assistant, ParseFailure):
            self._count("no_assistant_facts")
        else:
            self._learn("assistant_fact", assistant["facts"], pages)

    def _portray(self, text: str, pages: Sequence[_Page]) -> None:
        """Make the text the profile, merged with the one that there is."""
        if not text:
            return
        new = _knowledge(text, pages)
        if self._profile is None:
            self._profile = new
            return
        old = self._profile
        reply = ask(self.llm, self.prompts["memoryos/merge"], texts=(old.text, text), old=old.text, new=text)
        if isinstance(reply, ParseFailure):
            self._count("kept_old_profile")
            return
        self._profile = _Knowledge(reply, union((old.sources, new.sources)), old.first, new.last)

    def _learn(self, kind: str, lines: Iterable[str], pages: Sequence[_Page]) -> None:
        texts = [text for line in lines if (text := line.strip(" -*\n")) and text.casefold() != "none"]
        if texts:
            self._facts[kind].add([_knowledge(text, pages) for text in texts], self.embedder.embed(texts))

    # --- recall ---------------------------------------------------------------------------------------------------

    def read(self, question: Question) -> Recall:
        if not len(self._page_vectors):
            return Recall(())
        query = self.embedder.embed([question.text], query=True)[0]
        segments = self._matching(question.text, query)
        pages = {page.number: page for segment in segments for page in segment.pages}
        numbers = sorted(pages)
        scores = self._page_vectors.similarities(query)[numbers]
        _, least, least_fact = self.release.thresholds
        similar = {number for number, score in zip(numbers, scores, strict=True) if score >= least}
        k = self.release.k if self.k is None else self.k
        knowledge_k = self.release.knowledge_k if self.knowledge_k is None else self.knowledge_k
        hits = [place for place in best(scores, k) if numbers[place] in similar]
        if self.mutate_on_read:
            self._visit((one for one in segments if any(page.number in similar for page in one.pages)), question.time)
        return Recall((
            *(unit_item(page.unit, kind="short_term") for page in self._short),
            *(self._item(pages[numbers[place]], float(scores[place])) for place in hits),
            *([self._profile_item(self._profile)] if self._profile else ()),
            *self._facts["user_fact"].items(query, knowledge_k, least_fact),
            *self._facts["assistant_fact"].items(query, self.release.traits_k, least_fact),
        ))  # fmt: skip

    def _matching(self, question: str, query: np.ndarray) -> list[_Segment]:
        """The segments that fit the question best: in the paper by cosine + Jaccard of the keywords (Eq. 3), else by cosine.

        In the evaluation code shared keywords only help the nearest segments to pass the threshold; the paper has none to pass.
        """
        if not self._segments:
            return []
        keywords = self._asked([question])[0] if self.release.question_keywords else frozenset[str]()
        segments, scores = list(self._segments.values()), self._similarities(query)
        if not self.release.evaluation:
            scores = scores + [jaccard(keywords, segment.keywords) for segment in segments]
        nearest = [(segments[place], float(scores[place])) for place in best(scores, self.segments)]
        return [
            segment
            for segment, score in nearest
            if score + mean_overlap(keywords, segment.keywords) >= self.release.thresholds[0]
        ]

    def _visit(self, segments: Iterable[_Segment], time: datetime | None) -> None:
        for segment in segments:
            segment.visits += 1
            segment.accessed += 1
            segment.last = time or self._clock

    def _item(self, page: _Page, score: float) -> Item:
        text = f"{dated(page.unit.text, page.unit.time_text)}\nContext: {self._chains[page.chain]}"
        return Item(page.unit.id, text, score, page.unit.turn_ids, "page")

    def _profile_item(self, profile: _Knowledge) -> Item:
        return Item("profile", dated(profile.text, profile.time_text), 0.0, profile.sources, "profile", level=2)

    # --- structure ------------------------------------------------------------------------------------------------

    def nodes(self) -> Iterator[NodeView]:
        """Queued pages, filed pages below their segments, and what is known for the long term."""
        for page in (*self._short, *self._filed.values()):
            parents = tuple(f"segment-{number}" for number in page.segments)
            vector, unit = self._page_vectors.matrix[page.number].copy(), page.unit
            yield NodeView(unit.id, parents, 0, "page", unit.text, vector, unit.turn_ids, unit.time, unit.time)
        for segment in self._segments.values():
            knowledge = _knowledge(segment.summary, segment.pages)
            vector = self._segment_vectors.matrix[segment.row].copy()
            yield _view(f"segment-{segment.number}", "segment", knowledge, vector, level=1)
        if self._profile:
            yield _view("profile", "profile", self._profile, None)
        for facts in self._facts.values():
            yield from facts.views()

    @property
    def held(self) -> int:
        facts = sum(map(len, self._facts.values()))
        return len(self._short) + len(self._filed) + facts + (self._profile is not None)

    def report(self) -> dict[str, Any]:
        """Entries of each store, the segments' heat, and how often something was analysed, evicted or left out."""
        heats = [self._heat(segment) for segment in self._segments.values()]
        return {
            "short_term": len(self._short),
            "pages": len(self._filed),
            "segments": len(self._segments),
            "chains": len(self._chains),
            **{f"{kind}s": len(facts) for kind, facts in self._facts.items()},
            "mean_heat": sum(heats) / max(1, len(heats)),
            **self._counts,
        }

    def _count(self, event: str) -> None:
        self._counts[event] += 1
        if event not in ("analysis", "evicted_segment"):
            meter.note(f"memoryos.{event}")


def heat(visits: int, length: int, recency: float, weights: tuple[float, float, float]) -> float:
    """alpha · N_visit + beta · L_interaction + gamma · R_recency."""
    return weights[0] * visits + weights[1] * length + weights[2] * recency


def recency(seconds: float, decay: float) -> float:
    """exp(-seconds / decay), in [0, 1]; 1 for an infinite decay and for times that run backwards."""
    return math.exp(-max(0.0, seconds) / decay)


def jaccard(first: frozenset[str], second: frozenset[str]) -> float:
    """Shared keywords over all keywords; 0 where there are none."""
    return len(first & second) / len(first | second) if first and second else 0.0


def mean_overlap(first: frozenset[str], second: frozenset[str]) -> float:
    """The mean of the two shares that the shared keywords have; 0 where either set is empty."""
    shared = len(first & second)
    return (shared / len(first) + shared / len(second)) / 2 if shared else 0.0


def _normal(keywords: Iterable[str]) -> frozenset[str]:
    return frozenset(keyword.strip().casefold() for keyword in keywords if keyword.strip())


def _split(reply: str) -> list[str]:
    return [part for part in re.split(r"[,;\n]", reply) if part.strip()][:_KEYWORDS]


def _shown(pages: Sequence[_Page], *roles: Role) -> list[str]:
    """The pages with their times, or only what some of the roles say in them."""
    lines = []
    for page in pages:
        turns = [turn for turn in page.unit.turns if not roles or turn.role in roles]
        text = "\n".join(f"{turn.speaker}: {turn.text}" if turn.speaker else turn.text for turn in turns)
        lines.append(dated(text, page.unit.time_text))
    return lines


def _named(pages: Sequence[_Page], role: Role) -> str:
    """The name of one side, where it has one."""
    speakers = (turn.speaker for page in pages for turn in page.unit.turns if turn.role == role and turn.speaker)
    return next(speakers, f"the {role}")


def _knowledge(text: str, pages: Sequence[_Page]) -> _Knowledge:
    sources = union(page.unit.turn_ids for page in pages)
    return _Knowledge(text, sources, pages[0].unit, pages[-1].unit)


def _view(name: str, kind: str, knowledge: _Knowledge, vector: np.ndarray | None, level: int = 2) -> NodeView:
    times = [unit.time for unit in (knowledge.first, knowledge.last) if unit.time is not None]
    start, end = min(times, default=None), max(times, default=None)
    return NodeView(name, (), level, kind, knowledge.text, vector, knowledge.sources, start, end)
