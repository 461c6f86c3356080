"""MemWalker: a tree of summaries over consecutive segments, in which the model itself navigates (Chen et al., 2023, arXiv 2310.05029).

The history is cut into segments. Each segment is summarised; every `branching` consecutive summaries are summarised again, and so on
up to one root. For a question, the model starts at the root and moves to the child that most probably contains the answer. At a
segment, it either commits to an answer or goes back. The summaries of the nodes that it has passed are its working memory. There are no
embeddings, and there is no released code.

Where the paper is silent, our choice is the default and the others are settings:

- A segment consists of whole units up to `segment_tokens`, possibly of several sessions. A passage shows a date wherever it changes.
- The method is built offline. Groups are formed from left to right, so a full group does not change when units follow. Full segments and
  groups are summarised once; `consolidate` summarises only the open ones again, at most one per level. After each `consolidate`, the
  tree equals that of an offline build.
- A group of one copies its child's summary. Summaries are limited to 400 tokens; those that reach the limit are counted. The prompt's
  request to keep names, numbers and dates as spoken is ours. The start of its texts replaces an empty summary.
- A rejected segment, or a node without remaining children, is not offered again (`exclude_visited`). A single option is entered without
  a call (`skip_forced`). The text lets the model go back from an inner node, the printed prompt does not: off (`triage_revert`).
- An invalid reply is retried twice at temperature 0.7; each node has these retries again.
- A walk ends as `committed`, `exhausted` (everything was rejected; the answer is then "no answer"), `gave_up_budget` or
  `gave_up_parse`. The last two are aborted recalls, and so is an exhausted walk with `output="answer"`. With `collect="k"`, a walk that
  has kept a segment and then gives up counts as committed.
- A reply may have 1,500 tokens, enough for reasoning over eight summaries before the action; 300 without reasoning.
- Replies are requested as JSON, for providers that enforce it; labelled lines are parsed as well.
- By default the common reader answers from the evidence; `output="answer"` gives the walk's own answer, as in the paper.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge

from data_loaders.schema import Question, Unit
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
    union,
    unit_item,
)
from memsys.llm import meter
from memsys.llm.ask import ask_all, read_json
from memsys.llm.protocol import LLM
from memsys.prompts import Option, Prompt, Prompts, lettered
from memsys.tokens import count_tokens, truncate

NO_ANSWER = "no answer"
RETRY_TEMPERATURE = 0.7
"""At temperature 0, an invalid reply would be repeated."""


@dataclass(frozen=True)
class MemWalkerSettings(Settings):
    segment: Literal["pack", "unit"] = "pack"
    """`pack` whole units up to `segment_tokens` (a longer unit is a segment of its own), or one `unit` per segment."""
    segment_tokens: Positive = 1000
    """Maximum size of a packed segment, in o200k tokens."""
    break_at_session: bool = False
    """Whether a session starts a new segment."""
    branching: Annotated[int, Ge(2)] = 8
    """Number of children of a full group (8 in the paper, 5 for screenplays)."""
    leaf_summary: Literal["llm", "copy_if_short"] = "llm"
    """`llm` summarises every segment; `copy_if_short` copies texts of at most `short_tokens`."""
    short_tokens: int = 200
    """See `leaf_summary`."""
    summary_tokens: Positive = 400
    """Length limit of a summary."""
    output: Literal["evidence", "answer"] = "evidence"
    """`evidence` for the common reader, or the walk's own `answer`."""
    collect: Literal["first", "k"] = "first"
    """End at the `first` commitment, or keep segments until they have `k` units."""
    k: Positive = 10
    """Number of units at which `collect="k"` ends."""
    fallback: Literal["visited", "empty"] = "visited"
    """Recall of an uncommitted walk: the `visited` segments, the latest first, or nothing (`empty`)."""
    triage_revert: bool = False
    exclude_visited: bool = True
    skip_forced: bool = True
    """See the module's description."""
    max_steps: Positive = 30
    """Maximum number of steps with a call; retries do not count."""
    attempts: Positive = 3
    """Replies per step before the walk gives up."""
    working_memory: Literal["off", "leaf", "both"] = "leaf"
    """Prompts that contain the working memory: none (`off`), the `leaf` prompt, or `both` leaf and triage prompts."""
    background_tokens: Positive = 1200
    """Limit of the working memory; the oldest summaries except the root's are dropped first."""
    show_dates: bool = True
    """Whether a triage prompt shows the time span of each summary."""
    reasoning: bool = True
    """Whether the prompts ask for reasoning before the action."""


