"""TiMem: a tree of memories on five temporal levels, recalled to the depth that a question needs (Li et al., 2026, §3, App. B and C).

A segment (level 1, one exchange) is rewritten as soon as it is complete. Its session, day, ISO week (cut at month ends) and month are
written from the memories of the level below when they are over. For a question, a planner rates its complexity and names keywords. The
`k` best segments by cosine and BM25 activate the tree, their ancestors are added level by level within a budget, and a gate removes
irrelevant candidates.

`mode="code"` reproduces the released code (May 2026) where it differs from the paper:

- The prompt of a segment shows earlier segments of its session only (paper, Eq. 3: the last three of the level, across sessions), and
  the prompt of a session shows no earlier sessions. The session prompt that the paper prints (E.3.2) has no place for them either;
  mode `paper` follows Eq. 3 and §3.2.1, which give every level its history.
- A segment is scored by a channel only when it is among the channel's best 40 (paper, Eq. 7: both channels score all segments).
- Complex questions get 4 sessions and 2 days (paper, Table 7: 8 and 4).
- The budget keeps the earliest ancestors (paper, Table 7: those most similar to the question).
- Within a level, items are in order of time (paper, Eq. 11: the nearest to the question first), with the date alone.
- Every gate uses one minimal prompt.

Deviations and decisions:

- A window closes when the first unit of a later window arrives (the release replays calendar days at 02:00). It opens again when the
  stream returns to it. `consolidate` closes the open windows on a copy; later units continue the tree without these memories.
- A session belongs to the day of its first unit. A unit without a time gets the last known time; if there is none, all such units share
  one window. Turns are 5 seconds apart, as released. A window ends no later than the last unit seen.
- Prompts of segments show earlier memories oldest first, those of higher levels latest first.
- The unit rule drops an odd last turn, as released; a shorter last segment of a session is kept.
- The release retries almost without end (20 times for a plan); here each step has `attempts`. If a segment is still shorter than 10
  characters, a label and the first 50 characters of the dialogue replace it. On other levels, if shorter than 20, the children's texts,
  truncated to the length of a reply, replace it (our choice).
- Each channel is divided by its maximum if that is positive (as released; the paper is silent). The idf is ln(N/df), as released. A
  segment without any keyword has no lexical score. At most three keywords are used; without a planner, the keywords are the words of the
  question (the paper does not say). If a plan cannot be parsed, the first digit 0-2 in it is the complexity, or else `simple`, and there
  are no keywords (as released).
- We read "pruned by similarity scores" (Table 7) as the cosine between an ancestor's own text and the question; ties go to the earlier.
  `ancestor_pick="activation"` is the other reading: the sum of the scores of the segments below, ties by their maximum. In both cases,
  an ancestor's score as an item is the mean of these scores, because sums would rank every month above every segment.
- If a gate names no candidate, the first five are kept (segments first, in order of time), or all if there are fewer than three (as
  released). If its reply cannot be parsed, all are kept.
- A flat recall (Table 4) takes the best `k` memories of all chosen levels by the same score. `timem_flat` has no gate, because the
  published lengths match about twenty memories. `levels` filters the recall; all levels are built.
- A question without a time counts as asked at the time of the last unit.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from dateutil.relativedelta import relativedelta

from data_loaders.schema import Question, Unit
from memsys.dates import MONTHS, written
from memsys.interface import Item, MemorySystem, NodeView, NotNegative, Positive, Recall, Settings, Share, dated, union
from memsys.llm import meter
from memsys.llm.ask import ParseFailure, ask, ask_all
from memsys.llm.protocol import LLM, Completion
from memsys.prompts import Option, Prompt, Prompts
from memsys.tokens import truncate
from memsys.vectors import Embedder, best, cosines

STEPS = {1: "segment", 2: "session", 3: "day", 4: "week", 5: "month"}
"""Name of each level; also the name of its prompt."""


@dataclass(frozen=True, slots=True)
class Window:
    """A range of calendar days, both ends included."""

    first: date
    last: date


@dataclass(frozen=True, slots=True)
class Span:
    """The part of the conversation that a memory covers."""

    children: int
    """Number of nodes of the level below that it covers (units, at level 1); they are consecutive."""
    sources: tuple[str, ...]
    session: str
    """Its session; empty if it covers several."""
    start: datetime | None
    end: datetime | None
    times: tuple[str, ...]
    """Time texts of its first and last unit, or one text when they are equal."""

    @property
    def time_text(self) -> str:
        """The time texts as one, `first – last`."""
        return " – ".join(self.times)


@dataclass(frozen=True, slots=True)
class Node:
    """A memory of one span of the conversation."""

    level: int
    id: str
    span: Span
    text: str
    vector: np.ndarray
    words: Counter[str]
    fallback: bool
    """True when no reply was usable and the text is the fallback."""


@dataclass(slots=True)
class Tree:
    """The nodes of every level in stream order, and the open segment, session and windows."""

    nodes: dict[int, list[Node]] = field(default_factory=lambda: {level: [] for level in STEPS})
    placed: Counter[int] = field(default_factory=Counter)
    """Number of nodes of each level that have a parent; the others wait for their window to close."""
    pending: list[Unit] = field(default_factory=list)
    """Units of the open segment."""
    turns: int = 0
    """Number of turns of the open session before the open segment."""
    session: str | None = None
    windows: Mapping[int, Window | None] = field(default_factory=dict)
    """The open day, week and month by level; None for units without a time."""
    clock: datetime | None = None
    """Time of the last unit."""

    def copy(self) -> Tree:
        """Copy the tree, so that either can grow without the other."""
        nodes = {level: list(level_nodes) for level, level_nodes in self.nodes.items()}
        return replace(self, nodes=nodes, placed=self.placed.copy(), pending=list(self.pending))

    def waiting(self, level: int) -> list[Node]:
        """The nodes of a level without a parent."""
        return self.nodes[level][self.placed[level] :]


class View:
    """A read-only view of a tree: its nodes in one list, with arrays of levels, parents and vectors."""

    def __init__(self, tree: Tree) -> None:
        self.clock = tree.clock
        self.nodes = [node for level in STEPS for node in tree.nodes[level]]
        self.levels = np.array([node.level for node in self.nodes], dtype=np.intp)
        self.matrix = np.stack([node.vector for node in self.nodes]) if self.nodes else np.empty((0, 0), np.float32)
        """Vectors of the nodes, float32 [n, d]."""
        self.parents = np.full(len(self.nodes), -1)
        """Index of each node's parent, [n]; -1 for none."""
        first = 0
        for level in list(STEPS)[:-1]:
            above = first + len(tree.nodes[level])
            counts = np.array([parent.span.children for parent in tree.nodes[level + 1]], dtype=np.intp)
            owners = np.repeat(np.arange(len(counts)) + above, counts)
            self.parents[first : first + len(owners)] = owners
            first = above

    def ancestors(self, index: int) -> Iterator[int]:
        """Indices of a node's ancestors, from its parent up."""
        while (index := int(self.parents[index])) >= 0:
            yield index


