"""MemWalker: a tree of summaries over consecutive segments, walked by the model itself (Chen et al., 2023, arXiv 2310.05029).

The history is cut into segments; each is summarised, runs of `branching` summaries are summarised again, and so on up to one root. For a
question the model starts at the root, enters the child that most probably holds the answer, and in a segment either commits to an answer
or goes back. Summaries of what it has passed are its working memory. There are no embeddings and there is no released code.

Where the paper is silent, our choice is the default and the others are settings:

- Segments are whole units packed up to `segment_tokens`; sessions may share one. A passage shows a date wherever it changes.
- The method is built offline. Grouping runs left to right, so a full group never changes when units follow: full segments and groups are
  summarised once, and `consolidate` renews only the open ones, at most one a level. The tree is that of an offline build at any time.
- A group of one copies its child's summary. Summaries are limited to 400 tokens, and those that reach the limit are counted. The request to
  keep names, numbers and dates as spoken is ours. An empty summary is replaced by the start of its texts.
- A rejected segment, and a node with nothing left to enter, is not offered again (`exclude_visited`); a single option is entered without
  a call (`skip_forced`). Going back from an inner node is an action in the text and absent in the printed prompt: off (`triage_revert`).
- An invalid reply is tried again twice at temperature 0.7, at each node afresh.
- A walk ends as `committed`, `exhausted` (everything rejected; the answer is then "no answer"), `gave_up_budget` or `gave_up_parse`. The
  last two are aborted recalls, and so is an exhausted walk that answers itself. A walk that has kept a segment with `collect="k"` and
  then gives up counts as committed.
- A reply may have 1,500 tokens, room for reasoning over eight summaries before the action; without reasoning 300.
- Replies are asked for as JSON, for providers that enforce it; labelled lines are read as well.
- By default the evidence goes to the common reader; `output="answer"` is the paper's own answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

from data_loaders.schema import Question, Unit
from memsys.interface import Item, MemorySystem, NodeView, Recall, dated, positive, union, unit_item
from memsys.llm import meter
from memsys.llm.ask import ask_all, complete
from memsys.llm.parsing import ParseFailure
from memsys.llm.protocol import LLM
from memsys.prompts import Option, Prompt, Prompts
from memsys.systems.memwalker.walk import BACK, COMMIT, Node, Walk, action_of
from memsys.tokens import count_tokens, truncate

NO_ANSWER = "no answer"
RETRY_TEMPERATURE = 0.7
"""At temperature 0 an invalid reply would come again."""
_CHOICES = {
    "segment": ("pack", "unit"),
    "leaf_summary": ("llm", "copy_if_short"),
    "output": ("evidence", "answer"),
    "collect": ("first", "k"),
    "fallback": ("visited", "empty"),
    "working_memory": ("off", "leaf", "both"),
}


class MemWalker(MemorySystem):
    """Recalls the units of the segments to which a walk down the tree of summaries commits, in order of time.

    Args:
        segment: `pack` whole units up to `segment_tokens` (a longer unit is a segment of its own), or one `unit` per segment.
        break_at_session: whether a session starts a new segment.
        branching: children of a full group (8, and 5 for screenplays, in the paper).
        leaf_summary: `llm` summarises every segment; `copy_if_short` takes a text of at most `short_tokens` as it is.
        summary_tokens: length limit of a summary.
        output: `evidence` for the common reader, or the walk's own `answer`.
        collect: end at the `first` commitment, or keep segments until they hold `k` units.
        fallback: what an uncommitted walk recalls: the `visited` segments, newest first, or nothing (`empty`).
        triage_revert, exclude_visited, skip_forced: see the module's description.
        max_steps: at most so many logical calls a walk.
        attempts: replies per step before the walk is given up.
        working_memory: who sees the notes: nobody (`off`), the `leaf` prompt, or `both` it and the triage.
        background_tokens: their limit; the oldest but the root's go first.
        show_dates: put the time span before each summary of a triage.
        reasoning: ask for reasons before the action.

    Raises:
        ValueError: an unknown choice, or a number below 1 (below 2 for `branching`).
    """

    READ_KNOBS: ClassVar = (
        "output", "collect", "k", "fallback", "triage_revert", "exclude_visited", "skip_forced", "max_steps", "attempts",
        "working_memory", "background_tokens", "show_dates", "reasoning",
    )  # fmt: skip
    PROMPTS: ClassVar = ("memwalker",)
    UNIT: ClassVar = {"rule": "ab_pair"}
    PAST_K: ClassVar = "a segment is recalled whole, and k says when enough of them have been collected"

    def __init__(
        self,
        llm: LLM,
        prompts: Prompts,
        segment: Literal["pack", "unit"] = "pack",
        segment_tokens: int = 1000,
        break_at_session: bool = False,
        branching: int = 8,
        leaf_summary: Literal["llm", "copy_if_short"] = "llm",
        short_tokens: int = 200,
        summary_tokens: int = 400,
        output: Literal["evidence", "answer"] = "evidence",
        collect: Literal["first", "k"] = "first",
        k: int = 10,
        fallback: Literal["visited", "empty"] = "visited",
        triage_revert: bool = False,
        exclude_visited: bool = True,
        skip_forced: bool = True,
        max_steps: int = 30,
        attempts: int = 3,
        working_memory: Literal["off", "leaf", "both"] = "leaf",
        background_tokens: int = 1200,
        show_dates: bool = True,
        reasoning: bool = True,
    ) -> None:
        self.llm, self.prompts = llm, prompts
        self.segment, self.break_at_session, self.leaf_summary = segment, break_at_session, leaf_summary
        self.segment_tokens, self.branching = positive("segment_tokens", segment_tokens), branching
        self.short_tokens, self.summary_tokens = short_tokens, positive("summary_tokens", summary_tokens)
        self.output, self.collect, self.k, self.fallback = output, collect, positive("k", k), fallback
        self.triage_revert, self.exclude_visited, self.skip_forced = triage_revert, exclude_visited, skip_forced
        self.max_steps, self.attempts = positive("max_steps", max_steps), positive("attempts", attempts)
        self.working_memory, self.background_tokens = working_memory, positive("background_tokens", background_tokens)
        self.show_dates, self.reasoning = show_dates, reasoning
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, found {getattr(self, name)!r}")
        if branching < 2:
            raise ValueError(f"branching must be at least 2, found {branching}")
        self._units: list[Unit] = []
        self._cuts: list[int] = []
        self._size = 0
        self._full: list[list[Node]] = [[]]
        self._levels: list[list[Node]] = []
        self._built = 0

    def write(self, unit: Unit) -> None:
        """Add the unit to the open segment, or open the next with it. Summaries are made by `consolidate`."""
        before = self._units[-1] if self._units else None
        tokens = count_tokens(unit.text if _same_time(before, unit) else dated(unit.text, unit.time_text))
        new_session = before is not None and before.session_id != unit.session_id
        if (
            not self._units
            or self.segment == "unit"
            or self._size + tokens > self.segment_tokens
            or (self.break_at_session and new_session)
        ):
            self._cuts.append(len(self._units))
            self._size, tokens = 0, count_tokens(dated(unit.text, unit.time_text))
        self._size += tokens
        self._units.append(unit)

    def consolidate(self) -> None:
        """Summarise what has become full since the last time, and renew the open end of each level."""
        if self._built < len(self._units):
            self._close()
            self._levels = self._with_open_ends()
            self._built = len(self._units)

    def read(self, question: Question) -> Recall:
        if not self._levels:
            return Recall(())
        walk = self.walk(question)
        meter.note(f"memwalker.{walk.outcome}")
        for event in ("forced", "reverts"):
            if walk.counts[event]:
                meter.note(f"memwalker.{event}", walk.counts[event])
        # Where the walk itself answers, "no answer" of an exhausted one must not pass for a correct abstention.
        empty_handed = self.output == "answer" and walk.outcome == "exhausted"
        aborted = walk.outcome if empty_handed or walk.outcome.startswith("gave_up") else ""
        answer = (walk.answer or NO_ANSWER) if self.output == "answer" else None
        return Recall(tuple(self._evidence(walk)), answer, aborted)

    def walk(self, question: Question) -> Walk:
        """The search for one question through the tree of the last `consolidate`, which must have seen a unit."""
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
            times = [unit.time for unit in units if unit.time is not None]
            start, end = (min(times), max(times)) if times else (None, None)
            above = (parents[node.id],) if node.id in parents else ()
            kind = "summary" if node.children else "segment"
            sources = union(unit.turn_ids for unit in units)
            yield NodeView(node.id, above, node.level, kind, node.summary, None, sources, start, end)

    @property
    def held(self) -> int:
        return sum(map(len, self._levels))

    def report(self) -> dict[str, Any]:
        """Shape of the tree; no node is stale at a read."""
        nodes = [node for level in self._levels for node in level]
        return {
            "policy": "append",
            "units": self._built,
            "levels": [len(level) for level in self._levels],
            "nodes": len(nodes),
            "full": sum(map(len, self._full)),
            "truncated_summaries": sum(node.truncated for node in nodes),
        }

    # --- the tree ---

    def _close(self) -> None:
        edges = [*self._cuts, *([len(self._units)] if self.segment == "unit" else [])]
        spans = list(itertools.pairwise(edges))
        self._full[0] += self._segments(len(self._full[0]), spans[len(self._full[0]) :])
        below, m = 0, self.branching
        while len(self._full[below]) >= m:
            if below + 1 == len(self._full):
                self._full.append([])
            done, full = len(self._full[below + 1]), self._full[below]
            groups = [full[first : first + m] for first in range(done * m, len(full) - m + 1, m)]
            self._full[below + 1] += self._groups(below + 2, done, groups)
            below += 1

    def _with_open_ends(self) -> list[list[Node]]:
        segments = list(self._full[0])
        if len(segments) < len(self._cuts):
            segments += self._segments(len(segments), [(self._cuts[-1], len(self._units))])
        levels = [segments]
        while len(levels[-1]) > 1:
            full = self._full[len(levels)] if len(levels) < len(self._full) else []
            rest = levels[-1][len(full) * self.branching :]
            levels.append([*full, *self._groups(len(levels) + 1, len(full), [rest] if rest else [])])
        return levels

    def _segments(self, first: int, spans: Sequence[tuple[int, int]]) -> list[Node]:
        texts = [self._passage(start, stop) for start, stop in spans]
        asked = [self.leaf_summary == "llm" or count_tokens(text) > self.short_tokens for text in texts]
        made = iter(self._summaries("segment", [[text] for text, wanted in zip(texts, asked, strict=True) if wanted]))
        summaries = [next(made) if wanted else (text, False) for text, wanted in zip(texts, asked, strict=True)]
        return [
            Node(f"segment-{number}", 1, start, stop, summary, text, truncated=truncated)
            for number, ((start, stop), text, (summary, truncated)) in enumerate(
                zip(spans, texts, summaries, strict=True), start=first
            )
        ]

    def _groups(self, level: int, first: int, groups: Sequence[Sequence[Node]]) -> list[Node]:
        several = [[self._shown(child) for child in group] for group in groups if len(group) > 1]
        made = iter(self._summaries("group", several))
        summaries = [next(made) if len(group) > 1 else (group[0].summary, group[0].truncated) for group in groups]
        return [
            Node(f"node-{level}-{number}", level, group[0].start, group[-1].stop, summary, "", tuple(group), truncated)
            for number, (group, (summary, truncated)) in enumerate(zip(groups, summaries, strict=True), start=first)
        ]

    def _summaries(self, step: str, texts: Sequence[Sequence[str]]) -> list[tuple[str, bool]]:
        """For each entry its summary, and whether it is only the start of the texts."""
        prompt = replace(self.prompts[f"memwalker/{step}"], max_tokens=self.summary_tokens)
        values = ask_all(self.llm, [(prompt, {"texts": tuple(each)}) for each in texts])
        if failed := sum(isinstance(value, ParseFailure) for value in values):
            meter.note("memwalker.truncated_texts", failed)
        if capped := sum(isinstance(value, str) and count_tokens(value) >= self.summary_tokens for value in values):
            meter.note("memwalker.summary_at_limit", capped)
        return [
            (truncate(" ".join(each), self.summary_tokens), True) if isinstance(value, ParseFailure) else (value, False)
            for each, value in zip(texts, values, strict=True)
        ]

    def _passage(self, start: int, stop: int) -> str:
        units = self._units[start:stop]
        return "\n".join(
            unit.text if index and _same_time(units[index - 1], unit) else dated(unit.text, unit.time_text)
            for index, unit in enumerate(units)
        )

    def _shown(self, node: Node) -> str:
        """A node's summary with the span of time it covers; a copied text carries its dates itself."""
        if node.summary == node.text or not node.summary:
            return node.summary
        ends = (self._units[node.start].time_text, self._units[node.stop - 1].time_text)
        return dated(node.summary, " – ".join(dict.fromkeys(text for text in ends if text)))

    # --- the walk ---

    def _inner(self, walk: Walk) -> None:
        node = walk.path[-1]
        options = [child for child in node.children if child.id not in walk.closed]
        may_revert = self.triage_revert and len(walk.path) > 1
        if not options:
            walk.closed.add(node.id)
            walk.leave()
        elif len(options) == 1 and self.skip_forced and not may_revert:
            walk.counts["forced"] += 1
            walk.move(options[0])
        else:
            action, _ = self._step(walk, *self._triage(walk, options, may_revert))
            if action is not None and action >= 0:
                walk.move(options[action])
            elif action is not None:
                self._reject(walk, exclude=self.exclude_visited)

    def _leaf(self, walk: Walk) -> None:
        node = walk.path[-1]
        if all(seen.id != node.id for seen in walk.leaves):
            walk.leaves.append(node)
        action, answer = self._step(walk, *self._reading(walk))
        if action == BACK:
            self._reject(walk, exclude=self.exclude_visited)
        elif action == COMMIT:
            walk.answer = walk.answer or answer
            walk.kept.append(node)
            if self.collect == "first" or sum(kept.stop - kept.start for kept in walk.kept) >= self.k:
                walk.outcome = "committed"
            else:
                walk.closed.add(node.id)
                walk.remember(node)
                walk.leave()

    def _reject(self, walk: Walk, *, exclude: bool) -> None:
        walk.counts["reverts"] += 1
        walk.remember(walk.path[-1])
        if exclude:
            walk.closed.add(walk.path[-1].id)
        walk.leave()

    def _step(
        self, walk: Walk, step: str, fields: dict[str, Any], allowed: range | tuple[int, ...]
    ) -> tuple[int | None, str]:
        """The action, and the answer that comes with it; no action when the walk is given up, which its outcome then says."""
        if walk.counts["calls"] >= self.max_steps:
            walk.outcome = "gave_up_budget"
            return None, ""
        walk.counts["calls"] += 1
        prompt: Prompt = self.prompts[f"memwalker/{step}{'' if self.reasoning else '_direct'}"]
        request = prompt.render(fields)
        for attempt in range(self.attempts):
            heat = RETRY_TEMPERATURE if attempt else request.temperature
            asked = replace(request, temperature=heat, sample=attempt, retry=attempt)
            reply = complete(self.llm, asked)
            action, answer = (None, "") if reply.stopped else action_of(reply.text)
            if action is not None and action in allowed and (action != COMMIT or answer):
                return action, answer
            walk.counts["invalid"] += 1
            meter.count_parse_failure(request.purpose)
        walk.outcome = "gave_up_parse"
        return None, ""

    def _triage(
        self, walk: Walk, options: Sequence[Node], may_revert: bool
    ) -> tuple[str, dict[str, Any], range | tuple[int, ...]]:
        allowed = range(BACK if may_revert else 0, len(options))
        fields = {
            "query": walk.question.text,
            "now": walk.question.time_text or "not known",
            "options": tuple(
                Option(str(number), self._shown(node) if self.show_dates else node.summary)
                for number, node in enumerate(options)
            ),
            "numbers": ", ".join(map(str, allowed)),
            "background": self._background(walk) if self.working_memory == "both" else (),
        }
        return "triage", fields, allowed

    def _reading(self, walk: Walk) -> tuple[str, dict[str, Any], range | tuple[int, ...]]:
        question = walk.question
        fields = {
            "question": question.text,
            "now": question.time_text or "not known",
            "memories": walk.path[-1].text,
            "options": tuple(Option(chr(ord("A") + place), text) for place, text in enumerate(question.options)),
            "instruction": question.instruction,
            "background": self._background(walk) if self.working_memory != "off" else (),
        }
        return "leaf", fields, (BACK, COMMIT)

    def _background(self, walk: Walk) -> tuple[str, ...]:
        """The notes within their limit: the oldest but the root's are dropped first, then the root's is cut."""
        notes = [node.summary for node in walk.background]
        sizes = [count_tokens(note) for note in notes]
        dropped = 0
        while len(notes) - dropped > 1 and sizes[0] + sum(sizes[1 + dropped :]) > self.background_tokens:
            dropped += 1
        if dropped or sizes[:1] > [self.background_tokens]:
            meter.note("memwalker.background_cut")
        root = [truncate(note, self.background_tokens) for note in notes[:1]]
        return (*root, *notes[1 + dropped :])

    def _evidence(self, walk: Walk) -> Iterator[Item]:
        if walk.kept:
            for node in sorted(walk.kept, key=lambda node: node.start):
                yield from (unit_item(unit, 1.0) for unit in self._units[node.start : node.stop])
        elif self.fallback == "visited":
            units = [unit for node in reversed(walk.leaves) for unit in self._units[node.start : node.stop]]
            yield from map(unit_item, units if self.collect == "first" else units[: self.k])


def _same_time(before: Unit | None, unit: Unit) -> bool:
    return before is not None and before.time_text == unit.time_text