class MemWalker(MemorySystem):
    """Recalls the units of the segments to which a walk down the tree of summaries commits, in order of time."""

    READ_KNOBS: ClassVar = (
        "output", "collect", "k", "fallback", "triage_revert", "exclude_visited", "skip_forced", "max_steps", "attempts",
        "working_memory", "background_tokens", "show_dates", "reasoning",
    )  # fmt: skip
    PROMPTS: ClassVar = ("memwalker",)
    UNIT: ClassVar = {"rule": "ab_pair", "on_unpaired": "keep_single"}
    PAST_K: ClassVar = "a segment is recalled whole, and k says when enough of them have been collected"

    def __init__(self, llm: LLM, prompts: Prompts, settings: MemWalkerSettings = MemWalkerSettings()) -> None:
        self.llm, self.prompts, self.settings = llm, prompts, settings
        self._units: list[Unit] = []
        self._cuts: list[int] = []
        """Index of the first unit of each segment."""
        self._size = 0  # tokens of the open segment
        self._full: list[list[WalkNode]] = [[]]
        """Nodes of each level that no longer change."""
        self._levels: list[list[WalkNode]] = []
        """All nodes of each level as of the last `consolidate`."""
        self._built = 0
        """Number of units in these levels."""

    def write(self, unit: Unit) -> None:
        """Add the unit to the open segment, or open the next segment with it. `consolidate` makes the summaries."""
        before = self._units[-1] if self._units else None
        tokens = count_tokens(unit.text if _same_time(before, unit) else dated(unit.text, unit.time_text))
        new_session = before is not None and before.session_id != unit.session_id
        if (
            not self._units
            or self.settings.segment == "unit"
            or self._size + tokens > self.settings.segment_tokens
            or (self.settings.break_at_session and new_session)
        ):
            self._cuts.append(len(self._units))
            self._size, tokens = 0, count_tokens(dated(unit.text, unit.time_text))
        self._size += tokens
        self._units.append(unit)

    def consolidate(self) -> None:
        """Summarise the segments and groups that have become full, and the open one of each level again."""
        if self._built < len(self._units):
            self._summarise_full()
            self._levels = self._with_open_ends()
            self._built = len(self._units)

    @property
    def uses_asker(self) -> bool:
        return True  # the walk is shown the whole question

    def read(self, question: Question) -> Recall:
        if not self._levels:
            return Recall(())
        walk = self.walk(question)
        meter.note(f"memwalker.{walk.outcome}")
        for event in ("forced", "reverts"):
            if walk.counts[event]:
                meter.note(f"memwalker.{event}", walk.counts[event])
        # With the walk's own answer, the "no answer" of an exhausted walk must not count as a correct abstention.
        no_answer = self.settings.output == "answer" and walk.outcome == "exhausted"
        aborted = walk.outcome if no_answer or walk.outcome.startswith("gave_up") else ""
        answer = (walk.answer or NO_ANSWER) if self.settings.output == "answer" else None
        return Recall(tuple(self._evidence(walk)), answer, aborted)

    def walk(self, question: Question) -> Walk:
        """Walk the tree of the last `consolidate` for one question; the tree must not be empty."""
        root = self._levels[-1][0]
        walk = Walk(question, [root], visits=[root.id])
        while not walk.outcome:
            (self._inner if walk.path[-1].children else self._leaf)(walk)
        if walk.kept:
            walk.outcome = "committed"
        return walk

    def nodes(self) -> Iterator[NodeView]:
        """Every segment and summary of the tree; segments have level 1."""
        parents = {child.id: node.id for level in self._levels for node in level for child in node.children}
        for node in (node for level in self._levels for node in level):
            units = self._units[node.start : node.stop]
            above = (parents[node.id],) if node.id in parents else ()
            kind = "summary" if node.children else "segment"
            sources = union(unit.turn_ids for unit in units)
            yield NodeView(node.id, above, node.level, kind, node.summary, None, sources, *period(units))

    @property
    def held(self) -> int:
        return sum(map(len, self._levels))

    def report(self) -> dict[str, Any]:
        """Shape of the tree and number of truncated summaries."""
        nodes = [node for level in self._levels for node in level]
        return {
            "policy": "append",
            "units": self._built,
            "levels": [len(level) for level in self._levels],
            "nodes": len(nodes),
            "full": sum(map(len, self._full)),
            "truncated_summaries": sum(node.truncated for node in nodes),
        }

    def _summarise_full(self) -> None:
        """Summarise the segments and groups that have become full since the last call."""
        edges = [*self._cuts, *([len(self._units)] if self.settings.segment == "unit" else [])]
        spans = list(itertools.pairwise(edges))
        self._full[0] += self._segments(len(self._full[0]), spans[len(self._full[0]) :])
        level, size = 0, self.settings.branching
        while len(self._full[level]) >= size:
            if level + 1 == len(self._full):
                self._full.append([])
            done, children = len(self._full[level + 1]), self._full[level]
            groups = [children[first : first + size] for first in range(done * size, len(children) - size + 1, size)]
            self._full[level + 1] += self._groups(level + 2, done, groups)
            level += 1

    def _with_open_ends(self) -> list[list[WalkNode]]:
        """All levels from the segments to the root, with the open segment and the open group of each level."""
        segments = list(self._full[0])
        if len(segments) < len(self._cuts):
            segments += self._segments(len(segments), [(self._cuts[-1], len(self._units))])
        levels = [segments]
        while len(levels[-1]) > 1:
            full = self._full[len(levels)] if len(levels) < len(self._full) else []
            ungrouped = levels[-1][len(full) * self.settings.branching :]
            levels.append([*full, *self._groups(len(levels) + 1, len(full), [ungrouped] if ungrouped else [])])
        return levels

    def _segments(self, first: int, spans: Sequence[tuple[int, int]]) -> list[WalkNode]:
        """Nodes of the segments with these unit ranges; their numbers start at `first`."""
        texts = [self._passage(start, stop) for start, stop in spans]
        long = [
            self.settings.leaf_summary == "llm" or count_tokens(text) > self.settings.short_tokens for text in texts
        ]
        written = iter(
            self._summaries("segment", [[text] for text, is_long in zip(texts, long, strict=True) if is_long])
        )
        summaries = [next(written) if is_long else (text, False) for text, is_long in zip(texts, long, strict=True)]
        return [
            WalkNode(f"segment-{number}", 1, start, stop, summary, text, truncated=truncated)
            for number, ((start, stop), text, (summary, truncated)) in enumerate(
                zip(spans, texts, summaries, strict=True), start=first
            )
        ]

    def _groups(self, level: int, first: int, groups: Sequence[Sequence[WalkNode]]) -> list[WalkNode]:
        """Nodes above these groups of children; their numbers start at `first`."""
        texts = [[self._dated_summary(child) for child in group] for group in groups if len(group) > 1]
        written = iter(self._summaries("group", texts))
        summaries = [next(written) if len(group) > 1 else (group[0].summary, group[0].truncated) for group in groups]
        return [
            WalkNode(
                f"node-{level}-{number}", level, group[0].start, group[-1].stop, summary, "", tuple(group), truncated
            )
            for number, (group, (summary, truncated)) in enumerate(zip(groups, summaries, strict=True), start=first)
        ]

    def _summaries(self, step: str, texts: Sequence[Sequence[str]]) -> list[tuple[str, bool]]:
        """Summarise each list of texts; True marks a summary that could not be parsed and is the start of the texts."""
        prompt = replace(self.prompts[f"memwalker/{step}"], max_tokens=self.settings.summary_tokens)
        asks, limit = [(prompt, {"texts": tuple(parts)}) for parts in texts], self.settings.summary_tokens
        values = ask_all(self.llm, asks, noted="memwalker.truncated_texts")
        if capped := sum(isinstance(value, str) and count_tokens(value) >= limit for value in values):
            meter.note("memwalker.summary_at_limit", capped)
        return [
            (value, False) if value else (truncate(" ".join(parts), limit), True)
            for parts, value in zip(texts, values, strict=True)
        ]

    def _passage(self, start: int, stop: int) -> str:
        """Text of a range of units, with a date wherever it changes."""
        units = self._units[start:stop]
        return "\n".join(
            unit.text if index and _same_time(units[index - 1], unit) else dated(unit.text, unit.time_text)
            for index, unit in enumerate(units)
        )

    def _dated_summary(self, node: WalkNode) -> str:
        """A node's summary with its time span; a copied text already contains its dates."""
        if node.summary == node.text or not node.summary:
            return node.summary
        return dated(node.summary, period_text(self._units[node.start], self._units[node.stop - 1]))

    def _inner(self, walk: Walk) -> None:
        """Make one step at an inner node: move to a child, or go back."""
        node = walk.path[-1]
        options = [child for child in node.children if child.id not in walk.closed]
        may_revert = self.settings.triage_revert and len(walk.path) > 1
        if not options:
            walk.closed.add(node.id)
            walk.leave()
        elif len(options) == 1 and self.settings.skip_forced and not may_revert:
            walk.counts["forced"] += 1
            walk.move(options[0])
        else:
            action, _ = self._step(walk, *self._triage(walk, options, may_revert))
            if action is not None and action >= 0:
                walk.move(options[action])
            elif action is not None:
                self._reject(walk)

    def _leaf(self, walk: Walk) -> None:
        """Make one step at a segment: commit to it, or go back."""
        node = walk.path[-1]
        if all(visited.id != node.id for visited in walk.leaves):
            walk.leaves.append(node)
        action, answer = self._step(walk, *self._reading(walk))
        if action == BACK:
            self._reject(walk)
        elif action == COMMIT:
            walk.answer = walk.answer or answer
            walk.kept.append(node)
            if self.settings.collect == "first" or sum(kept.stop - kept.start for kept in walk.kept) >= self.settings.k:
                walk.outcome = "committed"
            else:
                walk.closed.add(node.id)
                walk.remember(node)
                walk.leave()

    def _reject(self, walk: Walk) -> None:
        """Go back from the present node, which enters the working memory."""
        walk.counts["reverts"] += 1
        walk.remember(walk.path[-1])
        if self.settings.exclude_visited:
            walk.closed.add(walk.path[-1].id)
        walk.leave()

    def _step(
        self, walk: Walk, step: str, fields: dict[str, Any], allowed: range | tuple[int, ...]
    ) -> tuple[int | None, str]:
        """Ask for an action until a reply is valid; return the action and its answer.

        The action is None when the walk gives up; the reason is then the walk's outcome.
        """
        if walk.counts["calls"] >= self.settings.max_steps:
            walk.outcome = "gave_up_budget"
            return None, ""
        walk.counts["calls"] += 1
        prompt: Prompt = self.prompts[f"memwalker/{step}{'' if self.settings.reasoning else '_direct'}"]
        request = prompt.render(fields)
        for attempt in range(self.settings.attempts):
            temperature = RETRY_TEMPERATURE if attempt else request.temperature
            reply = self.llm.submit(replace(request, temperature=temperature, sample=attempt, retry=attempt)).result()
            action, answer = (None, "") if reply.stopped else action_of(reply.text)
            if action is not None and action in allowed and (action != COMMIT or answer):
                return action, answer
            walk.counts["invalid"] += 1
            meter.count_parse_failure(request.purpose)
        walk.outcome = "gave_up_parse"
        return None, ""

    def _triage(
        self, walk: Walk, options: Sequence[WalkNode], may_revert: bool
    ) -> tuple[str, dict[str, Any], range | tuple[int, ...]]:
        """Prompt name, fields and allowed actions of a choice among children."""
        allowed = range(BACK if may_revert else 0, len(options))
        fields = {
            "query": walk.question.text,
            "now": walk.question.time_text or "not known",
            "options": tuple(
                Option(str(number), self._dated_summary(node) if self.settings.show_dates else node.summary)
                for number, node in enumerate(options)
            ),
            "numbers": ", ".join(map(str, allowed)),
            "background": self._background(walk) if self.settings.working_memory == "both" else (),
        }
        return "triage", fields, allowed

    def _reading(self, walk: Walk) -> tuple[str, dict[str, Any], range | tuple[int, ...]]:
        """Prompt name, fields and allowed actions at a segment."""
        question = walk.question
        fields = {
            "question": question.text,
            "now": question.time_text or "not known",
            "memories": walk.path[-1].text,
            "options": lettered(question.options),
            "instruction": "\n".join(line for line in (question.asked_by, question.instruction) if line),
            "background": self._background(walk) if self.settings.working_memory != "off" else (),
        }
        return "leaf", fields, (BACK, COMMIT)

    def _background(self, walk: Walk) -> tuple[str, ...]:
        """The summaries of the working memory within its limit; the oldest except the root's go first, then the root's is truncated."""
        notes = [node.summary for node in walk.background]
        sizes = [count_tokens(note) for note in notes]
        dropped = 0
        while len(notes) - dropped > 1 and sizes[0] + sum(sizes[1 + dropped :]) > self.settings.background_tokens:
            dropped += 1
        if dropped or sizes[:1] > [self.settings.background_tokens]:
            meter.note("memwalker.background_cut")
        root = [truncate(note, self.settings.background_tokens) for note in notes[:1]]
        return (*root, *notes[1 + dropped :])

    def _evidence(self, walk: Walk) -> Iterator[Item]:
        """Units of the kept segments as items, or those of the fallback."""
        if walk.kept:
            for node in sorted(walk.kept, key=lambda node: node.start):
                yield from (unit_item(unit, 1.0) for unit in self._units[node.start : node.stop])
        elif self.settings.fallback == "visited":
            units = [unit for node in reversed(walk.leaves) for unit in self._units[node.start : node.stop]]
            yield from map(unit_item, units if self.settings.collect == "first" else units[: self.settings.k])


