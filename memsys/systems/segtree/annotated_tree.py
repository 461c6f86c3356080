"""A tree over units whose inner nodes carry summaries, and its reading: what SegTreeMem (`segtree`, where the choices that the
paper leaves open are listed) and its non-temporal control (`memsys.systems.segtree.similarity_tree`) share.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from data_loaders.schema import Question, Unit
from memsys.embed import Embedder
from memsys.interface import Item, NodeView, Recall, dated, one_of, union
from memsys.llm import meter
from memsys.llm.ask import ask_all
from memsys.llm.parsing import ParseFailure
from memsys.llm.protocol import LLM
from memsys.prompts import Option, Prompts
from memsys.systems.segtree.propagation import propagated, ranking
from memsys.tokens import count_tokens, truncate
from memsys.vectors import Vectors

READ_KNOBS = ("k", "alpha", "horizon", "policy", "leaf_only", "neg", "sink", "dedup", "order")
ANNOTATE = ("full", "attach_only", "lazy")
ORDERS = ("chronological", "rank")


@dataclass(frozen=True, slots=True)
class _Renewed:
    """An annotation that `refresh` made, and what it was made from."""

    parts: tuple[Option, ...]
    text: str
    vector: np.ndarray


class AnnotatedTree:
    """A tree over units whose inner nodes carry summaries of their children; nodes are numbered in order of creation.

    Args:
        annotate: which annotations an insertion renews: `full`, `attach_only` or `lazy` (`memsys.systems.segtree`).
        summary_tokens: most tokens of child annotations in one prompt; None for no limit.
    """

    def __init__(
        self, llm: LLM, embedder: Embedder, prompts: Prompts, annotate: str, summary_tokens: int | None
    ) -> None:
        if summary_tokens is not None and summary_tokens < 2:
            raise ValueError(f"summary_tokens must be at least 2, or None for no limit, found {summary_tokens}")
        self._llm, self.embedder, self._prompts = llm, embedder, prompts
        self._mode, self._limit = one_of("annotate", annotate, ANNOTATE), summary_tokens
        self.units: list[Unit] = []
        self.parents: list[int] = []
        self.children: list[list[int]] = []
        self.levels: list[int] = []
        self.starts: list[int] = []
        """Number of the first unit below each node, counted from 0."""
        self.ends: list[int] = []
        self.vectors = Vectors()
        self._texts: list[str] = []
        self._stale: set[int] = set()
        self._shown: dict[int, _Renewed] = {}
        self._renewed: dict[int, _Renewed] = {}
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self.parents)

    def add_leaf(self, unit: Unit, vector: np.ndarray) -> int:
        """A new leaf without a parent; what `refresh` has shown so far is dropped."""
        self._shown = {}
        self.units.append(unit)
        return self._add([], 0, len(self.units) - 1, len(self.units) - 1, unit.text, vector)

    def wrap(self, child: int) -> int:
        """A new node above a node that has no parent; it copies annotation and vector."""
        vector = self.vectors.matrix[child]
        level, start, end = self.levels[child] + 1, self.starts[child], self.ends[child]
        self.parents[child] = node = self._add([child], level, start, end, self._texts[child], vector)
        return node

    def attach(self, parent: int, child: int) -> None:
        """Put a node as last child under another and widen the intervals above it."""
        self.children[parent].append(child)
        self.parents[child] = parent
        while parent >= 0:
            self.starts[parent] = min(self.starts[parent], self.starts[child])
            self.ends[parent] = max(self.ends[parent], self.ends[child])
            parent = self.parents[parent]

    def ancestors(self, node: int) -> list[int]:
        """The nodes above, from parent to root."""
        found = []
        while (node := self.parents[node]) >= 0:
            found.append(node)
        return found

    def update(self, path: Sequence[int]) -> None:
        """Renew the annotations that the mode wants renewed: `path` is the node that received a leaf, then its ancestors."""
        changed: list[int] = []
        for place, node in enumerate(path):
            (first, *others) = self.children[node]
            if not others:
                text, stale = self._texts[first], first in self._stale
            elif self._mode == "lazy":
                text, stale = self._cut_off(self._texts[child] for child in self.children[node]), True
            elif self._mode == "full" or place == 0:
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
            self.vectors.set(node, vector)
        for node in path:
            if len(self.children[node]) == 1:
                self.vectors.set(node, self.vectors.matrix[self.children[node][0]])

    def refresh(self) -> None:
        """Show every annotation as the summary of its children as they are shown, until the next leaf comes.

        The tree itself stays as it is. An annotation whose children read as they did at an earlier refresh is not asked for again.
        """
        self._shown = {}
        due: defaultdict[int, set[int]] = defaultdict(set)
        for node in self._stale:
            due[self.levels[node]].add(node)
        while due:
            nodes = sorted(due.pop(min(due)))
            self._renew([node for node in nodes if len(self.children[node]) > 1])
            for node in nodes:
                if len(self.children[node]) == 1 and (shown := self._shown.get(self.children[node][0])) is not None:
                    self._shown[node] = shown
                if node in self._shown and self.parents[node] >= 0:
                    due[self.levels[node] + 1].add(self.parents[node])

    def text(self, node: int) -> str:
        """The annotation as it is shown now; a leaf's is its unit's text."""
        return self._shown[node].text if node in self._shown else self._texts[node]

    def vector(self, node: int) -> np.ndarray:
        """Unit vector of the annotation as it is shown now, float32 [d]."""
        vector: np.ndarray = self._shown[node].vector if node in self._shown else self.vectors.matrix[node]
        return vector

    def similarities(self, query: np.ndarray) -> np.ndarray:
        """Cosine of the query with every annotation as it is shown now, float64 [n], rounded to six decimals."""
        found = self.vectors.similarities(query).astype(np.float64)
        if self._shown:
            found[list(self._shown)] = np.stack([shown.vector for shown in self._shown.values()]) @ query
        return np.round(found, 6)

    def described(self, node: int) -> str:
        """The annotation as a compatibility prompt shows it, with level, number of units and time."""
        count = self.ends[node] - self.starts[node] + 1
        return f"(level {self.levels[node]}; {count} unit{'s' * (count > 1)}; {self.time(node) or 'time unknown'}) {self._texts[node]}"

    def time(self, node: int) -> str:
        """The times of the first and the last unit, or the one time that they share."""
        first, last = (self.units[place].time_text for place in (self.starts[node], self.ends[node]))
        return first if first == last else " – ".join(filter(None, (first, last)))

    def sources(self, node: int) -> tuple[str, ...]:
        """Turn ids of all units below, in stream order."""
        found, todo = [], [node]
        while todo:
            node = todo.pop()
            todo.extend(self.children[node])
            if not self.levels[node]:
                found.append(self.starts[node])
        return union(self.units[place].turn_ids for place in sorted(found))

    def id(self, node: int) -> str:
        return f"node-{node}" if self.levels[node] else self.units[self.starts[node]].id

    def kind(self, node: int) -> str:
        """`leaf`, `chain` (a single child, whose annotation it repeats) or `summary`."""
        return ("leaf", "chain", "summary")[min(2, len(self.children[node]))]

    def item(self, node: int, score: float) -> Item:
        """The node as a recalled item."""
        text = dated(self.text(node), self.time(node))
        return Item(self.id(node), text, score, self.sources(node), self.kind(node), self.levels[node])

    def views(self, collapse_chains: bool = False) -> Iterator[NodeView]:
        """All nodes as they are shown now, or all but those with a single child."""
        for node, parent in self._edges(collapse_chains):
            yield NodeView(
                id=self.id(node),
                parents=(self.id(parent),) if parent >= 0 else (),
                level=self.levels[node],
                kind=self.kind(node),
                text=self.text(node),
                vector=self.vector(node),
                sources=self.sources(node),
                start=self.units[self.starts[node]].time,
                end=self.units[self.ends[node]].time,
            )

    def report(self) -> dict[str, Any]:
        """Shape of the tree (as in the paper's Table 5) with chains and without, and how annotating went."""
        rate = self._counts["annotation_fallbacks"] / max(1, self._counts["annotations"])
        return {
            "leaves": len(self.units),
            **_shape(self._edges(False)),
            "without_chains": _shape(self._edges(True)),
            **self._counts,
            "annotation_fallback_rate": round(rate, 4),
        }

    def _add(self, children: list[int], level: int, start: int, end: int, text: str, vector: np.ndarray) -> int:
        self.parents.append(-1)
        self.children.append(children)
        self.levels.append(level)
        self.starts.append(start)
        self.ends.append(end)
        self._texts.append(text)
        return self.vectors.add(vector)

    def _renew(self, nodes: Sequence[int]) -> None:
        """Summaries for nodes of one level as `_shown` entries, where they differ from what stands in the tree."""
        parts = {node: tuple(map(self._part, self.children[node])) for node in nodes}
        known = self._renewed
        asked = [node for node in nodes if node not in known or known[node].parts != parts[node]]
        if asked:
            texts = self._folded([parts[node] for node in asked])
            self._counts["renewed"] += len(asked)
            for node, text, vector in zip(asked, texts, self.embedder.embed(texts), strict=True):
                known[node] = _Renewed(parts[node], text, vector)
        self._shown.update((node, known[node]) for node in nodes if known[node].text != self._texts[node])

    def _folded(self, lists: Sequence[Sequence[Option]]) -> list[str]:
        """One summary for each list of parts.

        A list longer than `summary_tokens` is taken from its first parts to its last, several prompts one after the other, each led by
        the note that the one before it gave: the annotation that stands in the tree is out of date and cannot lead.
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
        """The parts; where they do not fit one prompt, each cut so that it fits beside a lead."""
        if self._limit is None or self._fitting(parts) == len(parts):
            return list(parts)
        return [Option(part.label, truncate(part.text, self._limit - self._limit // 2)) for part in parts]

    def _fitting(self, parts: Sequence[Option]) -> int:
        """How many of the first parts one prompt takes, at least one."""
        if self._limit is None:
            return len(parts)
        sizes = itertools.accumulate(max(1, count_tokens(part.text)) for part in parts)
        return max(1, sum(size <= self._limit for size in sizes))

    def _lead(self, note: str) -> Option:
        assert self._limit is not None
        return Option("the note so far, for what came before", truncate(note, self._limit // 2))

    def _capped(self, count: int) -> None:
        self._counts["annotations_capped"] += count
        meter.note("segtree.annotate_capped", count)

    def _summaries(self, prompts: Sequence[Sequence[Option]]) -> list[str]:
        """One summary for each list of parts; a reply without text is replaced by the parts, cut off."""
        prompt = self._prompts["segtree/annotate"]
        values = ask_all(self._llm, [(prompt, {"texts": parts}) for parts in prompts])
        self._counts["annotations"] += len(values)
        for place, value in enumerate(values):
            if isinstance(value, ParseFailure):
                self._counts["annotation_fallbacks"] += 1
                meter.note("segtree.annotate_fallback")
                values[place] = self._cut_off(part.text for part in prompts[place])
        return values

    def _parts(self, node: int) -> list[Option]:
        """The children as the annotation prompt shows them, capped at `summary_tokens`: the latest that fit, led by the note so far."""
        children = self.children[node]
        if self._limit is None:
            return [self._part(child) for child in children]
        latest = self._latest(children, self._limit)
        if len(latest) == len(children):
            return [self._part(child) for child in children]
        self._capped(1)
        lead = self._lead(self._texts[node])
        left = self._limit - count_tokens(lead.text)
        parts = [self._part(child) for child in self._latest(children, left)]
        last = parts or [Option(self._label(children[-1]), truncate(self.text(children[-1]), left))]
        return [lead, *last]

    def _latest(self, children: Sequence[int], budget: int) -> list[int]:
        kept: list[int] = []
        for child in reversed(children):
            budget -= max(1, count_tokens(self.text(child)))
            if budget < 0:
                break
            kept.append(child)
        return kept[::-1]

    def _part(self, child: int) -> Option:
        return Option(self._label(child), self.text(child))

    def _label(self, child: int) -> str:
        return self.time(child) or "time unknown"

    def _cut_off(self, texts: Iterable[str]) -> str:
        """Texts one after the other, cut after as many tokens as a summary may have."""
        limit = left = self._prompts["segtree/annotate"].max_tokens
        kept: list[str] = []
        for text in texts:
            kept.append(text)
            left -= max(1, count_tokens(text))
            if left <= 0:
                break
        return truncate("\n".join(kept), limit)

    def _edges(self, collapse_chains: bool) -> list[tuple[int, int]]:
        """(node, its parent or -1), in order of creation; without chains the parent is the nearest node that is kept."""
        kept = [not collapse_chains or len(children) != 1 for children in self.children]
        edges = []
        for node in range(len(self)):
            parent = self.parents[node]
            while parent >= 0 and not kept[parent]:
                parent = self.parents[parent]
            if kept[node]:
                edges.append((node, parent))
        return edges


def recall(
    tree: AnnotatedTree,
    question: Question,
    *,
    k: int,
    alpha: float,
    horizon: int,
    policy: str,
    leaf_only: bool,
    neg: str,
    sink: str,
    dedup: bool,
    order: str,
) -> Recall:
    """The `k` nodes with the highest propagated relevance to the question (Algorithm 2); each item's score is its s-tilde."""
    if not len(tree):
        return Recall(())
    query = tree.embedder.embed([question.text], query=True)[0]
    scores = propagated(
        tree.similarities(query), tree.parents, policy=policy, alpha=alpha, horizon=horizon, neg=neg, sink=sink
    )
    chosen: dict[Any, int] = {}
    for node in map(int, ranking(scores, tree.starts, tree.levels)):
        if len(chosen) == k:
            break
        if not leaf_only or tree.levels[node] == 0:
            chosen.setdefault((tree.starts[node], tree.ends[node], tree.text(node)) if dedup else node, node)
    nodes = list(chosen.values())
    if order == "chronological":
        nodes.sort(key=lambda node: tree.starts[node])
    return Recall(tuple(tree.item(node, float(scores[node])) for node in nodes))


def check_read_settings(memory: Any) -> None:
    """Refuse settings of a memory with `READ_KNOBS` that a read would trip over.

    Raises:
        ValueError: an unknown choice, or a number out of range.
    """
    if memory.k < 1:
        raise ValueError(f"k must be at least 1, found {memory.k}")
    one_of("order", memory.order, ORDERS)
    knobs = {name: getattr(memory, name) for name in ("policy", "alpha", "horizon", "neg", "sink")}
    propagated(np.zeros(0), (), **knobs)


def _shape(edges: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Nodes, leaf depths (the root's is 0) and mean number of children of inner nodes."""
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
