"""MemoryOS: short-, mid- and long-term memory; frequent subjects are analysed into knowledge about the speakers (Kang et al., 2025).

A page is a message of the user and the reply to it. The latest pages wait in a queue (short term). A page that leaves the queue is filed by
subject in a segment (`memoryos.midterm`), with a line about the pages before it. Every segment has a heat, computed from its visits, its
pages and its recency. When the hottest segment reaches a threshold, its new pages are read for a profile of the user and for facts about
both sides (`LongTerm`). A recall holds the short term, the best pages of the best segments, the profile and the best facts.

`mode` chooses one of the three published sets of settings (`memoryos.midterm.RELEASES`):

- `paper`: a page is filed in the segment with the highest cosine + Jaccard of the keywords (Eq. 3); a question chooses its segments by
  the same sum, and its keywords cost a call. The coldest segment is evicted. An analysis resets L only.
- `code`: the authors' evaluation code. A page leaves the queue at once. Themes come from the user's part of a page only. The segment is
  chosen by cosine and accepted by cosine + mean overlap of the keywords; keywords cost calls of their own (for a new segment, for its
  page and for the question; those of pages have no effect). The chosen segment's L grows even when a new segment is made. A page without
  themes is lost. Recency is always 1.
- `library`: the package. It files as the paper does and reads by cosine only, with R = exp(-hours / 24) and other sizes; the least
  visited segment is evicted.

Deviations and decisions:

- Times are those of units and questions; all releases read the clock.
- A read does not count as a visit unless `mutate_on_read` is set: otherwise answers would depend on the order of the questions.
- Pages come from the unit rule, one per unit. A page that lacks either side is dropped when it leaves the queue, as released.
- A page leaves the queue before the next is added, except in `code`; until April 2026 the package lost the oldest page.
- A page with two themes is filed in both segments, stored once and recalled once; the releases hold and recall it twice.
- The line about earlier pages is shared by a chain of pages; the turns of the other pages are not evidence for a page. Page vectors embed
  the text without its time. Heats are always compared at their current values; in the evaluation code they may lag by one page.
- Replies are JSON; the releases split prose at headers. One profile prompt with the package's three groups serves all modes.
- Where the paper gives no threshold for segments, pages or facts, there is none. It does not say where a question's keywords come from;
  here they come from the prompt of the evaluation code.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Literal

import numpy as np

from data_loaders.schema import Question, Role, Unit
from memsys.interface import (
    Item,
    MemorySystem,
    NodeView,
    Positive,
    Recall,
    Settings,
    dated,
    period,
    period_text,
    spoken,
    union,
    unit_item,
)
from memsys.llm import meter
from memsys.llm.ask import ParseFailure, ask, ask_all
from memsys.llm.protocol import LLM
from memsys.prompts import Prompts
from memsys.systems.memoryos.midterm import RELEASES, MidTerm, Page, Segment, Theme, mean_overlap
from memsys.vectors import Embedder, Vectors, best


@dataclass(frozen=True, slots=True)
class Knowledge:
    """A profile, a fact or a segment's summary, and the pages it was drawn from."""

    text: str
    sources: tuple[str, ...]
    first: Unit
    last: Unit

    def item(self, name: str, kind: str, score: float) -> Item:
        """The text as a recalled item, with the period of its pages."""
        return Item(name, dated(self.text, period_text(self.first, self.last)), score, self.sources, kind, level=2)

    def view(self, name: str, kind: str, vector: np.ndarray | None, level: int = 2) -> NodeView:
        """The text as a node without parents."""
        return NodeView(name, (), level, kind, self.text, vector, self.sources, *period((self.first, self.last)))


def knowledge(text: str, pages: Sequence[Page]) -> Knowledge:
    """A text that was drawn from pages in the order of time."""
    return Knowledge(text, union(page.unit.turn_ids for page in pages), pages[0].unit, pages[-1].unit)