def calendar(now: datetime | None) -> dict[int, Window | None]:
    """The windows of levels 3, 4 and 5 that contain a time: its day, its ISO week cut to the month, and its month."""
    if now is None:
        return {3: None, 4: None, 5: None}
    day = now.date()
    month = Window(day.replace(day=1), day + relativedelta(day=31))
    # Monday as a day of the month, below 1 if the week began earlier; as a date, its Sunday would be out of range in the last week of 9999.
    monday = day.day - day.weekday()
    week = Window(day.replace(day=max(monday, 1)), day.replace(day=min(monday + 6, month.last.day)))
    return {3: Window(day, day), 4: week, 5: month}


def midnight(day: date) -> datetime:
    """Time 00:00 of a day."""
    return datetime(day.year, day.month, day.day)


def period(level: int, window: Window | None) -> str:
    """Text of a window in the prompts."""
    if window is None:
        return "time unknown"
    span = f"{written(window.first)} to {written(window.last)}"
    year, week, _ = window.first.isocalendar()
    month = f"{MONTHS[window.first.month - 1]} {window.first.year}"
    return {3: written(window.first), 4: f"week {week} of {year}, {span}", 5: f"{month}, {span}"}[level]


def ends(texts: Iterable[str]) -> tuple[str, ...]:
    """The first and the last text that is not empty; one text when they are equal."""
    filled = [text for text in texts if text]
    return tuple(dict.fromkeys([*filled[:1], *filled[-1:]]))


_K1, _B = 1.5, 0.75


def words(text: str) -> list[str]:
    """Split a text into lower-case words for the lexical channel."""
    return re.findall(r"\w+", text.lower())


