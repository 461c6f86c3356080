"""TiMem: a tree of five temporal levels, written when their windows close and recalled as widely as a question needs (Li et al., 2026,
§3, App. B and C).

A segment (level 1, one exchange) is rewritten as soon as it is complete; its session, day, ISO week (cut at month ends) and month are
written from the level below when they are over. A planner judges how complex a question is and names keywords; the `k` best segments
by cosine and BM25 activate the tree, their ancestors are added level by level within a budget, and a gate drops what does not help.

`mode="code"` reproduces the released code (May 2026) where it differs: a segment is shown the earlier ones of its session only (the
paper, Eq. 3: the last three of the level, across sessions), and sessions are written without earlier ones; a segment is scored when it
is among the best 40 of a channel, and has nothing from a channel that does not list it (Eq. 7: all are scored by both); complex
questions get 4 sessions and 2 days (Table 7: 8 and 4); ancestors are kept in order of time (Table 7: those most similar to the
question); within a level items ascend in time (Eq. 11: nearest to the question first) and show the date alone; every gate uses one
minimal prompt.

Deviations and decisions:

- Windows close when the first unit of a later one arrives (the release replays calendar days at 02:00), so a window that the stream
  comes back to opens again. `consolidate` closes what is open on a copy: further units find the tree without it.
- A session belongs to the day of its first unit. Units without a time inherit the last one; where there is none, all share a window.
  Turns are 5 seconds apart, as released. A window ends at the latest at the time of the last unit seen.
- Earlier memories are shown to a segment oldest first, and to the levels above latest first.
- An odd last turn is dropped by the unit rule; a last, shorter segment of a session is kept.
- The release retries nearly without end (20 times for a plan); here each step has `attempts`. A segment that is still shorter than 10
  characters is a label and the first 50 characters of the dialogue; other levels, if shorter than 20, are their children's texts cut to
  the length of a reply (ours).
- Each channel is divided by its maximum (as released; the paper is silent), unless that is not positive. The idf is ln(N/df), as
  released. A segment without a keyword has no lexical score. At most three keywords are used; without a planner they are the words of
  the question (unstated). A plan that cannot be parsed is searched for a digit 0-2, else it is simple; it has no keywords (as released).
- "Pruned by similarity scores" (Table 7) is read as the cosine of an ancestor's own text with the question, of equals the earlier.
  `ancestor_pick="activation"` is the other reading: the sum of the scores of the segments below, ties by their maximum. An ancestor's
  score as an item is the mean of these in either case, because sums would rank every month above every segment.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar, Literal

import numpy as np

from data_loaders.schema import Question, Unit
from memsys.dates import written
from memsys.embed import Embedder
from memsys.interface import Item, MemorySystem, NodeView, Recall, dated, known_mode, one_of, positive, union
from memsys.llm import meter
from memsys.llm.ask import ask, complete
from memsys.llm.parsing import ParseFailure
from memsys.llm.protocol import LLM
from memsys.prompts import Option, Prompts
from memsys.systems.timem.scores import fused, lexical, words
from memsys.systems.timem.tree import STEPS, Node, Span, Tree, View, calendar, ends, midnight, period
from memsys.tokens import truncate
from memsys.vectors import best

SCOPES = ("simple", "hybrid", "complex")
BUDGETS: Mapping[str, Mapping[str, Sequence[int]]] = {
    "paper": {"simple": (4, 0, 0, 1), "hybrid": (4, 2, 0, 1), "complex": (8, 4, 2, 1)},
    "code": {"simple": (4, 0, 0, 1), "hybrid": (4, 2, 0, 1), "complex": (4, 2, 2, 1)},
}
"""At most so many ancestors of levels 2, 3, 4 and 5 (Table 7; the release's default configuration)."""
POOLS = {"all": (1, 2, 3, 4, 5), "segments": (1,), "summaries": (2, 3, 4, 5)}
PICKS = ("query", "activation", "chronological")
_CHANNEL_K = {"paper": None, "code": 40}
_SHORTEST = {1: 10, 2: 20, 3: 20, 4: 20, 5: 20}
_TURN = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Plan:
    """How widely to search, and by which words."""

    scope: str
    keywords: str


class TiMem(MemorySystem):
    """Recalls the segments that best match the question and its keywords, with those of their ancestors that its complexity calls for.

    Args:
        k: segments that activate the tree; the whole of a flat recall.
        channel_k: candidates of each channel, cosine and BM25; None for the mode's (`paper`: all segments, `code`: 40).
        semantic_weight: the share of the cosine in a segment's score, lambda of Eq. 7.
        segment: units that make a segment, w_d.
        history: earlier memories of the same level that a prompt shows, w_i.
        l2_history: whether sessions are shown earlier ones; None for the mode's choice.
        attempts: replies asked for before a step falls back.
        scope: `planned` asks the planner; `simple`, `hybrid` and `complex` are fixed and cost no call.
        use_gating: whether a model chooses among the candidates.
        levels: what is recalled: `all`, `segments` (level 1) or `summaries` (levels 2-5).
        recall: `hierarchical`, or `flat`.
        ancestor_pick: which ancestors a budget keeps: those nearest to the `query`, those with most `activation`, or in
            `chronological` order the earliest; None for the mode's choice.
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
        channel_k: int | None = None,
        semantic_weight: float = 0.9,
        segment: int = 1,
        history: int = 3,
        l2_history: bool | None = None,
        attempts: int = 3,
        scope: Literal["planned", "simple", "hybrid", "complex"] = "planned",
        use_gating: bool = True,
        levels: Literal["all", "segments", "summaries"] = "all",
        recall: Literal["hierarchical", "flat"] = "hierarchical",
        ancestor_pick: Literal["query", "activation", "chronological"] | None = None,
        budgets: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self.llm, self.embedder, self.prompts = llm, embedder, prompts
        self.mode = known_mode(self, mode)
        self.k, self.channel_k = positive("k", k), None if channel_k is None else positive("channel_k", channel_k)
        self.segment, self.attempts = positive("segment", segment), positive("attempts", attempts)
        self.semantic_weight, self.history, self.l2_history = semantic_weight, history, l2_history
        self.scope = one_of("scope", scope, ("planned", *SCOPES))
        self.use_gating, self.levels = use_gating, one_of("levels", levels, tuple(POOLS))
        self.recall = one_of("recall", recall, ("hierarchical", "flat"))
        self.ancestor_pick, self.budgets = ancestor_pick, budgets
        if ancestor_pick is not None:
            one_of("ancestor_pick", ancestor_pick, PICKS)
        if not 0 <= semantic_weight <= 1:
            raise ValueError(f"semantic_weight must be between 0 and 1, found {semantic_weight}")
        if history < 0:
            raise ValueError(f"history must be at least 0, found {history}")
        _check_budgets(budgets)
        self._tree = Tree()
        self._shown: View | None = None

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
            self._shown = View(tree)

    def _open_session(self, tree: Tree, session: str) -> None:
        windows = calendar(tree.clock)
        for level, window in windows.items():
            if tree.windows and tree.windows[level] != window:
                self._close(tree, level)
        tree.windows, tree.session, tree.turns = windows, session, 0

    def _close_session(self, tree: Tree) -> None:
        self._close_segment(tree)
        self._close(tree, 2)
        tree.session = None

    def _close_segment(self, tree: Tree) -> None:
        """Rewrite the open segment, in the light of the last ones (Eq. 3), in mode `code` of its session."""
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
        earlier = tree.nodes[1] if self.mode == "paper" else tree.waiting(1)
        fields = {"texts": dialogue, "history": self._last(earlier), "period": span.time_text or "time unknown"}
        self._append(tree, 1, span, fields, f"Part of the conversation: {dialogue[:50]}")
        tree.pending, tree.turns = [], turns

    def _close(self, tree: Tree, level: int) -> None:
        """Write the memory of the open window of a level from those of the level below; nothing where it is empty."""
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
        fields = {
            "texts": [Option(node.span.time_text, node.text) for node in children],
            "history": self._last(tree.nodes[level])[::-1] if level > 2 or self._sees_sessions() else [],
            "period": period(level, window),
        }
        limit = self.prompts[f"timem/{STEPS[level]}"].max_tokens
        self._append(tree, level, span, fields, truncate("\n".join(node.text for node in children), limit))
        tree.placed[level - 1] += len(children)

    def _append(self, tree: Tree, level: int, span: Span, fields: Mapping[str, Any], fallback: str) -> None:
        """A new node with what the model writes of the fields, else with the fallback."""
        summary = self._summary(level, fields)
        text = summary or fallback
        vector = self.embedder.embed([text])[0]
        name = f"L{level}-{len(tree.nodes[level])}"
        node = Node(level, name, span, text, vector, Counter(words(text)), summary is None)
        tree.nodes[level].append(node)

    def _sees_sessions(self) -> bool:
        return self.mode == "paper" if self.l2_history is None else self.l2_history

    def _last(self, nodes: Sequence[Node]) -> list[str]:
        """The latest memories as a prompt shows them, oldest first."""
        return [dated(node.text, node.span.time_text) for node in nodes[max(0, len(nodes) - self.history) :]]

    def _summary(self, level: int, fields: Mapping[str, Any]) -> str | None:
        """What the model writes of a window; None when no attempt gave enough."""
        step = STEPS[level]
        for attempt in range(self.attempts):
            shown = {**fields, "history": fields["history"] or "(none)"}
            request = replace(self.prompts[f"timem/{step}"].render(shown), retry=attempt)
            reply = complete(self.llm, request)
            text = reply.text.strip()
            if reply.usable and len(text) >= _SHORTEST[level]:
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
        cosines = np.round((view.matrix @ query).astype(np.float64), 6)
        keywords = lexical([view.nodes[index].words for index in pool], words(plan.keywords))
        channel_k = _CHANNEL_K[self.mode] if self.channel_k is None else self.channel_k
        scores = fused(cosines[pool], keywords, self.semantic_weight, channel_k)
        found = {int(pool[at]): float(scores[at]) for at in best(scores, self.k) if scores[at] > -math.inf}
        if hierarchical:
            found = self._climbed(view, found, plan.scope, cosines)
        candidates = sorted(found, key=lambda index: _by_time(view, index))
        kept = self._gated(view, candidates, question.text, plan.scope)
        if self.mode == "paper":
            kept = sorted(kept, key=_by_distance(view, question.time or view.clock))
        return Recall(tuple(self._item(view.nodes[index], found[index]) for index in kept))

    def _view(self) -> View:
        return self._shown or View(self._tree)

    def _plan(self, question: str) -> Plan:
        if self.scope != "planned":
            return Plan(self.scope, question)
        reply = ask(self.llm, self.prompts["timem/planner"], retries=self.attempts - 1, text=question)
        if not isinstance(reply, ParseFailure):
            return Plan(SCOPES[reply["complexity"]], " ".join(reply["keywords"][:3]))
        meter.note("timem.planner_fallback")
        digit = None if reply.stopped else re.search(r"(?<!\d)[012](?!\d)", reply.text)
        return Plan(SCOPES[int(digit.group())] if digit else "simple", "")

    def _climbed(self, view: View, segments: Mapping[int, float], scope: str, cosines: np.ndarray) -> dict[int, float]:
        """The segments, and of their ancestors as many of each level as the budget allows, with scores; `levels` chooses among them."""
        activated: dict[int, list[float]] = {}
        for segment in sorted(segments, key=lambda index: _by_time(view, index)):
            for ancestor in view.ancestors(segment):
                activated.setdefault(ancestor, []).append(segments[segment])
        order = list(activated)  # the earliest first
        pick = self.ancestor_pick or ("query" if self.mode == "paper" else "chronological")
        if pick == "query":
            order.sort(key=lambda index: (-cosines[index], index))
        elif pick == "activation":
            order.sort(key=lambda index: (-math.fsum(activated[index]), -max(activated[index]), index))
        found = dict(segments)
        for level, budget in zip((2, 3, 4, 5), (self.budgets or BUDGETS[self.mode])[scope], strict=True):
            chosen = [index for index in order if view.levels[index] == level][:budget]
            found |= {index: math.fsum(activated[index]) / len(activated[index]) for index in chosen}
        return {index: score for index, score in found.items() if view.levels[index] in POOLS[self.levels]}

    def _gated(self, view: View, candidates: list[int], question: str, scope: str) -> list[int]:
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

    def _described(self, node: Node) -> str:
        place = f"level {node.level}, {node.span.session}" if node.span.session else f"level {node.level}"
        return dated(f"({place}) {node.text}", self._date(node))

    def _item(self, node: Node, score: float) -> Item:
        return Item(
            node.id, dated(node.text, self._date(node)), score, node.span.sources, STEPS[node.level], node.level
        )

    def _date(self, node: Node) -> str:
        """The time as the reader sees it: that of the data set, or in mode `code` the bare dates."""
        start, end = node.span.start, node.span.end
        if self.mode == "paper" or start is None or end is None:
            return node.span.time_text
        return " – ".join(ends((written(start.date()), written(end.date()))))

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


def _by_time(view: View, index: int) -> tuple[int, datetime, int]:
    return int(view.levels[index]), view.nodes[index].span.start or datetime.min, index


def _by_distance(view: View, now: datetime | None) -> Callable[[int], tuple[int, timedelta, int]]:
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