class Facts:
    """Facts about one side. Beyond `limit` the oldest facts are ignored; None for no limit."""

    def __init__(self, kind: str, limit: int | None) -> None:
        self._kind, self._limit = kind, limit
        self._facts: list[Knowledge] = []
        self._vectors = Vectors()

    def __len__(self) -> int:
        return len(self._facts) - self._oldest

    @property
    def _oldest(self) -> int:
        """Number of the oldest fact that counts."""
        return max(0, len(self._facts) - self._limit) if self._limit is not None else 0

    def add(self, facts: Sequence[Knowledge], vectors: np.ndarray) -> None:
        """Append facts with their vectors, float32 [facts, d]."""
        self._facts += facts
        for vector in vectors:
            self._vectors.add(vector)

    def items(self, query: np.ndarray, k: int | None, threshold: float) -> list[Item]:
        """The `k` facts most similar to the query (None: all) whose cosine is at least `threshold`, best first."""
        similarities = self._vectors.similarities(query)[self._oldest :]
        ranked = best(similarities, len(similarities) if k is None else k)
        return [
            self._facts[self._oldest + place].item(
                f"{self._kind}-{self._oldest + place}", self._kind, float(similarities[place])
            )
            for place in ranked
            if similarities[place] >= threshold
        ]

    def views(self) -> Iterator[NodeView]:
        """The facts as nodes, the oldest first."""
        for number in range(self._oldest, len(self._facts)):
            vector = self._vectors.matrix[number].copy()
            yield self._facts[number].view(f"{self._kind}-{number}", self._kind, vector)


class LongTerm:
    """Profile and facts; `failures` counts the replies that could not be used, by outcome."""

    def __init__(self, llm: LLM, embedder: Embedder, prompts: Prompts, limit: int | None) -> None:
        self._llm, self._embedder, self._prompts = llm, embedder, prompts
        self.profile: Knowledge | None = None
        self.facts = {kind: Facts(kind, limit) for kind in ("user_fact", "assistant_fact")}
        self.failures: Counter[str] = Counter()

    def __len__(self) -> int:
        return sum(map(len, self.facts.values())) + (self.profile is not None)

    def learn(self, pages: Sequence[Page]) -> None:
        """Read pages for the profile and for facts about both sides: two calls, and one more to merge profiles."""
        whole = dialogue(pages)
        asks = [
            (self._prompts["memoryos/profile"], {"text": whole, "user": _speaker(pages, "user")}),
            (self._prompts["memoryos/assistant"], {
                "text": dialogue(pages, "assistant"), "dialogue": whole, "assistant": _speaker(pages, "assistant"),
            }),
        ]  # fmt: skip
        user_reply, assistant_reply = ask_all(self._llm, asks)
        if isinstance(user_reply, ParseFailure):
            self._failed("kept_old_profile")
        else:
            self._update_profile(user_reply["profile"].strip(), pages)
            self._add_facts("user_fact", user_reply["facts"], pages)
        if isinstance(assistant_reply, ParseFailure):
            self._failed("no_assistant_facts")
        else:
            self._add_facts("assistant_fact", assistant_reply["facts"], pages)

    def _update_profile(self, text: str, pages: Sequence[Page]) -> None:
        """Store the text as the profile, merged with the old profile where there is one."""
        if not text:
            return
        new = knowledge(text, pages)
        if self.profile is None:
            self.profile = new
            return
        old = self.profile
        prompt, event, counts = self._prompts["memoryos/merge"], "memoryos.kept_old_profile", self.failures
        reply = ask(self._llm, prompt, texts=(old.text, text), old=old.text, new=text, noted=event, counts=counts)
        if reply:
            self.profile = Knowledge(reply, union((old.sources, new.sources)), old.first, new.last)

    def _add_facts(self, kind: str, lines: Iterable[str], pages: Sequence[Page]) -> None:
        texts = [text for line in lines if (text := line.strip(" -*\n")) and text.casefold() != "none"]
        if texts:
            self.facts[kind].add([knowledge(text, pages) for text in texts], self._embedder.embed(texts))

    def _failed(self, outcome: str) -> None:
        self.failures[outcome] += 1
        meter.note(f"memoryos.{outcome}")