def lexical(documents: Sequence[Mapping[str, int]], query: Sequence[str]) -> np.ndarray:
    """BM25 scores of documents (word -> count), float64 [n], with the idf ln(N/df) without smoothing: a word in all documents adds 0.

    `memsys.systems.bm25` cannot be used here, because the searched documents depend on settings of the read.
    """
    lengths = np.array([sum(document.values()) for document in documents], dtype=np.float64)
    penalty = _K1 * (1 - _B + _B * lengths / max(1.0, float(lengths.mean())))
    scores = np.zeros(len(documents))
    for word in query:
        counts = np.array([document.get(word, 0) for document in documents], dtype=np.float64)
        if holding := np.count_nonzero(counts):
            scores += math.log(len(documents) / holding) * counts * (_K1 + 1) / (counts + penalty)
    return scores


def fused(semantic: np.ndarray, keywords: np.ndarray, weight: float, top: int | None) -> np.ndarray:
    """Weighted sum of both channels, each divided by its maximum (TiMem Eq. 7), float64 [n].

    Args:
        semantic: cosines, [n].
        keywords: BM25 scores, [n].
        weight: weight of the cosines; the BM25 scores have the rest.
        top: if given, a channel counts only for its best `top` segments, and segments in neither list score minus infinity (as
            released). None scores all segments by both channels.
    """
    top = len(semantic) if top is None else top
    scores = np.full(len(semantic), -math.inf)
    lists = [
        (weight, semantic, best(semantic, top)),
        (1 - weight, keywords, [index for index in best(keywords, top) if keywords[index] > 0]),
    ]
    for _, _, listed in lists:
        scores[listed] = 0.0
    for share, channel, listed in lists:
        if listed:
            peak = channel[listed[0]]
            scores[listed] += share * (channel[listed] / peak if peak > 0 else channel[listed])
    return scores


SCOPES = ("simple", "hybrid", "complex")
BUDGETS: Mapping[str, Mapping[str, Sequence[int]]] = {
    "paper": {"simple": (4, 0, 0, 1), "hybrid": (4, 2, 0, 1), "complex": (8, 4, 2, 1)},
    "code": {"simple": (4, 0, 0, 1), "hybrid": (4, 2, 0, 1), "complex": (4, 2, 2, 1)},
}
"""Maximum numbers of ancestors of levels 2, 3, 4 and 5 by complexity (Table 7; the release's default configuration)."""
POOLS = {"all": (1, 2, 3, 4, 5), "segments": (1,), "summaries": (2, 3, 4, 5)}
_CHANNEL_K = {"paper": None, "code": 40}
_SHORTEST = {1: 10, 2: 20, 3: 20, 4: 20, 5: 20}
"""Minimum number of characters of a memory of each level."""
_TURN = timedelta(seconds=5)
"""Time between two turns of a session."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A planner's decision: the complexity of a question (one of `SCOPES`) and its keywords, separated by spaces."""

    scope: str
    keywords: str


