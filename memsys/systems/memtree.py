"""MemTree: a tree of topics into which each new unit is inserted from the root down (Rezazadeh et al., 2024, §3 and App. A.1).

From the root, a unit moves to the most similar child as long as the similarity reaches a threshold, which rises with depth. If it
reaches a leaf, the leaf becomes a parent of both. Every parent on the path is then summarised again, by one call each, submitted
together.

There is no released code, so there is no `mode`. Where the paper is silent or contradicts itself, the first choice is ours and the
others are settings:

- The threshold is `base · exp(rate · depth / max_depth)` (A.1.3). The formula of §3.1, `base · exp(rate · depth)`, exceeds 1 at depth 2
  and could never give the depth of 13 that the paper reports. A similarity equal to it is enough (Algorithm 1; §3.1: "exceeds").
- `max_depth` is the depth of the deepest node before the insertion, at least 1.
- A unit that reaches a leaf ends its descent there, and the new parent has two children (§3.1). Algorithm 1 as printed goes on and
  compares the unit with the copy of the leaf that it has just made.
- The parent under which a unit is attached is summarised too ("all parent nodes along the traversal path", §3.1); Algorithm 1 skips it.
- "n" in the prompt is the number of children before the insertion; the paper calls it both children and descendants.
- The root has no text and is never summarised. Every parent's prompt contains the new content unchanged (Algorithm 1).
- The retrieval threshold is off, because the paper does not give its value. Items are taken in order of similarity, up to the first that
  would exceed the token limit; if the very first exceeds it, it is truncated (the paper does not say; RAPTOR stops in the same way).
- Recalled nodes begin with their dates, which the paper's nodes lack: Tables A.5-A.9 show summaries without a date, and leaves with the
  date of the article alone. `dates=False` recalls texts as they were written; the tables of MultiHop-RAG set it.
- The paper does not limit the length of summaries; 512 tokens is our safety limit, and replies that reach it are counted.
- If an aggregation is still empty after two retries, the node keeps its old summary and is marked as stale.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np

from data_loaders.schema import Question, Unit
from memsys.interface import Item, MemorySystem, NodeView, Positive, Recall, Settings, dated, period_text, unit_item
from memsys.llm import meter
from memsys.llm.ask import ParseFailure, ask_all
from memsys.llm.protocol import LLM
from memsys.prompts import Prompts
from memsys.tokens import count_tokens, first_within, truncate
from memsys.vectors import Embedder, Vectors, best, cosines, descent


@dataclass(slots=True)
class _Node:
    """A node of the tree; its index is its row in the matrix of vectors."""

    text: str
    parent: int | None
    """Index of the parent; None for a child of the root, which has neither text nor vector and is not stored as a node."""
    depth: int
    unit: Unit | None
    """The unit of a leaf; None for an inner node."""
    first: Unit
    """The earliest unit below the node."""
    last: Unit
    """The latest unit below the node."""
    sources: dict[str, None]
    leaves: int = 1
    """Number of leaves below the node."""
    height: int = 0
    children: list[int] = field(default_factory=list)
    stale: bool = False
    """True when the last summary failed and the old one was kept."""


@dataclass(frozen=True, slots=True)
class _Route:
    """The insertion path of a unit."""

    path: tuple[int, ...]
    """Indices of the nodes from the root's child down."""
    links: int
    """0: the unit becomes a child of the path's last node (or of the root). n: that last node, a leaf, becomes a chain of n parents."""