def dialogue(pages: Sequence[Page], *roles: Role) -> list[str]:
    """The pages as dated texts; where roles are given, only the turns that have one of them."""
    texts = []
    for page in pages:
        turns = [turn for turn in page.unit.turns if not roles or turn.role in roles]
        texts.append(dated("\n".join(map(spoken, turns)), page.unit.time_text))
    return texts


def _speaker(pages: Sequence[Page], role: Role) -> str:
    """The name of the speaker with that role; `the <role>` where it has no name."""
    speakers = (turn.speaker for page in pages for turn in page.unit.turns if turn.role == role and turn.speaker)
    return next(speakers, f"the {role}")


_THEMES, _KEYWORDS = 2, 3
"""Maximum number of themes of a page, and of keywords of a text."""
_NONE = "(none)"


@dataclass(frozen=True)
class MemoryOSSettings(Settings):
    mode: Literal["paper", "code", "library"] = "paper"
    """`paper`, `code` or `library`, see the module."""
    k: Positive | None = None
    """Mid-term pages recalled; None for the mode's number (the paper: 10 on LoCoMo, 5 on GVD). The short term (at most `short_term`
    items), the profile and the facts are added to these."""
    segments: Positive = 5
    """Segments whose pages are searched."""
    short_term: Positive | None = None
    mid_term: Positive | None = None
    knowledge_k: Positive | None = None
    """Sizes (see `Release`); None for the mode's."""
    merge_threshold: float = 0.6
    """Minimum similarity with which a page is filed in an existing segment."""
    heat_threshold: float = 5.0
    """Heat at which a segment is analysed."""
    incomplete: Literal["drop", "keep"] = "drop"
    """Whether a page that lacks a reply or a user's part is dropped when it leaves the queue (`drop`), or kept (`keep`; for units that
    are not pairs)."""
    mutate_on_read: bool = False
    """Whether a read visits the segments it recalls from; the questions must then come in order."""