@dataclass(frozen=True)
class TiMemSettings(Settings):
    """Settings of `TiMem`.

    Raises:
        ValueError: an unknown choice, or a number out of range.
    """

    mode: Literal["paper", "code"] = "paper"
    k: Positive = 20
    """Number of segments that activate the tree; in a flat recall, number of items."""
    channel_k: Positive | None = None
    """Number of candidates of each channel (cosine, BM25); None for the mode's (`paper`: all segments, `code`: 40)."""
    semantic_weight: Share = 0.9
    """Weight of the cosine in a segment's score, lambda of Eq. 7."""
    segment: Positive = 1
    """Number of units in a segment, w_d."""
    history: NotNegative = 3
    """Number of earlier memories of the same level in a prompt, w_i."""
    l2_history: bool | None = None
    """Whether the prompt of a session shows earlier sessions; None for the mode's choice."""
    attempts: Positive = 3
    """Number of replies before a step falls back."""
    scope: Literal["planned", "simple", "hybrid", "complex"] = "planned"
    """`planned` asks the planner; `simple`, `hybrid` and `complex` are fixed and cost no call."""
    use_gating: bool = True
    """Whether a model chooses among the candidates."""
    levels: Literal["all", "segments", "summaries"] = "all"
    """Levels to recall: `all`, `segments` (level 1) or `summaries` (levels 2-5)."""
    recall: Literal["hierarchical", "flat"] = "hierarchical"
    """`hierarchical`, or `flat`."""
    ancestor_pick: Literal["query", "activation", "chronological"] | None = None
    """Ancestors that a budget keeps: the most similar to the `query`, those with the highest `activation`, or the earliest
    (`chronological`); None for the mode's choice."""
    budgets: Mapping[str, Sequence[int]] | None = None
    """Maximum numbers of ancestors of levels 2, 3, 4 and 5 by complexity; None for `BUDGETS` of the mode."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.budgets is None:
            return
        if not isinstance(self.budgets, Mapping) or set(self.budgets) != set(SCOPES):
            raise ValueError(f"budgets must name {', '.join(SCOPES)}, found {self.budgets!r}")
        if any(len(levels) != 4 or min(levels) < 0 for levels in self.budgets.values()):
            raise ValueError(f"budgets must give numbers for the levels 2, 3, 4 and 5, found {self.budgets!r}")


class TiMem(MemorySystem):
    """Recalls the segments that best match the question and its keywords, and as many of their ancestors as its complexity needs."""

    READ_KNOBS: ClassVar = (
        "k", "channel_k", "semantic_weight", "scope", "use_gating", "levels", "recall", "ancestor_pick", "budgets",
    )  # fmt: skip
    MODES: ClassVar = ("paper", "code")
    PROMPTS: ClassVar = ("timem",)
    UNIT: ClassVar = {"rule": "floor_pair"}
    PAST_K: ClassVar = "k counts the segments; the ancestors that they activate come on top, within their own budgets"

    def __init__(
        self, llm: LLM, embedder: Embedder, prompts: Prompts, settings: TiMemSettings = TiMemSettings()
    ) -> None:
        self.llm, self.embedder, self.prompts, self.settings = llm, embedder, prompts, settings
        self._tree = Tree()
        self._consolidated: View | None = None
        """The tree with its open windows closed; None after a unit until `consolidate`."""

    def write(self, unit: Unit) -> None:
        """Close the windows that end before the unit, and rewrite the open segment if the unit completes it."""
        tree, self._consolidated = self._tree, None
        if tree.session not in (None, unit.session_id):
            self._close_session(tree)
        tree.clock = unit.time or tree.clock
        if tree.session is None:
            windows = calendar(tree.clock)
            for level, window in windows.items():  # close those that the session does not belong to
                if tree.windows and tree.windows[level] != window:
                    self._close(tree, level)
            tree.windows, tree.session, tree.turns = windows, unit.session_id, 0
        tree.pending.append(replace(unit, time=tree.clock))
        if len(tree.pending) == self.settings.segment:
            self._close_segment(tree)

    def end_session(self, session_id: str) -> None:
        self._consolidated = None
        self._close_session(self._tree)

    def consolidate(self) -> None:
        """Write the memories of all open windows, on a copy of the tree."""
        if self._consolidated is None:
            tree = self._tree.copy()
            self._close_session(tree)
            for level in (3, 4, 5):
                self._close(tree, level)
            self._consolidated = View(tree)

    def _close_session(self, tree: Tree) -> None:
        """Write the open segment and the open session."""
        self._close_segment(tree)
        self._close(tree, 2)
        tree.session = None

    def _close_segment(self, tree: Tree) -> None:
        """Rewrite the open segment, given the previous segments (Eq. 3); in mode `code`, those of its session."""
        units = tree.pending
        if not units:
            return
        dialogue = "\n".join(unit.text for unit in units)
        turns = tree.turns + sum(len(unit.turns) for unit in units)
        places = ((units[0].time, tree.turns), (units[-1].time, turns - 1))
        bounds = [time + place * _TURN for time, place in places if time is not None]
        span = Span(
            children=len(units),
            sources=union(unit.turn_ids for unit in units),
            session=units[0].session_id,
            start=min(bounds, default=None),
            end=max(bounds, default=None),
            times=ends(unit.time_text for unit in units),
        )
        earlier = tree.nodes[1] if self.settings.mode == "paper" else tree.waiting(1)
        fields = {"texts": dialogue, "history": self._last(earlier), "period": span.time_text or "time unknown"}
        self._append(tree, 1, span, fields, f"Part of the conversation: {dialogue[:50]}")
        tree.pending, tree.turns = [], turns

    def _close(self, tree: Tree, level: int) -> None:
        """Write the memory of a level's open window from the memories of the level below; an empty window has none."""
        children = tree.waiting(level - 1)
        if not children:
            return
        window = tree.windows.get(level)
        bounds = [time for node in children for time in (node.span.start, node.span.end) if time is not None]
        if window and tree.clock:
            opening, closing = midnight(window.first), midnight(window.last) + timedelta(days=1, seconds=-1)
            bounds += [opening, max(opening, min(closing, tree.clock))]
        span = Span(
            children=len(children),
            sources=union(node.span.sources for node in children),
            session=children[0].span.session if level == 2 else "",
            start=min(bounds, default=None),
            end=max(bounds, default=None),
            times=ends(text for node in children for text in node.span.times),
        )
        shown = self.settings.mode == "paper" if self.settings.l2_history is None else self.settings.l2_history
        fields = {
            "texts": [Option(node.span.time_text, node.text) for node in children],
            "history": self._last(tree.nodes[level])[::-1] if level > 2 or shown else [],
            "period": period(level, window),
        }
        limit = self.prompts[f"timem/{STEPS[level]}"].max_tokens
        self._append(tree, level, span, fields, truncate("\n".join(node.text for node in children), limit))
        tree.placed[level - 1] += len(children)

    def _append(self, tree: Tree, level: int, span: Span, fields: Mapping[str, Any], fallback: str) -> None:
        """Add a node with the model's summary of the fields, or with the fallback where every attempt was too short."""
        prompt, filled = self.prompts[f"timem/{STEPS[level]}"], {**fields, "history": fields["history"] or "(none)"}
        read, event = partial(_long_enough, _SHORTEST[level]), f"timem.{STEPS[level]}_fallback"
        values = ask_all(self.llm, [(prompt, filled)], retries=self.settings.attempts - 1, noted=event, read=read)
        summary = values[0] or None
        text = summary or fallback
        vector = self.embedder.embed([text])[0]
        name = f"L{level}-{len(tree.nodes[level])}"
        node = Node(level, name, span, text, vector, Counter(words(text)), summary is None)
        tree.nodes[level].append(node)

    def _last(self, nodes: Sequence[Node]) -> list[str]:
        """The latest `history` memories with their times, oldest first."""
        return [dated(node.text, node.span.time_text) for node in nodes[max(0, len(nodes) - self.settings.history) :]]

    def read(self, question: Question) -> Recall:
        view = self._view()
        hierarchical = self.settings.recall == "hierarchical"
        pool = np.flatnonzero(np.isin(view.levels, (1,) if hierarchical else POOLS[self.settings.levels]))
        if not len(pool):
            return Recall(())
        plan = self._plan(question.text)
        query = self.embedder.embed([question.text], query=True)[0]
        # Rounded, so that the order of floating-point additions decides no comparison.
        similarities = np.round(cosines(view.matrix, query).astype(np.float64), 6)
        keywords = lexical([view.nodes[index].words for index in pool], words(plan.keywords))
        channel_k = _CHANNEL_K[self.settings.mode] if self.settings.channel_k is None else self.settings.channel_k
        scores = fused(similarities[pool], keywords, self.settings.semantic_weight, channel_k)
        score_of = {int(pool[at]): float(scores[at]) for at in best(scores, self.settings.k) if scores[at] > -math.inf}
        if hierarchical:
            score_of = self._with_ancestors(view, score_of, plan.scope, similarities)
        candidates = sorted(score_of, key=lambda index: _by_time(view, index))
        kept = self._gated(view, candidates, question.text, plan.scope)
        if self.settings.mode == "paper":
            now, ends = question.time or view.clock, {index: view.nodes[index].span.end for index in kept}
            # Eq. 11: the time between a node's end and the question; nodes without a time come last.
            away = {index: abs(now - end) if now and end else timedelta.max for index, end in ends.items()}
            kept = sorted(kept, key=lambda index: (int(view.levels[index]), away[index], index))
        items = []
        for index in kept:
            node = view.nodes[index]
            text = dated(node.text, self._date(node))
            items.append(Item(node.id, text, score_of[index], node.span.sources, STEPS[node.level], node.level))
        return Recall(tuple(items))

    def _view(self) -> View:
        return self._consolidated or View(self._tree)

    def _plan(self, question: str) -> Plan:
        """Ask the planner for the complexity and the keywords of a question, unless `scope` is fixed."""
        if self.settings.scope != "planned":
            return Plan(self.settings.scope, question)
        prompt, retries = self.prompts["timem/planner"], self.settings.attempts - 1
        reply = ask(self.llm, prompt, retries=retries, text=question, noted="timem.planner_fallback")
        if not isinstance(reply, ParseFailure):
            return Plan(SCOPES[reply["complexity"]], " ".join(reply["keywords"][:3]))
        digit = None if reply.stopped else re.search(r"(?<!\d)[012](?!\d)", reply.text)
        return Plan(SCOPES[int(digit.group())] if digit else "simple", "")

    def _with_ancestors(
        self, view: View, segments: Mapping[int, float], scope: str, similarities: np.ndarray
    ) -> dict[int, float]:
        """The scores of the segments and of the ancestors within the budget, on the levels that are recalled."""
        activated: dict[int, list[float]] = {}
        for segment in sorted(segments, key=lambda index: _by_time(view, index)):
            for ancestor in view.ancestors(segment):
                activated.setdefault(ancestor, []).append(segments[segment])
        order = list(activated)  # chronological
        pick = self.settings.ancestor_pick or ("query" if self.settings.mode == "paper" else "chronological")
        if pick == "query":
            order.sort(key=lambda index: (-similarities[index], index))
        elif pick == "activation":
            order.sort(key=lambda index: (-math.fsum(activated[index]), -max(activated[index]), index))
        score_of = dict(segments)
        for level, budget in zip(
            (2, 3, 4, 5), (self.settings.budgets or BUDGETS[self.settings.mode])[scope], strict=True
        ):
            chosen = [index for index in order if view.levels[index] == level][:budget]
            score_of |= {index: math.fsum(activated[index]) / len(activated[index]) for index in chosen}
        return {index: score for index, score in score_of.items() if view.levels[index] in POOLS[self.settings.levels]}

    def _gated(self, view: View, candidates: list[int], question: str, scope: str) -> list[int]:
        """The candidates that the gate keeps, in their order."""
        if not (self.settings.use_gating and candidates):
            return candidates
        prompt = self.prompts["timem/gate_minimal" if self.settings.mode == "code" else f"timem/gate_{scope}"]
        options = []
        for number, node in enumerate((view.nodes[index] for index in candidates), start=1):
            place = f"level {node.level}, {node.span.session}" if node.span.session else f"level {node.level}"
            options.append(Option(str(number), dated(f"({place}) {node.text}", self._date(node))))
        retries, count = self.settings.attempts - 1, len(options)
        reply = ask(
            self.llm, prompt, retries=retries, query=question, options=options, count=count, noted="timem.gate_failed"
        )
        if not reply:
            return candidates
        relevant = set(reply["relevant_ids"])
        kept = [index for number, index in enumerate(candidates, start=1) if number in relevant]
        if kept:
            return kept
        meter.note("timem.gate_empty")
        return candidates if len(candidates) < 3 else candidates[:5]

    def _date(self, node: Node) -> str:
        """A node's time as the reader sees it: the data set's text, or dates alone in mode `code`."""
        start, end = node.span.start, node.span.end
        if self.settings.mode == "paper" or start is None or end is None:
            return node.span.time_text
        return " – ".join(ends((written(start.date()), written(end.date()))))

    def nodes(self) -> Iterator[NodeView]:
        """All nodes, level by level; nodes of open windows exist only after `consolidate`."""
        view = self._view()
        for node, parent in zip(view.nodes, view.parents, strict=True):
            above = (view.nodes[parent].id,) if parent >= 0 else ()
            span, kind = node.span, STEPS[node.level]
            yield NodeView(
                node.id, above, node.level, kind, node.text, node.vector, span.sources, span.start, span.end
            )  # fmt: skip

    @property
    def held(self) -> int:
        return len(self._consolidated.nodes) if self._consolidated else sum(map(len, self._tree.nodes.values()))

    def report(self) -> dict[str, Any]:
        """Number of nodes per level, number above level 1 (Table 5's extra calls), and number of fallbacks per level."""
        nodes = self._view().nodes
        counts = Counter(STEPS[node.level] for node in nodes)
        return {
            "nodes": {step: counts[step] for step in STEPS.values()},
            "upper_nodes": len(nodes) - counts["segment"],
            "fallbacks": dict(Counter(STEPS[node.level] for node in nodes if node.fallback)),
        }


def _long_enough(least: int, reply: Completion, prompt: Prompt, fields: Mapping[str, Any]) -> Any:
    """The stripped text of a reply; a `ParseFailure` if it is shorter than `least` characters."""
    text = reply.text.strip()
    return text if reply.usable and len(text) >= least else ParseFailure(text, "too short", reply.stopped)


def _by_time(view: View, index: int) -> tuple[int, datetime, int]:
    """Sort key: level, then start; nodes without a time come first."""
    return int(view.levels[index]), view.nodes[index].span.start or datetime.min, index
