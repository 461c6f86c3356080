"""A tree over units whose inner nodes carry summaries of their children, called annotations (SegTreeMem §4, Algorithm 1), and its reading
(Algorithm 2, §4.3): relevance propagated along the edges, and the selection of nodes.

A tree is an array of parent indices, so one step is a gather (top-down) or a scatter-add (bottom-up). This applies the paper's
propagation matrix (binary weights, column-normalised, Eq. 3-4) without building it.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Lt

from data_loaders.schema import Question, Unit
from memsys.interface import (
    Item,
    MemorySystem,
    NodeView,
    NotNegative,
    Positive,
    Recall,
    Settings,
    dated,
    period_text,
    union,
)
from memsys.llm import meter
from memsys.llm.ask import ParseFailure, ask_all
from memsys.llm.protocol import LLM
from memsys.prompts import Option, Prompts
from memsys.tokens import count_tokens, first_within, truncate
from memsys.vectors import Embedder, Vectors, cosines


@dataclass(slots=True)
class _Node:
    """A node of the tree; its number is its row in the matrix of vectors."""

    id: str
    """A leaf has its unit's id."""
    level: int
    """0 for a leaf."""
    units: list[int]
    """Indices of the units below it, in order; its interval goes from the first to the last."""
    text: str
    """Its annotation as of the last insertion; a leaf's is its unit's text."""
    tokens: int
    """Number of tokens of the text, at least 1: a long text is not counted again for each unit that joins its parent."""
    children: list[int] = field(default_factory=list)
    stale: bool = False
    """Whether the annotation is older than the units below it."""


@dataclass(frozen=True, slots=True)
class _Refreshed:
    """An annotation written by `consolidate`, with the child annotations (`parts`) that its prompt contained."""

    parts: tuple[Option, ...]
    text: str
    vector: np.ndarray


@dataclass(frozen=True)
class TreeBuild(Settings):
    """Settings of the annotations and of the view of a tree; `memsys.systems.segtree` explains the choices that the paper leaves open."""

    annotate: Literal["full", "attach_only", "lazy"] = "full"
    """Which annotations an insertion updates."""
    summary_tokens: Annotated[int, Ge(2)] | None = 8000
    """Maximum number of tokens of child annotations in one prompt; None for no limit."""
    collapse_chains: bool = False
    """Whether `nodes()` leaves out nodes with a single child."""


@dataclass(frozen=True)
class SegTreeReading(Settings):
    """Settings of a read; `memsys.systems.segtree` explains the choices that the paper leaves open."""

    k: Positive = 10
    """Number of nodes to recall."""
    policy: Literal["none", "top_down", "bottom_up"] = "top_down"
    """Direction of propagation: a node divides its score equally among its children (`top_down`), or passes it to its parent."""
    alpha: Annotated[float, Ge(0), Lt(1)] = 0.1
    """Decay per propagation step, in [0, 1)."""
    horizon: NotNegative = 2
    """Number of propagation steps H; 0 gives collapsed retrieval."""
    neg: Literal["clip0", "shift", "softmax"] = "clip0"
    """Treatment of negative cosines: `clip0`, `shift` ((1 + cos) / 2) or `softmax` over all nodes."""
    sink: Literal["drop", "self_loop"] = "drop"
    """Whether a node without an outgoing edge loses its score in a step (`drop`, the literal reading) or keeps it (`self_loop`)."""
    leaf_only: bool = False
    """Whether only leaves may be recalled."""
    dedup: bool = True
    """Whether only the best-ranked of several nodes with the same interval and text is recalled."""
    order: Literal["chronological", "rank"] = "chronological"
    """Order of the items: by start of interval, or by score."""