@dataclass(frozen=True)
class MemTreeSettings(Settings):
    """Settings of `MemTree`.

    Raises:
        ValueError: an unknown choice, a number below 1, or the rule `algorithm` with a threshold that does not rise with depth, with
                which an insertion may not end.
    """

    k: Positive | None = 10
    """Maximum number of items. In a traversal, the most similar of the visited nodes are kept; None keeps all."""
    max_tokens: Positive | None = 8192
    """Budget of the recalled texts (o200k tokens), None for no limit. The paper: 8192 with k = 10, MSC 1000 with k = 3."""
    retrieval: Literal["collapsed", "traversal"] = "collapsed"
    """`collapsed` compares all nodes; `traversal` descends level by level and keeps `width` nodes of each (App. A.3.5)."""
    theta_retrieve: float = -1.0
    """Minimum cosine of a collapsed recall; -1 is off."""
    width: Positive = 10
    """Number of nodes kept per level of a traversal; the paper's k of a traversal."""
    base: float = 0.4
    rate: float = 0.5
    """Parameters of the insertion threshold (A.1.3)."""
    threshold_law: Literal["normalised", "exp", "multiplicative"] = "normalised"
    """`normalised` (A.1.3), `exp` = base · exp(rate · depth) (§3.1), `multiplicative` = base · (1 + rate)^depth."""
    max_depth: Literal["dynamic"] | Positive = "dynamic"
    """`dynamic`, or a fixed number. It normalises the threshold and does not limit the tree."""
    expand_rule: Literal["text", "algorithm"] = "text"
    """`text` (§3.1), or `algorithm` (Algorithm 1 as printed), which makes chains above near-duplicates."""
    aggregate_final_parent: bool = True
    """Whether a unit attached as a new child causes a new summary of its parent."""
    n_mode: Literal["children", "leaves"] = "children"
    """The count of earlier entries in the prompt, `children` or `leaves` of the node."""
    dates: bool = True
    """Whether a recalled item begins with the time of its unit, or with those of the first and last unit below its node."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.expand_rule == "algorithm" and not (self.base > 0 and self.rate > 0):
            raise ValueError(f"expand_rule=algorithm needs base and rate above 0, found {self.base} and {self.rate}")


class MemTree(MemorySystem):
    """Recalls the `k` nodes of the tree, leaves and summaries, that are most similar to the question."""

    READ_KNOBS: ClassVar = ("k", "max_tokens", "retrieval", "theta_retrieve", "width", "dates")
    PROMPTS: ClassVar = ("memtree",)
    ENTRIES: ClassVar = "_nodes"
    HIDDEN_ROOT: ClassVar = True

    def __init__(
        self, llm: LLM, embedder: Embedder, prompts: Prompts, settings: MemTreeSettings = MemTreeSettings()
    ) -> None:
        self.llm, self.embedder, self.prompts, self.settings = llm, embedder, prompts, settings
        self._nodes: list[_Node] = []
        self._vectors = Vectors()
        self._top: list[int] = []
        """The root's children."""
        self._deepest = 0
        self._failures = 0

    def write(self, unit: Unit) -> None:
        """Insert the unit as a leaf and update the summaries on its path. The tree changes only after all calls have returned."""
        vector = self.embedder.embed([unit.text])[0]
        route = self._route(vector)
        summaries = self._summaries(route, unit.text)
        written = [place for place, summary in enumerate(summaries) if isinstance(summary, str)]
        vectors = self.embedder.embed([summaries[place] for place in written]) if written else ()
        parents = (*route.path, *(self._expand(route.path[-1], route.links) if route.links else ()))
        self._attach(unit, vector, parents)
        for place, summary_vector in zip(written, vectors, strict=True):
            self._nodes[parents[place]].text = summaries[place]
            self._vectors.matrix[parents[place]] = summary_vector
        for place, summary in enumerate(summaries):
            self._nodes[parents[place]].stale |= isinstance(summary, ParseFailure)

    def read(self, question: Question) -> Recall:
        if not self._nodes:
            return Recall(())
        similarities = self._vectors.similarities(self.embedder.embed([question.text], query=True)[0])
        if self.settings.retrieval == "traversal":
            chosen = descent(
                similarities, self._top, lambda index: self._nodes[index].children, self.settings.width, self.settings.k
            )
        else:
            ranked = best(similarities, len(similarities) if self.settings.k is None else self.settings.k)
            chosen = [index for index in ranked if similarities[index] >= self.settings.theta_retrieve]
        items = (self._node_item(index, float(similarities[index])) for index in chosen)
        return Recall(within_budget(items, self.settings.max_tokens))

    def nodes(self) -> Iterator[NodeView]:
        """Every node except the root; `level` is the height above the deepest leaf below the node."""
        for index, node in enumerate(self._nodes):
            parents = () if node.parent is None else (self._id(node.parent),)
            kind = "leaf" if node.unit else "summary"
            yield NodeView(
                self._id(index), parents, node.height, kind, node.text, self._vectors.matrix[index].copy(),
                tuple(node.sources), node.first.time, node.last.time,
            )  # fmt: skip

    def report(self) -> dict[str, Any]:
        """Node counts as in the paper's Table 5; depths are those of all nodes, with the root's children at depth 1."""
        inner = sum(node.unit is None for node in self._nodes)
        return {
            "nodes": len(self._nodes),
            "leaves": len(self._nodes) - inner,
            "inner": inner,
            "max_depth": self._deepest,
            "mean_depth": sum(node.depth for node in self._nodes) / max(1, len(self._nodes)),
            "branching": len(self._nodes) / (inner + 1),
            "stale": sum(node.stale for node in self._nodes),
            "failed_aggregations": self._failures,
        }

    def threshold(self, depth: int) -> float:
        """Minimum cosine at which a unit moves to a child of a node at `depth` (the root has depth 0) in the present tree."""
        if self.settings.threshold_law == "exp":
            return self.settings.base * math.exp(self.settings.rate * depth)
        if self.settings.threshold_law == "multiplicative":
            return self.settings.base * (1 + self.settings.rate) ** depth
        deepest = max(1, self._deepest) if self.settings.max_depth == "dynamic" else self.settings.max_depth
        return self.settings.base * math.exp(self.settings.rate * depth / deepest)

    def _route(self, vector: np.ndarray) -> _Route:
        """Descend from the root with a unit's vector."""
        path: list[int] = []
        children, similarity = self._top, 0.0
        while children:
            similarities = self._similarities(children, vector)
            nearest = int(np.argmax(similarities))
            similarity = float(similarities[nearest])
            if similarity < self.threshold(len(path)):
                return _Route(tuple(path), 0)
            path.append(children[nearest])
            children = self._nodes[path[-1]].children
        links = 1 if path else 0
        if self.settings.expand_rule == "algorithm":
            while links and similarity >= self.threshold(len(path) + links - 1):
                links += 1
        return _Route(tuple(path), links)

    def _similarities(self, children: list[int], vector: np.ndarray) -> np.ndarray:
        # Selecting rows copies them, which costs more than comparing all rows when the children are the majority of the nodes.
        if 2 * len(children) > len(self._nodes):
            return self._vectors.similarities(vector)[children]
        return cosines(self._vectors.matrix[children], vector)

    def _summaries(self, route: _Route, new: str) -> list[Any]:
        """The new summary, or a `ParseFailure`, of each parent of the new leaf from the top down, chains included."""
        targets = [*route.path, *route.path[-1:] * (route.links - 1)]
        if not self.settings.aggregate_final_parent and not (route.links and self.settings.expand_rule == "text"):
            targets = targets[:-1]
        prompt = self.prompts["memtree/aggregate"]
        asks = [(prompt, self._fields(self._nodes[target], new)) for target in targets]
        values = ask_all(self.llm, asks, retries=2, noted="memtree.kept_old_summary")
        self._failures += sum(isinstance(value, ParseFailure) for value in values)
        if capped := sum(isinstance(value, str) and count_tokens(value) >= prompt.max_tokens for value in values):
            meter.note("memtree.summary_at_limit", capped)
        return values

    def _fields(self, node: _Node, new: str) -> dict[str, Any]:
        # A leaf that is about to become a parent counts as one entry.
        n = (len(node.children) or 1) if self.settings.n_mode == "children" else node.leaves
        return {"existing": node.text, "new": new, "n": n, "texts": (node.text, new)}

    def _expand(self, leaf: int, links: int) -> list[int]:
        """Turn a leaf into a chain of `links` parents that ends with the leaf's copy; return the parents that this adds."""
        added = [leaf]
        for _ in range(links):
            node = self._nodes[added[-1]]
            added.append(self._add(node.first, self._vectors.matrix[leaf], added[-1]))
            node.unit = None
        return added[1:-1]

    def _attach(self, unit: Unit, vector: np.ndarray, parents: Sequence[int]) -> None:
        """Add the unit as a leaf under the last of `parents` and update the statistics of all of them."""
        self._add(unit, vector, parents[-1] if parents else None)
        for height, index in enumerate(reversed(parents), start=1):
            node = self._nodes[index]
            node.leaves += 1
            node.height = max(node.height, height)
            node.sources.update(dict.fromkeys(unit.turn_ids))
            node.first = unit if _earlier(unit, node.first) else node.first
            node.last = node.last if _earlier(unit, node.last) else unit

    def _add(self, unit: Unit, vector: np.ndarray, parent: int | None) -> int:
        """Add a leaf under `parent` (None is the root) and return its index."""
        index = self._vectors.add(vector)
        depth = 1 if parent is None else self._nodes[parent].depth + 1
        self._nodes.append(_Node(unit.text, parent, depth, unit, unit, unit, dict.fromkeys(unit.turn_ids)))
        (self._top if parent is None else self._nodes[parent].children).append(index)
        self._deepest = max(self._deepest, depth)
        return index

    def _node_item(self, index: int, score: float) -> Item:
        node = self._nodes[index]
        if node.unit is not None and self.settings.dates:
            return unit_item(node.unit, score)
        if node.unit is not None:
            return Item(node.unit.id, node.text, score, node.unit.turn_ids, "leaf")
        text = dated(node.text, period_text(node.first, node.last)) if self.settings.dates else node.text
        return Item(self._id(index), text, score, tuple(node.sources), "summary", node.height)

    def _id(self, index: int) -> str:
        unit = self._nodes[index].unit
        return f"node-{index}" if unit is None else unit.id


def _earlier(unit: Unit, other: Unit) -> bool:
    """Whether the unit's time is known to be earlier than the other's."""
    return unit.time is not None and other.time is not None and unit.time < other.time


def within_budget(items: Iterable[Item], budget: int | None) -> tuple[Item, ...]:
    """Take items until one would exceed the budget (o200k tokens); if the very first does, it is truncated to the budget."""
    found = tuple(items)
    if budget is None:
        return found
    kept = tuple(first_within(found, budget, lambda item: count_tokens(item.text)))
    return kept or tuple(replace(item, text=truncate(item.text, budget)) for item in found[:1])
