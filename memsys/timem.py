"""TiMem: a tree of five temporal levels, written when their windows close and recalled as widely as a question needs (Li et al., 2026,
§3, App. B and C).

A segment (level 1, one exchange) is rewritten as soon as it is complete; its session, day, ISO week (cut at month ends) and month are
written from the level below when they are over. A planner judges how complex a question is and names keywords; the `k` best segments
by cosine and BM25 activate the tree, their ancestors are added level by level within a budget, and a gate drops what does not help.

`mode="code"` reproduces the released code (May 2026) where it differs: sessions are written without earlier ones; complex questions
get 4 sessions and 2 days (the paper: 8 and 4); ancestors are kept in order of time, not of relevance; within a level items ascend in
time (the paper: nearest to the question first) and show the date alone; every gate uses one minimal prompt.

Deviations and decisions:

- Windows close when the first unit of a later one arrives (the release replays calendar days at 02:00), so a window that the stream
  comes back to opens again. `consolidate` closes what is open on a copy: further units find the tree without it.
- A session belongs to the day of its first unit. Units without a time inherit the last one; where there is none, all share a window.
  Turns are 5 seconds apart, as released. A window ends at the latest at the time of the last unit seen.
- Earlier memories are shown to a segment from the same session, oldest first, and to the levels above latest first.
- An odd last turn is dropped by the unit rule; a last, shorter segment of a session is kept.
- The release retries nearly without end (20 times for a plan); here each step has `attempts`. A segment that is still shorter than 10
  characters is a label and the first 50 characters of the dialogue; other levels, if shorter than 20, are their children's texts cut to
  the length of a reply (ours).
- Each channel is divided by the maximum of its own list (the paper is silent), unless that is not positive. The idf is ln(N/df), as
  released. A segment without a keyword is in no lexical list. At most three keywords are used; without a planner they are the words of
  the question (unstated). A plan that cannot be parsed is searched for a digit 0-2, else it is simple; it has no keywords (as released).
- Ancestors are pruned by the sum of the scores of the segments that activated them, ties by their maximum (the paper is silent). An
  item's score is the mean of these, because sums would rank every month above every segment.
- A gate that names no candidate keeps the first five, segments in order of time first, or all where there are less than three (as
  released). A gate that cannot be parsed keeps all.
- A flat recall (Table 4) takes the best `k` of all chosen levels by the same score; `timem_flat` has no gate, because the published
  lengths are those of about twenty memories. `levels` filters what is recalled; all are built.
- A question without a time is asked at the time of the last unit.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from typing import Any, ClassVar, Literal

import numpy as np
from dateutil.relativedelta import relativedelta

from data_loaders.schema import Question, Unit
from memsys.annotated_tree import one_of
from memsys.dates import MONTHS, written
from memsys.embed import Embedder
from memsys.interface import Item, MemorySystem, NodeView, Recall, dated, known_mode, positive, union
from memsys.llm import meter
from memsys.llm.ask import ask, complete
from memsys.llm.parsing import ParseFailure
from memsys.llm.protocol import LLM
from memsys.prompts import Option, Prompts
from memsys.tokens import truncate
from memsys.vectors import best

STEPS = {1: "segment", 2: "session", 3: "day", 4: "week", 5: "month"}
"""What a node of each level stands for; also the names of the prompts."""
SCOPES = ("simple", "hybrid", "complex")
BUDGETS: Mapping[str, Mapping[str, Sequence[int]]] = {
    "paper": {"simple": (4, 0, 0, 1), "hybrid": (4, 2, 0, 1), "complex": (8, 4, 2, 1)},
    "code": {"simple": (4, 0, 0, 1), "hybrid": (4, 2, 0, 1), "complex": (4, 2, 2, 1)},
}
"""At most so many ancestors of levels 2, 3, 4 and 5 (Table 7; the release's default configuration)."""
POOLS = {"all": (1, 2, 3, 4, 5), "segments": (1,), "summaries": (2, 3, 4, 5)}
_SHORTEST = {1: 10, 2: 20, 3: 20, 4: 20, 5: 20}
_TURN = timedelta(seconds=5)
_BM25_K1, _BM25_B = 1.5, 0.75


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of calendar, both days included."""

    first: date
    last: date


@dataclass(frozen=True, slots=True)
class Plan:
    """How widely to search, and by which words."""

    scope: str
    keywords: str


@dataclass(frozen=True, slots=True)
class _Span:
    """What a memory stands for."""

    children: int
    """How many nodes of the level below it stands for; those of one level follow each other."""
    sources: tuple[str, ...]
    session: str
    """Empty where it covers several."""
    start: datetime | None
    end: datetime | None
    times: tuple[str, ...]
    """Time texts of its first and last unit, or the one that they share."""

    @property
    def time_text(self) -> str:
        return " – ".join(self.times)


@dataclass(frozen=True, slots=True)
class _Node:
    """A memory of one span of the conversation."""

    level: int
    id: str
    span: _Span
    text: str
    vector: np.ndarray
    words: Counter[str]
    fallback: bool
    """The model wrote nothing usable."""


@dataclass(slots=True)
class _Tree:
    """The nodes of every level in stream order, and what is open at the end."""

    nodes: dict[int, list[_Node]] = field(default_factory=lambda: {level: [] for level in STEPS})
    placed: Counter[int] = field(default_factory=Counter)
    """How many nodes of a level have a parent; the others wait for their window to close."""
    pending: list[Unit] = field(default_factory=list)
    """The open segment."""
    turns: int = 0
    """Turns of the open session before that."""
    session: str | None = None
    windows: Mapping[int, Window | None] = field(default_factory=dict)
    """The open day, week and month; None for units without a time."""
    clock: datetime | None = None
    """Time of the last unit."""

    def copy(self) -> _Tree:
        nodes = {level: list(found) for level, found in self.nodes.items()}
        return replace(self, nodes=nodes, placed=self.placed.copy(), pending=list(self.pending))

    def waiting(self, level: int) -> list[_Node]:
        """The nodes of a level without a parent."""
        return self.nodes[level][self.placed[level] :]


class _View:
    """A tree as reads see it; never changed once made."""

    def __init__(self, tree: _Tree) -> None:
        self.clock = tree.clock
        self.nodes = [node for level in STEPS for node in tree.nodes[level]]
        self.levels = np.array([node.level for node in self.nodes], dtype=np.intp)
        self.matrix = np.stack([node.vector for node in self.nodes]) if self.nodes else np.empty((0, 0), np.float32)
        self.parents = np.full(len(self.nodes), -1)
        first = 0
        for level in list(STEPS)[:-1]:
            above = first + len(tree.nodes[level])
            counts = np.array([parent.span.children for parent in tree.nodes[level + 1]], dtype=np.intp)
            owners = np.repeat(np.arange(len(counts)) + above, counts)
            self.parents[first : first + len(owners)] = owners
            first = above

    def ancestors(self, index: int) -> Iterator[int]:
        """The nodes above, from parent to month."""
        while (index := int(self.parents[index])) >= 0:
            yield index


class TiMem(MemorySystem):
    """Recalls the segments that best match the question and its keywords, with those of their ancestors that its complexity calls for.

    Args:
        k: segments that activate the tree; the whole of a flat recall.
        channel_k: candidates of each channel, cosine and BM25.
        semantic_weight: the share of the cosine in a segment's score, lambda of Eq. 7.
        segment: units that make a segment, w_d.
        history: earlier memories of the same level that a prompt shows, w_i.
        l2_history: whether sessions are shown earlier ones; None for the mode's choice.
        attempts: replies asked for before a step falls back.
        scope: `planned` asks the planner; `simple`, `hybrid` and `complex` are fixed and cost no call.
        use_gating: whether a model chooses among the candidates.
        levels: what is recalled: `all`, `segments` (level 1) or `summaries` (levels 2-5).
        recall: `hierarchical`, or `flat`.
        ancestor_pick: which ancestors a budget keeps: `similarity`, or `chronological` (the earliest); None for the mode's choice.
        budgets: ancestors of levels 2, 3, 4 and 5 by complexity; None for `BUDGETS` of the mode.

    Raises:
        ValueError: an unknown choice, or a number out of range.
    """

    READ_KNOBS: ClassVar = (
        "k", "channel_k", "semantic_weight", "scope", "use_gating", "levels", "recall", "ancestor_pick", "budgets",
    )  # fmt: skip
    MODES: ClassVar = ("paper", "code")
    PROMPTS: ClassVar = ("timem",)
    UNIT: ClassVar = {"rule": "floor_pair"}
    PAST_K: ClassVar = "k counts the segments; the ancestors that they activate come on top, within their own budgets"

    def __init__(
        self,
        llm: LLM,
        embedder: Embedder,
        prompts: Prompts,
        mode: Literal["paper", "code"] = "paper",
        k: int = 20,
        channel_k: int = 40,
        semantic_weight: float = 0.9,
        segment: int = 1,
        history: int = 3,
        l2_history: bool | None = None,
        attempts: int = 3,
        scope: Literal["planned", "simple", "hybrid", "complex"] = "planned",
        use_gating: bool = True,
        levels: Literal["all", "segments", "summaries"] = "all",
        recall: Literal["hierarchical", "flat"] = "hierarchical",
        ancestor_pick: Literal["similarity", "chronological"] | None = None,
        budgets: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self.llm, self.embedder, self.prompts = llm, embedder, prompts
        self.mode = known_mode(self, mode)
        self.k, self.channel_k = positive("k", k), positive("channel_k", channel_k)
        self.segment, self.attempts = positive("segment", segment), positive("attempts", attempts)
        self.semantic_weight, self.history, self.l2_history = semantic_weight, history, l2_history
        self.scope = one_of("scope", scope, ("planned", *SCOPES))
        self.use_gating, self.levels = use_gating, one_of("levels", levels, tuple(POOLS))
        self.recall = one_of("recall", recall, ("hierarchical", "flat"))
        self.ancestor_pick, self.budgets = ancestor_pick, budgets
        if ancestor_pick is not None:
            one_of("ancestor_pick", ancestor_pick, ("similarity", "chronological"))
        if not 0 <= semantic_weight <= 1:
            raise ValueError(f"semantic_weight must be between 0 and 1, found {semantic_weight}")
        if history < 0:
            raise ValueError(f"history must be at least 0, found {history}")
        _check_budgets(budgets)
        self._tree = _Tree()
        self._shown: _View | None = None

    # --- construction ---------------------------------------------------------------------------------------------

    def write(self, unit: Unit) -> None:
        """Close the windows that the unit is past, and rewrite its segment when it completes one."""
        tree, self._shown = self._tree, None
        if tree.session not in (None, unit.session_id):
            self._close_session(tree)
        tree.clock = unit.time or tree.clock
        if tree.session is None:
            self._open_session(tree, unit.session_id)
        tree.pending.append(replace(unit, time=tree.clock))
        if len(tree.pending) == self.segment:
            self._close_segment(tree)

    def end_session(self, session_id: str) -> None:
        self._shown = None
        self._close_session(self._tree)

    def consolidate(self) -> None:
        """Write the memories of all open windows, on a copy of the tree."""
        if self._shown is None:
            tree = self._tree.copy()
            self._close_session(tree)
            for level in (3, 4, 5):
                self._close(tree, level)
            self._shown = _View(tree)

    def _open_session(self, tree: _Tree, session: str) -> None:
        windows = calendar(tree.clock)
        for level, window in windows.items():
            if tree.windows and tree.windows[level] != window:
                self._close(tree, level)
        tree.windows, tree.session, tree.turns = windows, session, 0

    def _close_session(self, tree: _Tree) -> None:
        self._close_segment(tree)
        self._close(tree, 2)
        tree.session = None

    def _close_segment(self, tree: _Tree) -> None:
        """Rewrite the open segment, in the light of the last ones of its session."""
        units = tree.pending
        if not units:
            return
        dialogue = "\n".join(unit.text for unit in units)
        turns = tree.turns + sum(len(unit.turns) for unit in units)
        places = ((units[0].time, tree.turns), (units[-1].time, turns - 1))
        bounds = [time + place * _TURN for time, place in places if time is not None]
        span = _Span(
            children=len(units),
            sources=union(unit.turn_ids for unit in units),
            session=units[0].session_id,
            start=min(bounds, default=None),
            end=max(bounds, default=None),
            times=_ends(unit.time_text for unit in units),
        )
        fields = {"texts": dialogue, "history": self._last(tree.waiting(1)), "period": span.time_text or "time unknown"}
        self._append(tree, 1, span, fields, f"Part of the conversation: {dialogue[:50]}")
        tree.pending, tree.turns = [], turns

    def _close(self, tree: _Tree, level: int) -> None:
        """Write the memory of the open window of a level from those of the level below; nothing where it is empty."""
        children = tree.waiting(level - 1)
        if not children:
            return
        window = tree.windows.get(level)
        bounds = [time for node in children for time in (node.span.start, node.span.end) if time is not None]
        if window and tree.clock:
            opening, closing = midnight(window.first), midnight(window.last) + timedelta(days=1, seconds=-1)
            bounds += [opening, max(opening, min(closing, tree.clock))]
        span = _Span(
            children=len(children),
            sources=union(node.span.sources for node in children),
            session=children[0].span.session if level == 2 else "",
            start=min(bounds, default=None),
            end=max(bounds, default=None),
            times=_ends(text for node in children for text in node.span.times),
        )
        fields = {
            "texts": [Option(node.span.time_text, node.text) for node in children],
            "history": self._last(tree.nodes[level])[::-1] if level > 2 or self._sees_sessions() else [],
            "period": period(level, window),
        }
        limit = self.prompts[f"timem/{STEPS[level]}"].max_tokens
        self._append(tree, level, span, fields, truncate("\n".join(node.text for node in children), limit))
        tree.placed[level - 1] += len(children)

    def _append(self, tree: _Tree, level: int, span: _Span, fields: Mapping[str, Any], fallback: str) -> None:
        """A new node with what the model writes of the fields, else with the fallback."""
        summary = self._summary(level, fields)
        text = summary or fallback
        vector = self.embedder.embed([text])[0]
        name = f"L{level}-{len(tree.nodes[level])}"
        node = _Node(level, name, span, text, vector, Counter(_words(text)), summary is None)
        tree.nodes[level].append(node)

    def _sees_sessions(self) -> bool:
        return self.mode == "paper" if self.l2_history is None else self.l2_history

    def _last(self, nodes: Sequence[_Node]) -> list[str]:
        """The latest memories as a prompt shows them, oldest first."""
        return [dated(node.text, node.span.time_text) for node in nodes[max(0, len(nodes) - self.history) :]]

    def _summary(self, level: int, fields: Mapping[str, Any]) -> str | None:
        """What the model writes of a window; None when no attempt gave enough."""
        step = STEPS[level]
        for attempt in range(self.attempts):
            shown = {**fields, "history": fields["history"] or "(none)"}
            request = replace(self.prompts[f"timem/{step}"].render(shown), retry=attempt)
            text = complete(self.llm, request).text.strip()
            if len(text) >= _SHORTEST[level]:
                return text
            meter.count_parse_failure(request.purpose)
        meter.note(f"timem.{step}_fallback")
        return None

    # --- recall ---------------------------------------------------------------------------------------------------

    def read(self, question: Question) -> Recall:
        view = self._view()
        hierarchical = self.recall == "hierarchical"
        pool = np.flatnonzero(np.isin(view.levels, (1,) if hierarchical else POOLS[self.levels]))
        if not len(pool):
            return Recall(())
        plan = self._plan(question.text)
        query = self.embedder.embed([question.text], query=True)[0]
        # Rounded so that equal texts tie whatever order the processor adds in.
        cosines = np.round((view.matrix @ query).astype(np.float64), 6)[pool]
        keywords = lexical([view.nodes[index].words for index in pool], _words(plan.keywords))
        scores = fused(cosines, keywords, self.semantic_weight, self.channel_k)
        found = {int(pool[at]): float(scores[at]) for at in best(scores, self.k) if scores[at] > -math.inf}
        if hierarchical:
            found = self._climbed(view, found, plan.scope)
        candidates = sorted(found, key=lambda index: _by_time(view, index))
        kept = self._gated(view, candidates, question.text, plan.scope)
        if self.mode == "paper":
            kept = sorted(kept, key=_by_distance(view, question.time or view.clock))
        return Recall(tuple(self._item(view.nodes[index], found[index]) for index in kept))

    def _view(self) -> _View:
        return self._shown or _View(self._tree)

    def _plan(self, question: str) -> Plan:
        if self.scope != "planned":
            return Plan(self.scope, question)
        reply = ask(self.llm, self.prompts["timem/planner"], retries=self.attempts - 1, text=question)
        if not isinstance(reply, ParseFailure):
            return Plan(SCOPES[reply["complexity"]], " ".join(reply["keywords"][:3]))
        meter.note("timem.planner_fallback")
        digit = re.search(r"(?<!\d)[012](?!\d)", reply.text)
        return Plan(SCOPES[int(digit.group())] if digit else "simple", "")

    def _climbed(self, view: _View, segments: Mapping[int, float], scope: str) -> dict[int, float]:
        """The segments, and of their ancestors as many of each level as the budget allows, with scores; `levels` chooses among them."""
        activated: dict[int, list[float]] = {}
        for segment in sorted(segments, key=lambda index: _by_time(view, index)):
            for ancestor in view.ancestors(segment):
                activated.setdefault(ancestor, []).append(segments[segment])
        pick = self.ancestor_pick or ("similarity" if self.mode == "paper" else "chronological")
        if pick == "similarity":
            order = sorted(activated, key=lambda index: (-math.fsum(activated[index]), -max(activated[index]), index))
        else:
            order = list(activated)
        found = dict(segments)
        for level, budget in zip((2, 3, 4, 5), (self.budgets or BUDGETS[self.mode])[scope], strict=True):
            chosen = [index for index in order if view.levels[index] == level][:budget]
            found |= {index: math.fsum(activated[index]) / len(activated[index]) for index in chosen}
        return {index: score for index, score in found.items() if view.levels[index] in POOLS[self.levels]}

    def _gated(self, view: _View, candidates: list[int], question: str, scope: str) -> list[int]:
        """The candidates that the gate keeps, in their order."""
        if not (self.use_gating and candidates):
            return candidates
        prompt = self.prompts["timem/gate_minimal" if self.mode == "code" else f"timem/gate_{scope}"]
        options = [
            Option(str(number), self._described(view.nodes[index])) for number, index in enumerate(candidates, start=1)
        ]
        retries, count = self.attempts - 1, len(options)
        reply = ask(self.llm, prompt, retries=retries, query=question, options=options, count=count)
        if isinstance(reply, ParseFailure):
            meter.note("timem.gate_failed")
            return candidates
        wanted = set(reply["relevant_ids"])
        kept = [index for number, index in enumerate(candidates, start=1) if number in wanted]
        if kept:
            return kept
        meter.note("timem.gate_empty")
        return candidates if len(candidates) < 3 else candidates[:5]

    def _described(self, node: _Node) -> str:
        place = f"level {node.level}, {node.span.session}" if node.span.session else f"level {node.level}"
        return dated(f"({place}) {node.text}", self._date(node))

    def _item(self, node: _Node, score: float) -> Item:
        return Item(
            node.id, dated(node.text, self._date(node)), score, node.span.sources, STEPS[node.level], node.level
        )

    def _date(self, node: _Node) -> str:
        """The time as the reader sees it: that of the data set, or in mode `code` the bare dates."""
        start, end = node.span.start, node.span.end
        if self.mode == "paper" or start is None or end is None:
            return node.span.time_text
        return " – ".join(_ends((written(start.date()), written(end.date()))))

    # --- structure ------------------------------------------------------------------------------------------------

    def nodes(self) -> Iterator[NodeView]:
        """All nodes, level by level; those of open windows after `consolidate` only."""
        view = self._view()
        for node, parent in zip(view.nodes, view.parents, strict=True):
            above = (view.nodes[parent].id,) if parent >= 0 else ()
            span, kind = node.span, STEPS[node.level]
            yield NodeView(
                node.id, above, node.level, kind, node.text, node.vector, span.sources, span.start, span.end
            )  # fmt: skip

    @property
    def held(self) -> int:
        return len(self._shown.nodes) if self._shown else sum(map(len, self._tree.nodes.values()))

    def report(self) -> dict[str, Any]:
        """Nodes of each level, those above level 1 together (Table 5's extra calls), and how many of each are fallbacks."""
        nodes = self._view().nodes
        counts = Counter(STEPS[node.level] for node in nodes)
        return {
            "nodes": {step: counts[step] for step in STEPS.values()},
            "upper_nodes": len(nodes) - counts["segment"],
            "fallbacks": dict(Counter(STEPS[node.level] for node in nodes if node.fallback)),
        }


def calendar(now: datetime | None) -> dict[int, Window | None]:
    """The windows of levels 3, 4 and 5 that a time lies in: its day, its ISO week as far as it lies in the month, its month."""
    if now is None:
        return {3: None, 4: None, 5: None}
    day = now.date()
    month = Window(day.replace(day=1), day + relativedelta(day=31))
    monday = day - timedelta(days=day.weekday())
    week = Window(max(monday, month.first), min(monday + timedelta(days=6), month.last))
    return {3: Window(day, day), 4: week, 5: month}


def midnight(day: date) -> datetime:
    """The start of a day."""
    return datetime(day.year, day.month, day.day)


def period(level: int, window: Window | None) -> str:
    """A window as the prompts name it."""
    if window is None:
        return "time unknown"
    span = f"{written(window.first)} to {written(window.last)}"
    year, week, _ = window.first.isocalendar()
    month = f"{MONTHS[window.first.month - 1]} {window.first.year}"
    return {3: written(window.first), 4: f"week {week} of {year}, {span}", 5: f"{month}, {span}"}[level]


def lexical(documents: Sequence[Mapping[str, int]], query: Sequence[str]) -> np.ndarray:
    """BM25 of documents (word -> count) with the un-smoothed idf ln(N/df), float64 [n]: a word that all have says nothing.

    Not `memsys.bm25`, because what is searched depends on settings of the read.
    """
    lengths = np.array([sum(document.values()) for document in documents], dtype=np.float64)
    penalty = _BM25_K1 * (1 - _BM25_B + _BM25_B * lengths / max(1.0, float(lengths.mean())))
    scores = np.zeros(len(documents))
    for word in query:
        counts = np.array([document.get(word, 0) for document in documents], dtype=np.float64)
        if holding := np.count_nonzero(counts):
            scores += math.log(len(documents) / holding) * counts * (_BM25_K1 + 1) / (counts + penalty)
    return scores


def fused(semantic: np.ndarray, keywords: np.ndarray, weight: float, top: int) -> np.ndarray:
    """Scores of both channels together (Eq. 7), float64 [n]; minus infinity for what is in the best `top` of neither.

    Each channel is divided by its maximum; what only the other channel lists gets nothing from it.
    """
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


def _by_time(view: _View, index: int) -> tuple[int, datetime, int]:
    return int(view.levels[index]), view.nodes[index].span.start or datetime.min, index


def _by_distance(view: _View, now: datetime | None) -> Callable[[int], tuple[int, timedelta, int]]:
    """Sort key: level, then how far the end lies from the question (Eq. 11); what has no time comes last."""

    def key(index: int) -> tuple[int, timedelta, int]:
        end = view.nodes[index].span.end
        return int(view.levels[index]), abs(now - end) if now and end else timedelta.max, index

    return key


def _check_budgets(budgets: Mapping[str, Sequence[int]] | None) -> None:
    if budgets is None:
        return
    if not isinstance(budgets, Mapping) or set(budgets) != set(SCOPES):
        raise ValueError(f"budgets must name {', '.join(SCOPES)}, found {budgets!r}")
    if any(len(levels) != 4 or min(levels) < 0 for levels in budgets.values()):
        raise ValueError(f"budgets must give numbers for the levels 2, 3, 4 and 5, found {budgets!r}")


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _ends(texts: Iterable[str]) -> tuple[str, ...]:
    """The first and the last text that says something, or the one that they are."""
    said = [text for text in texts if text]
    return tuple(dict.fromkeys([*said[:1], *said[-1:]]))