class TreeMemory(MemorySystem):
    """Recalls the `k` nodes with the highest propagated relevance from a tree over units whose inner nodes carry summaries of their
    children; a subclass places the units. Nodes are numbered in order of creation.
    """

    READ_KNOBS: ClassVar = tuple(setting.name for setting in fields(SegTreeReading))
    PROMPTS: ClassVar = ("segtree",)
    UNIT: ClassVar = {"rule": "ab_pair", "on_unpaired": "keep_single"}
    ENTRIES: ClassVar = "_nodes"

    def __init__(
        self, llm: LLM, embedder: Embedder, prompts: Prompts, build: TreeBuild, reading: SegTreeReading
    ) -> None:
        self.llm, self.embedder, self.prompts = llm, embedder, prompts
        self.build, self.reading = build, reading
        self._units: list[Unit] = []
        self._nodes: list[_Node] = []
        self._vectors = Vectors()
        self._current: dict[int, _Refreshed] = {}
        """Annotations that replace those in the tree until the next unit is added."""
        self._refreshed: dict[int, _Refreshed] = {}
        """The latest refreshed annotation of each node, reused while its children's annotations stay the same."""
        self._parents: list[int] = []
        """The parent of each node; -1 for a root."""
        self._starts: list[int] = []
        """The first unit below each node: later ones come after it."""
        self._counts: Counter[str] = Counter()

    def _add_leaf(self, unit: Unit, vector: np.ndarray) -> int:
        """Add a leaf without a parent, discard the annotations of the last `consolidate`, and return the leaf's number."""
        self._current = {}
        self._parents.append(-1)
        self._starts.append(len(self._units))
        self._nodes.append(_Node(unit.id, 0, [len(self._units)], unit.text, count_tokens(unit.text) or 1))
        self._units.append(unit)
        return self._vectors.add(vector)

    def _wrap(self, child: int) -> int:
        """Add a parent above a root node, with a copy of its annotation and vector, and return the parent's number."""
        below = self._nodes[child]
        parent = self._parents[child] = self._vectors.add(self._vectors.matrix[child])
        self._parents.append(-1)
        self._starts.append(self._starts[child])
        name, units = f"node-{parent}", list(below.units)
        self._nodes.append(_Node(name, below.level + 1, units, below.text, below.tokens, children=[child]))
        return parent

    def _attach(self, parent: int, child: int) -> None:
        """Append a node to the children of another, and its units, which come after all others, to those of all ancestors."""
        below = self._nodes[child]
        self._nodes[parent].children.append(child)
        self._parents[child] = parent
        while parent >= 0:
            node = self._nodes[parent]
            node.units += below.units
            parent = self._parents[parent]

    def _ancestors(self, node: int) -> list[int]:
        """List a node's ancestors from its parent to the root."""
        ancestors = []
        while (node := self._parents[node]) >= 0:
            ancestors.append(node)
        return ancestors

    def _update(self, path: Sequence[int]) -> None:
        """Update annotations after an insertion, as the setting `annotate` says.

        `path` is the node that received the leaf, followed by its ancestors.
        """
        changed: list[int] = []
        for place, number in enumerate(path):
            node = self._nodes[number]
            first, before = self._nodes[node.children[0]], node.text
            if len(node.children) == 1:
                node.text, node.stale = first.text, first.stale
            elif self.build.annotate == "lazy":
                node.text, node.stale = self._joined(self._nodes[child].text for child in node.children), True
            elif self.build.annotate == "full" or place == 0:
                node.text, node.stale = self._summaries([self._parts(number)])[0], False
            else:
                node.stale = True
            if node.text != before:
                node.tokens = count_tokens(node.text) or 1
                if len(node.children) > 1:
                    changed.append(number)
        vectors = self.embedder.embed([self._nodes[number].text for number in changed]) if changed else ()
        for number, vector in zip(changed, vectors, strict=True):
            self._vectors.matrix[number] = vector
        for number in path:
            if len(self._nodes[number].children) == 1:
                self._vectors.matrix[number] = self._vectors.matrix[self._nodes[number].children[0]]

    def consolidate(self) -> None:
        """Summarise all outdated annotations again, bottom-up; the results hold until the next leaf is added.

        The annotations stored in the tree do not change. An annotation whose children have the same annotations as at an earlier
        call is reused without a call.
        """
        self._current = {}
        due: defaultdict[int, set[int]] = defaultdict(set)
        for number, node in enumerate(self._nodes):
            if node.stale:
                due[node.level].add(number)
        while due:
            level = min(due)
            numbers = sorted(due.pop(level))
            self._renew([number for number in numbers if len(self._nodes[number].children) > 1])
            for number in numbers:
                node = self._nodes[number]
                if len(node.children) == 1 and (child := self._current.get(node.children[0])) is not None:
                    self._current[number] = child
                if number in self._current and self._parents[number] >= 0:
                    due[level + 1].add(self._parents[number])

    def read(self, question: Question) -> Recall:
        """Recall by Algorithm 2; an item's score is its node's propagated relevance, s-tilde in the paper."""
        nodes, reading = self._nodes, self.reading
        if not nodes:
            return Recall(())
        query = self.embedder.embed([question.text], query=True)[0]
        similarities = self._vectors.similarities(query).astype(np.float64)
        if self._current:
            rows = np.stack([current.vector for current in self._current.values()])
            similarities[list(self._current)] = cosines(rows, query)
        scores = propagated(np.round(similarities, 6), self._parents, reading)
        starts = np.array(self._starts)
        # Ties go to the earlier start, then the lower level: of nodes with the same start, the older is the lower one.
        ranking: list[int] = np.lexsort((starts, -scores)).tolist()
        chosen: dict[Hashable, int] = {}
        for number in ranking:
            if len(chosen) == reading.k:
                break
            node = nodes[number]
            if reading.leaf_only and node.level > 0:
                continue
            interval = starts[number], node.units[-1]
            chosen.setdefault((*interval, self._text(number)) if reading.dedup else number, number)
        numbers = list(chosen.values())
        if reading.order == "chronological":
            numbers.sort(key=lambda number: starts[number])
        items = []
        for number in numbers:
            view, text = self._view(number, -1), dated(self._text(number), self._time(number))
            items.append(Item(view.id, text, float(scores[number]), view.sources, view.kind, view.level))
        return Recall(tuple(items))

    def _text(self, number: int) -> str:
        """The current annotation of a node, refreshed where `consolidate` has made one; a leaf's is its unit's text."""
        return self._current[number].text if number in self._current else self._nodes[number].text

    def _described(self, number: int) -> str:
        """Format a node for a compatibility prompt: level, number of units, time and annotation."""
        node = self._nodes[number]
        count = len(node.units)
        return (
            f"(level {node.level}; {count} unit{'s' * (count > 1)}; {self._time(number) or 'time unknown'}) {node.text}"
        )

    def _time(self, number: int) -> str:
        """Time texts of a node's first and last unit, joined by a dash; one text when they are equal."""
        units = self._nodes[number].units
        return period_text(self._units[units[0]], self._units[units[-1]])

    def nodes(self) -> Iterator[NodeView]:
        """All nodes with their current annotations; with `collapse_chains`, without those that have a single child."""
        return itertools.starmap(self._view, self._edges(self.build.collapse_chains).items())

    def _view(self, number: int, parent: int) -> NodeView:
        """A node below a parent (-1: none). Its kind is `chain` if it has a single child, whose annotation it copies."""
        node = self._nodes[number]
        units = [self._units[index] for index in node.units]
        return NodeView(
            id=node.id,
            parents=(self._nodes[parent].id,) if parent >= 0 else (),
            level=node.level,
            kind=("leaf", "chain", "summary")[min(2, len(node.children))],
            text=self._text(number),
            vector=self._current[number].vector if number in self._current else self._vectors.matrix[number],
            sources=union(unit.turn_ids for unit in units),
            start=units[0].time,
            end=units[-1].time,
        )

    def report(self) -> dict[str, Any]:
        """Shape of the tree (as in the paper's Table 5) with and without chains, and counts of annotations and fallbacks."""
        rate = self._counts["annotation_fallbacks"] / max(1, self._counts["annotations"])
        return {
            "leaves": len(self._units),
            **_shape(self._edges(False)),
            "without_chains": _shape(self._edges(True)),
            **self._counts,
            "annotation_fallback_rate": round(rate, 4),
        }

    def _renew(self, numbers: Sequence[int]) -> None:
        """Summarise nodes of one level; annotations that differ from those in the tree enter `_current`."""
        parts = {number: tuple(map(self._part, self._nodes[number].children)) for number in numbers}
        known = self._refreshed
        outdated = [number for number in numbers if number not in known or known[number].parts != parts[number]]
        if outdated:
            texts = self._folded([parts[number] for number in outdated])
            self._counts["renewed"] += len(outdated)
            for number, text, vector in zip(outdated, texts, self.embedder.embed(texts), strict=True):
                known[number] = _Refreshed(parts[number], text, vector)
        self._current.update(
            (number, known[number]) for number in numbers if known[number].text != self._nodes[number].text
        )

    def _folded(self, lists: Sequence[Sequence[Option]]) -> list[str]:
        """Summarise each list of parts.

        A list longer than `summary_tokens` is summarised from first part to last in several prompts, one after another. Each prompt
        begins with the summary from the prompt before it. The annotation in the tree is outdated and cannot serve as a beginning.
        """
        waiting = [self._halved(parts) for parts in lists]
        while fitting := {
            place: count for place, parts in enumerate(waiting) if (count := self._fitting(parts)) < len(parts)
        }:
            notes = self._summaries([waiting[place][:count] for place, count in fitting.items()])
            self._capped(len(notes))
            for (place, count), note in zip(fitting.items(), notes, strict=True):
                waiting[place] = [self._lead(note), *waiting[place][count:]]
        return self._summaries(waiting)

    def _halved(self, parts: Sequence[Option]) -> list[Option]:
        """Return the parts; when they do not fit into one prompt, cut each so that it fits together with a lead."""
        if self.build.summary_tokens is None or self._fitting(parts) == len(parts):
            return list(parts)
        return [
            Option(part.label, truncate(part.text, self.build.summary_tokens - self.build.summary_tokens // 2))
            for part in parts
        ]

    def _fitting(self, parts: Sequence[Option]) -> int:
        """Number of leading parts that fit into one prompt, at least one."""
        if self.build.summary_tokens is None:
            return len(parts)
        sizes = itertools.accumulate(count_tokens(part.text) or 1 for part in parts)
        return max(1, sum(size <= self.build.summary_tokens for size in sizes))

    def _lead(self, note: str) -> Option:
        """The summary of earlier children, cut to half the limit, as the first part of a prompt."""
        assert self.build.summary_tokens is not None
        return Option("the note so far, for what came before", truncate(note, self.build.summary_tokens // 2))

    def _capped(self, count: int) -> None:
        self._counts["annotations_capped"] += count
        meter.note("segtree.annotate_capped", count)

    def _summaries(self, prompts: Sequence[Sequence[Option]]) -> list[str]:
        """Ask for one summary per list of parts; the truncated parts replace a reply without text."""
        prompt = self.prompts["segtree/annotate"]
        asks = [(prompt, {"texts": parts}) for parts in prompts]
        values = ask_all(self.llm, asks, noted="segtree.annotate_fallback")
        self._counts["annotations"] += len(values)
        for place, value in enumerate(values):
            if isinstance(value, ParseFailure):
                self._counts["annotation_fallbacks"] += 1
                values[place] = self._joined(part.text for part in prompts[place])
        return values

    def _parts(self, number: int) -> list[Option]:
        """A node's children as parts of an annotation prompt.

        When they exceed `summary_tokens`, these are the latest children that fit, after a lead with the node's present annotation.
        """
        node, limit = self._nodes[number], self.build.summary_tokens
        if limit is None or sum(self._nodes[child].tokens for child in node.children) <= limit:
            return [self._part(child) for child in node.children]
        self._capped(1)
        lead = self._lead(node.text)
        remaining = limit - count_tokens(lead.text)
        latest = first_within(reversed(node.children), remaining, lambda child: self._nodes[child].tokens)[::-1]
        last = self._part(node.children[-1])
        return [lead, *(map(self._part, latest) if latest else [Option(last.label, truncate(last.text, remaining))])]

    def _part(self, child: int) -> Option:
        return Option(self._time(child) or "time unknown", self._text(child))

    def _joined(self, texts: Iterable[str]) -> str:
        """Join texts, one per line, and truncate the result to the token limit of a summary."""
        limit = remaining = self.prompts["segtree/annotate"].max_tokens
        kept: list[str] = []
        for text in texts:
            kept.append(text)
            remaining -= count_tokens(text) or 1
            if remaining <= 0:
                break
        return truncate("\n".join(kept), limit)

    def _edges(self, collapse_chains: bool) -> dict[int, int]:
        """The parent of each node (-1: none) in order of creation; without chains, the nearest ancestor that is kept."""
        kept = [not collapse_chains or len(node.children) != 1 for node in self._nodes]
        parents = {}
        for number, parent in enumerate(self._parents):
            while parent >= 0 and not kept[parent]:
                parent = self._parents[parent]
            if kept[number]:
                parents[number] = parent
        return parents


def _shape(parents: Mapping[int, int]) -> dict[str, Any]:
    """Number of nodes, depths of the leaves (the root has depth 0) and mean number of children of inner nodes."""
    branching = Counter(parent for parent in parents.values() if parent >= 0)
    depths: list[int] = []
    for node in parents.keys() - branching.keys():
        depth = 0
        while (node := parents[node]) >= 0:
            depth += 1
        depths.append(depth)
    leaves = depths or [0]
    return {
        "nodes": len(parents),
        "max_depth": max(leaves),
        "mean_depth": round(float(np.mean(leaves)), 4),
        "depth_std": round(float(np.std(leaves)), 4),
        "branching": round(sum(branching.values()) / max(1, len(branching)), 4),
    }


def propagated(relevance: np.ndarray, parents: Sequence[int] | np.ndarray, reading: SegTreeReading) -> np.ndarray:
    """Compute the final score of every node, float64 [n]: its relevance plus the scores that reach it in up to `horizon` steps.

    Relevance is a share: at least 0, and 1 over all nodes; uniform where all are 0.

    Args:
        relevance: cosine of the query with every node, [n].
        parents: index of every node's parent, [n]; -1 for a root.
        reading: `policy`, `alpha`, `horizon`, `neg` and `sink` are used.
    """
    scores = np.asarray(relevance, dtype=np.float64)
    if reading.neg == "clip0":
        scores = np.maximum(scores, 0.0)
    else:
        scores = (1.0 + scores) / 2.0 if reading.neg == "shift" else np.exp(scores - scores.max(initial=0.0))
    weight = scores.sum()
    scores = total = scores / weight if weight > 0 else np.full(len(scores), 1.0 / max(1, len(scores)))
    if reading.policy == "none" or not len(total):
        return total
    keeps, indices = reading.sink == "self_loop", np.asarray(parents, dtype=np.intp)
    below = indices >= 0
    above = indices[below]
    children = np.bincount(above, minlength=len(indices))
    for hop in range(1, reading.horizon + 1):
        if reading.policy == "top_down":
            moved = np.where(children == 0, scores, 0.0) if keeps else np.zeros(len(scores))
            moved[below] += scores[above] / children[above]
        else:
            moved = np.bincount(above, weights=scores[below], minlength=len(indices))
            moved = moved + np.where(below, 0.0, scores) if keeps else moved
        scores = moved
        total = total + reading.alpha**hop * scores
    result: np.ndarray = total / sum(reading.alpha**hop for hop in range(reading.horizon + 1))
    return result