def _same_time(before: Unit | None, unit: Unit) -> bool:
    return before is not None and before.time_text == unit.time_text


BACK, COMMIT = -1, -2
_ACTION = re.compile(r"\baction\b[\s:=*\"'`(\[]*([-−]?\d+)(?![\d.]*\d)", re.IGNORECASE)
_ANSWER = re.compile(r"\banswer\b[*\"'`]*\s*[:=]\s*(.*)", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class WalkNode:
    """A segment (level 1) or the summary of a run of nodes of the level below."""

    id: str
    level: int
    start: int
    """Index of the first unit that it covers."""
    stop: int
    """Index after the last unit that it covers."""
    summary: str
    text: str = ""
    """The passage itself; empty for inner nodes."""
    children: tuple[WalkNode, ...] = ()
    truncated: bool = False
    """True when no summary could be parsed; the summary is then the start of the texts."""


@dataclass(slots=True)
class Walk:
    """The state of one search from the root."""

    question: Question
    path: list[WalkNode]
    """Nodes from the root to the present node."""
    outcome: str = ""
    """The outcome of the walk; empty while it goes on."""
    answer: str = ""
    """The answer at the first segment to which the walk committed."""
    visits: list[str] = field(default_factory=list)
    """Ids of the nodes in order of visit, with repetitions."""
    background: list[WalkNode] = field(default_factory=list)
    """The working memory: nodes passed and segments rejected, the root first."""
    closed: set[str] = field(default_factory=set)
    """Ids of the nodes that are not offered again."""
    leaves: list[WalkNode] = field(default_factory=list)
    """Segments read, in order of their first visit."""
    kept: list[WalkNode] = field(default_factory=list)
    """Segments to which the walk has committed."""
    counts: Counter[str] = field(default_factory=Counter)
    """Numbers of `calls` (without retries), `reverts`, `forced` moves and `invalid` replies."""

    def move(self, child: WalkNode) -> None:
        """Move to a child; the present node enters the working memory."""
        self.remember(self.path[-1])
        self.path.append(child)
        self.visits.append(child.id)

    def leave(self) -> None:
        """Go back to the parent; at the root, the search ends."""
        self.path.pop()
        if self.path:
            self.visits.append(self.path[-1].id)
        else:
            self.outcome = "exhausted"

    def remember(self, node: WalkNode) -> None:
        """Add a node to the working memory, once."""
        if all(other.id != node.id for other in self.background):
            self.background.append(node)


def action_of(text: str) -> tuple[int | None, str]:
    """Parse the action (None if there is none) and the answer from a reply.

    The reply is a JSON object with the keys action and answer, or labelled text, in which the last labelled number counts.
    """
    value = read_json(text)
    if isinstance(value, dict) and isinstance(action := value.get("action"), int) and not isinstance(action, bool):
        answer = value.get("answer", "")
        return action, str(answer).strip() if isinstance(answer, str | int | float) else ""
    labels = list(_ACTION.finditer(text))
    if not labels:
        return None, ""
    answer = _ANSWER.search(text, labels[-1].end())
    return int(labels[-1][1].replace("−", "-")), answer[1].strip() if answer else ""