class MemoryOS(MemorySystem):
    """Recalls the latest pages, then the `k` best pages of the best segments, then the profile and facts."""

    READ_KNOBS: ClassVar = ("k", "segments", "knowledge_k")
    MODES: ClassVar = tuple(RELEASES)
    PROMPTS: ClassVar = ("memoryos",)
    UNIT: ClassVar = {"rule": "page"}
    PAST_K: ClassVar = "k counts the mid-term pages; the short term, the profile and the facts come on top"

    def __init__(
        self, llm: LLM, embedder: Embedder, prompts: Prompts, settings: MemoryOSSettings = MemoryOSSettings()
    ) -> None:
        self.llm, self.embedder, self.prompts, self.settings = llm, embedder, prompts, settings
        self.release = RELEASES[settings.mode]
        self.short_term = settings.short_term or self.release.short_term
        self.mid_term = settings.mid_term or self.release.mid_term
        self._now: datetime | None = None
        self._short: deque[Page] = deque()
        self._page_vectors = Vectors()
        self._previous: Page | None = None
        self._chains: list[str] = []
        self._mid = MidTerm(self.release, self.mid_term)
        self._long = LongTerm(llm, embedder, prompts, self.release.long_term)
        self._counts: Counter[str] = Counter()

    def write(self, unit: Unit) -> None:
        """Queue the unit as a page, file the pages that have to leave, and analyse the hottest segment when it is due."""
        self._now = unit.time or self._now
        page = Page(self._page_vectors.add(self.embedder.embed([unit.text])[0]), unit)
        # The evaluation code adds first: with its capacity of one the queue is empty whenever it is read.
        if self.release.evaluation:
            self._short.append(page)
        while len(self._short) >= self.short_term:
            self._move_to_mid_term(self._short.popleft())
        if not self.release.evaluation:
            self._short.append(page)
        self._analyse_hottest()

    def _move_to_mid_term(self, page: Page) -> None:
        """Link the page to the page before it, and file it under each of its themes."""
        if self.settings.incomplete == "drop" and not (page.text_of("user") and page.text_of("assistant")):
            self._count("incomplete_page")
            return
        text = (page.text_of("user") or page.text_of("assistant")) if self.release.evaluation else page.unit.text
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

    def _link(self, page: Page, continuity: Any) -> None:
        """Put the page into the chain of the previous page or into a new one, and write that chain's line again."""
        if isinstance(continuity, ParseFailure):
            self._count("unknown_continuity")
        continued = self._previous if continuity == "true" else None
        meta = self._chains[continued.chain] if continued else ""
        prompt, texts = self.prompts["memoryos/meta"], [text for text in (meta, page.unit.text) if text]
        fields: dict[str, Any] = {"texts": texts, "earlier": meta or _NONE, "dialogue": dialogue([page])}
        reply = ask(self.llm, prompt, noted="memoryos.copied_page", counts=self._counts, **fields)
        line = reply or page.unit.text
        if continued:
            page.chain = continued.chain
            self._chains[page.chain] = line
        else:
            page.chain = len(self._chains)
            self._chains.append(line)
        self._previous = page

    def _themes(self, reply: Any, text: str) -> list[Theme]:
        """The themes in a reply; where there are none, the text itself, or nothing (evaluation code)."""
        entries = [] if isinstance(reply, ParseFailure) else reply["themes"][:_THEMES]
        pairs = [((entry.get("content") or entry["theme"]).strip(), entry.get("keywords", ())) for entry in entries]
        themes = [Theme(summary, _normal(keywords)) for summary, keywords in pairs if summary]
        if themes:
            return themes
        if self.release.evaluation:
            self._count("lost_page")
            return []
        self._count("generic_theme")
        return [Theme(text, frozenset())]

    def _file(self, page: Page, theme: Theme, vector: np.ndarray) -> None:
        """Put the page into the segment most similar to the theme, or into a new one."""
        nearest, score = self._mid.nearest(theme, vector)
        if nearest is not None and score >= self.settings.merge_threshold:
            self._mid.file(page, nearest, self._now)
            return
        if self.release.evaluation:
            if nearest is not None:
                nearest.length += 1
            theme = Theme(theme.summary, self._keywords([theme.summary, page.unit.text])[0])
        self._mid.file(page, self._mid.create(theme, vector, self._now), self._now)
        if self._mid.evict(self._now):
            self._counts["evicted_segment"] += 1

    def _keywords(self, texts: Sequence[str]) -> list[frozenset[str]]:
        """Keywords that the model gives for each text; an empty set where the reply cannot be read."""
        prompt = self.prompts["memoryos/keywords"]
        replies = ask_all(self.llm, [(prompt, {"text": text}) for text in texts], noted="memoryos.no_keywords")
        return [_normal(_split(reply)) if reply else frozenset() for reply in replies]

    def _analyse_hottest(self) -> None:
        """Read the hottest segment's new pages for long-term knowledge when it reaches the threshold."""
        hottest = self._mid.hottest(self.settings.heat_threshold, self._now)
        new_pages = [page for page in hottest.pages if not page.analysed] if hottest else []
        if hottest is None or not new_pages:
            return
        self._counts["analysis"] += 1
        self._long.learn(new_pages)
        for page in new_pages:
            page.analysed = True
        hottest.length = 0
        if self.release.resets_all:
            hottest.visits, hottest.last = 0, self._now

    def read(self, question: Question) -> Recall:
        if not len(self._page_vectors):
            return Recall(())
        query = self.embedder.embed([question.text], query=True)[0]
        _, _, least_fact = self.release.thresholds
        knowledge_k = self.settings.knowledge_k or self.release.knowledge_k
        return Recall((
            *(unit_item(page.unit, kind="short_term") for page in self._short),
            *self._page_items(question, query),
            *([self._long.profile.item("profile", "profile", 0.0)] if self._long.profile else ()),
            *self._long.facts["user_fact"].items(query, knowledge_k, least_fact),
            *self._long.facts["assistant_fact"].items(query, self.release.traits_k, least_fact),
        ))  # fmt: skip

    def _page_items(self, question: Question, query: np.ndarray) -> list[Item]:
        """The `k` pages most similar to the query among those of the best segments, best first."""
        segments = self._best_segments(question.text, query)
        pages = {page.number: page for segment in segments for page in segment.pages}
        numbers = sorted(pages)
        scores = self._page_vectors.similarities(query)[numbers]
        least = self.release.thresholds[1]
        similar = {number for number, score in zip(numbers, scores, strict=True) if score >= least}
        if self.settings.mutate_on_read:
            for segment in segments:
                if any(page.number in similar for page in segment.pages):
                    segment.visits += 1
                    segment.accessed += 1
                    segment.last = question.time or self._now
        items = []
        for place in (each for each in best(scores, self.settings.k or self.release.k) if numbers[each] in similar):
            unit, chain = pages[numbers[place]].unit, pages[numbers[place]].chain
            text = f"{dated(unit.text, unit.time_text)}\nContext: {self._chains[chain]}"
            items.append(Item(unit.id, text, float(scores[place]), unit.turn_ids, "page"))
        return items

    def _best_segments(self, question: str, query: np.ndarray) -> list[Segment]:
        """The segments most similar to the question, best first.

        Eq. 3 where the mode uses the question's keywords, else the cosine. In the evaluation code shared keywords do not change the order;
        they only help a segment to pass the threshold. The paper has no threshold.
        """
        if not self._mid.segments:
            return []
        keywords = self._keywords([question])[0] if self.release.question_keywords else frozenset[str]()
        segments, scores = list(self._mid.segments.values()), self._mid.similarities(query, keywords)
        nearest = [(segments[place], float(scores[place])) for place in best(scores, self.settings.segments)]
        return [
            segment
            for segment, score in nearest
            if score + mean_overlap(keywords, segment.keywords) >= self.release.thresholds[0]
        ]

    def nodes(self) -> Iterator[NodeView]:
        """Queued pages, filed pages below their segments, and the long-term knowledge."""
        for page in (*self._short, *self._mid.pages.values()):
            parents = tuple(f"segment-{number}" for number in page.segments)
            vector, unit = self._page_vectors.matrix[page.number].copy(), page.unit
            yield NodeView(unit.id, parents, 0, "page", unit.text, vector, unit.turn_ids, unit.time, unit.time)
        for segment in self._mid.segments.values():
            summary = knowledge(segment.summary, segment.pages)
            yield summary.view(f"segment-{segment.number}", "segment", self._mid.vector(segment), level=1)
        if self._long.profile:
            yield self._long.profile.view("profile", "profile", None)
        for facts in self._long.facts.values():
            yield from facts.views()

    @property
    def held(self) -> int:
        return len(self._short) + len(self._mid.pages) + len(self._long)

    def report(self) -> dict[str, Any]:
        """Entries of each store, the segments' mean heat, and counts of analyses, evictions and unusable replies."""
        heats = [self._mid.heat(segment, self._now) for segment in self._mid.segments.values()]
        return {
            "short_term": len(self._short),
            "pages": len(self._mid.pages),
            "segments": len(self._mid.segments),
            "chains": len(self._chains),
            **{f"{kind}s": len(facts) for kind, facts in self._long.facts.items()},
            "mean_heat": sum(heats) / max(1, len(heats)),
            **self._counts,
            **self._long.failures,
        }

    def _count(self, failure: str) -> None:
        self._counts[failure] += 1
        meter.note(f"memoryos.{failure}")


def _normal(keywords: Iterable[str]) -> frozenset[str]:
    """Keywords in lower case, without empty ones."""
    return frozenset(keyword.strip().casefold() for keyword in keywords if keyword.strip())


def _split(reply: str) -> list[str]:
    """The first keywords of a reply that lists them with commas, semicolons or line breaks."""
    return [part for part in re.split(r"[,;\n]", reply) if part.strip()][:_KEYWORDS]
