"""A tree over units whose inner nodes carry summaries of their children, called annotations (SegTreeMem §4, Algorithm 1), and its reading
(Algorithm 2, §4.3): relevance propagated along the edges, and the selection of nodes.

A tree is an array of parent indices, so one step is a gather (top-down) or a scatter-add (bottom-up). This applies the paper's
propagation matrix (binary weights, column-normalised, Eq. 3-4) without building it.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Lt

from data_loaders.schema import Question, Unit
from memsys.interface import Item, MemorySystem, NodeView, NotNegative, Positive, Recall, Settings, dated, union
from memsys.llm import meter
from memsys.llm.ask import ParseFailure, ask_all
from memsys.llm.protocol import LLM
from memsys.prompts import Option, Prompts
from memsys.tokens import count_tokens, first_within, truncate
from memsys.vectors import Embedder, Vectors, cosines


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

    def __init__(
        self, llm: LLM, embedder: Embedder, prompts: Prompts, build: TreeBuild, reading: SegTreeReading
    ) -> None:
        self.llm, self.embedder, self.prompts = llm, embedder, prompts
        self.build, self.reading = build, reading
        self._units: list[Unit] = []
        self._parents: list[int] = []
        self._children: list[list[int]] = []
        self._levels: list[int] = []
        self._starts: list[int] = []
        """For each node, the index in `_units` of the first unit below it."""
        self._ends: list[int] = []
        """For each node, the index in `_units` of the last unit below it."""
        self._vectors = Vectors()
        self._texts: list[str] = []
        self._sizes: dict[int, tuple[str, int]] = {}
        """Number of tokens of a node's text, with that text: a long text is not counted again for each unit that joins its parent."""
        self._stale: set[int] = set()
        self._current: dict[int, _Refreshed] = {}
        """Annotations that replace those in the tree until the next unit is added."""
        self._refreshed: dict[int, _Refreshed] = {}
        """The latest refreshed annotation of each node, reused while its children's annotations stay the same."""
        self._counts: Counter[str] = Counter()

    def _add_leaf(self, unit: Unit, vector: np.ndarray) -> int:
        """Add a leaf without a parent, discard the annotations of the last `consolidate`, and return the leaf's number."""
        self._current = {}
        self._units.append(unit)
        return self._add([], 0, len(self._units) - 1, len(self._units) - 1, unit.text, vector)

    def _wrap(self, child: int) -> int:
        """Add a parent above a root node, with a copy of its annotation and vector, and return the parent's number."""
        vector = self._vectors.matrix[child]
        level, start, end = self._levels[child] + 1, self._starts[child], self._ends[child]
        self._parents[child] = node = self._add([child], level, start, end, self._texts[child], vector)
        return node

    def _attach(self, parent: int, child: int) -> None:
        """Append a node to the children of another and extend the intervals of all ancestors."""
        self._children[parent].append(child)
        self._parents[child] = parent
        while parent >= 0:
            self._starts[parent] = min(self._starts[parent], self._starts[child])
            self._ends[parent] = max(self._ends[parent], self._ends[child])
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
        for place, node in enumerate(path):
            (first, *others) = self._children[node]
            if not others:
                text, stale = self._texts[first], first in self._stale
            elif self.build.annotate == "lazy":
                text, stale = self._joined(self._texts[child] for child in self._children[node]), True
            elif self.build.annotate == "full" or place == 0:
                text, stale = self._summaries([self._parts(node)])[0], False
            else:
                text, stale = self._texts[node], True
            if stale:
                self._stale.add(node)
            else:
                self._stale.discard(node)
            if others and text != self._texts[node]:
                changed.append(node)
            self._texts[node] = text
        vectors = self.embedder.embed([self._texts[node] for node in changed]) if changed else ()
        for node, vector in zip(changed, vectors, strict=True):
            self._vectors.set(node, vector)
        for node in path:
            if len(self._children[node]) == 1:
                self._vectors.set(node, self._vectors.matrix[self._children[node][0]])

    def consolidate(self) -> None:
        """Summarise all outdated annotations again, bottom-up; the results hold until the next leaf is added.

        The annotations stored in the tree do not change. An annotation whose children have the same annotations as at an earlier
        call is reused without a call.
        """
        self._current = {}
        due: defaultdict[int, set[int]] = defaultdict(set)
        for node in self._stale:
            due[self._levels[node]].add(node)
        while due:
            nodes = sorted(due.pop(min(due)))
            self._renew([node for node in nodes if len(self._children[node]) > 1])
            for node in nodes:
                if len(self._children[node]) == 1 and (child := self._current.get(self._children[node][0])) is not None:
                    self._current[node] = child
                if node in self._current and self._parents[node] >= 0:
                    due[self._levels[node] + 1].add(self._parents[node])

    def read(self, question: Question) -> Recall:
        """Recall by Algorithm 2; an item's score is its node's propagated relevance, s-tilde in the paper."""
        reading = self.reading
        if not self._parents:
            return Recall(())
        query = self.embedder.embed([question.text], query=True)[0]
        similarities = self._vectors.similarities(query).astype(np.float64)
        if self._current:
            rows = np.stack([current.vector for current in self._current.values()])
            similarities[list(self._current)] = cosines(rows, query)
        scores = propagated(np.round(similarities, 6), self._parents, reading)
        chosen: dict[Hashable, int] = {}
        for node in map(int, ranking(scores, self._starts, self._levels)):
            if len(chosen) == reading.k:
                break
            if reading.leaf_only and self._levels[node] > 0:
                continue
            chosen.setdefault((self._starts[node], self._ends[node], self._text(node)) if reading.dedup else node, node)
        nodes = list(chosen.values())
        if reading.order == "chronological":
            nodes.sort(key=lambda node: self._starts[node])
        items = []
        for node in nodes:
            view, text = self._view(node, -1), dated(self._text(node), self._time(node))
            items.append(Item(view.id, text, float(scores[node]), view.sources, view.kind, view.level))
        return Recall(tuple(items))

    def _text(self, node: int) -> str:
        """The current annotation of a node, refreshed where `consolidate` has made one; a leaf's is its unit's text."""
        return self._current[node].text if node in self._current else self._texts[node]

    def _described(self, node: int) -> str:
        """Format a node for a compatibility prompt: level, number of units, time and annotation."""
        count = self._ends[node] - self._starts[node] + 1
        return f"(level {self._levels[node]}; {count} unit{'s' * (count > 1)}; {self._time(node) or 'time unknown'}) {self._texts[node]}"

    def _time(self, node: int) -> str:
        """Time texts of a node's first and last unit, joined by a dash; one text when they are equal."""
        first, last = (self._units[place].time_text for place in (self._starts[node], self._ends[node]))
        return first if first == last else " – ".join(filter(None, (first, last)))

    def nodes(self) -> Iterator[NodeView]:
        """All nodes with their current annotations; with `collapse_chains`, without those that have a single child."""
        return itertools.starmap(self._view, self._edges(self.build.collapse_chains))

    def _view(self, node: int, parent: int) -> NodeView:
        """A node below a parent (-1: none). Its kind is `chain` if it has a single child, whose annotation it copies."""
        units, pending = [], [node]
        while pending:
            below = pending.pop()
            pending.extend(self._children[below])
            if not self._levels[below]:
                units.append(self._starts[below])
        return NodeView(
            id=self._id(node),
            parents=(self._id(parent),) if parent >= 0 else (),
            level=self._levels[node],
            kind=("leaf", "chain", "summary")[min(2, len(self._children[node]))],
            text=self._text(node),
            vector=self._current[node].vector if node in self._current else self._vectors.matrix[node],
            sources=union(self._units[index].turn_ids for index in sorted(units)),
            start=self._units[self._starts[node]].time,
            end=self._units[self._ends[node]].time,
        )

    def _id(self, node: int) -> str:
        """Public id of a node: a leaf has its unit's id."""
        return f"node-{node}" if self._levels[node] else self._units[self._starts[node]].id

    @property
    def held(self) -> int:
        return len(self._parents)

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

    def _add(self, children: list[int], level: int, start: int, end: int, text: str, vector: np.ndarray) -> int:
        self._parents.append(-1)
        self._children.append(children)
        self._levels.append(level)
        self._starts.append(start)
        self._ends.append(end)
        self._texts.append(text)
        return self._vectors.add(vector)

    def _renew(self, nodes: Sequence[int]) -> None:
        """Summarise nodes of one level; annotations that differ from those in the tree enter `_current`."""
        parts = {node: tuple(map(self._part, self._children[node])) for node in nodes}
        known = self._refreshed
        outdated = [node for node in nodes if node not in known or known[node].parts != parts[node]]
        if outdated:
            texts = self._folded([parts[node] for node in outdated])
            self._counts["renewed"] += len(outdated)
            for node, text, vector in zip(outdated, texts, self.embedder.embed(texts), strict=True):
                known[node] = _Refreshed(parts[node], text, vector)
        self._current.update((node, known[node]) for node in nodes if known[node].text != self._texts[node])

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
        sizes = itertools.accumulate(max(1, count_tokens(part.text)) for part in parts)
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

    def _parts(self, node: int) -> list[Option]:
        """A node's children as parts of an annotation prompt.

        When they exceed `summary_tokens`, these are the latest children that fit, after a lead with the node's present annotation.
        """
        children = self._children[node]
        if self.build.summary_tokens is None:
            return [self._part(child) for child in children]
        latest = first_within(reversed(children), self.build.summary_tokens, self._size)[::-1]
        if len(latest) == len(children):
            return [self._part(child) for child in children]
        self._capped(1)
        lead = self._lead(self._texts[node])
        remaining = self.build.summary_tokens - count_tokens(lead.text)
        parts = [self._part(child) for child in first_within(reversed(children), remaining, self._size)[::-1]]
        last = self._part(children[-1])
        return [lead, *(parts or [Option(last.label, truncate(last.text, remaining))])]

    def _size(self, node: int) -> int:
        """Tokens of a node's text, at least 1."""
        text = self._text(node)
        known = self._sizes.get(node)
        if known is None or known[0] is not text:
            known = self._sizes[node] = (text, max(1, count_tokens(text)))
        return known[1]

    def _part(self, child: int) -> Option:
        return Option(self._time(child) or "time unknown", self._text(child))

    def _joined(self, texts: Iterable[str]) -> str:
        """Join texts, one per line, and truncate the result to the token limit of a summary."""
        limit = remaining = self.prompts["segtree/annotate"].max_tokens
        kept: list[str] = []
        for text in texts:
            kept.append(text)
            remaining -= max(1, count_tokens(text))
            if remaining <= 0:
                break
        return truncate("\n".join(kept), limit)

    def _edges(self, collapse_chains: bool) -> list[tuple[int, int]]:
        """List (node, parent or -1) in order of creation; without chains, the parent is the nearest ancestor that is kept."""
        kept = [not collapse_chains or len(children) != 1 for children in self._children]
        edges = []
        for node in range(len(self._parents)):
            parent = self._parents[node]
            while parent >= 0 and not kept[parent]:
                parent = self._parents[parent]
            if kept[node]:
                edges.append((node, parent))
        return edges


def _shape(edges: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Number of nodes, depths of the leaves (the root has depth 0) and mean number of children of inner nodes."""
    parents = dict(edges)
    branching = Counter(parent for parent in parents.values() if parent >= 0)
    depths: dict[int, int] = {}
    for node in reversed(parents):
        path = []
        while node >= 0 and node not in depths:
            path.append(node)
            node = parents[node]
        depth = depths.get(node, -1)
        depths.update((below, depth + place) for place, below in enumerate(reversed(path), 1))
    leaves = [depth for node, depth in depths.items() if node not in branching] or [0]
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


def ranking(scores: np.ndarray, starts: Sequence[int], levels: Sequence[int]) -> np.ndarray:
    """Sort node indices by score, best first; ties go to the earlier start, then the lower level, then the lower index."""
    order: np.ndarray = np.lexsort((np.asarray(levels), np.asarray(starts), -scores))
    return order
