"""Reading an annotated tree (SegTreeMem Algorithm 2, §4.3): relevance propagated along the edges, and the selection of nodes.

A tree is an array of parent indices, so one step is a gather (top-down) or a scatter-add (bottom-up). This applies the paper's
propagation matrix (binary weights, column-normalised, Eq. 3-4) without building it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge

from data_loaders.schema import Question
from memsys.embed import Embedder
from memsys.interface import MemorySystem, NodeView, Recall
from memsys.llm.protocol import LLM
from memsys.prompts import Prompts
from memsys.settings import NotNegative, Positive, Settings
from memsys.systems.segtree.annotated_tree import AnnotatedTree


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
    """Settings of a read; `memsys.systems.segtree` explains the choices that the paper leaves open.

    Raises:
        ValueError: an unknown choice, or a number out of range.
    """

    k: Positive = 10
    """Number of nodes to recall."""
    policy: Literal["none", "top_down", "bottom_up"] = "top_down"
    """Direction of propagation: a node divides its score equally among its children (`top_down`), or passes it to its parent."""
    alpha: float = 0.1
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

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.alpha < 1:
            raise ValueError(f"alpha must be at least 0 and below 1, found {self.alpha}")


class TreeMemory(MemorySystem):
    """Recalls the `k` nodes of an annotated tree with the highest propagated relevance; a subclass places the units."""

    READ_KNOBS: ClassVar = tuple(setting.name for setting in fields(SegTreeReading))
    PROMPTS: ClassVar = ("segtree",)
    UNIT: ClassVar = {"rule": "ab_pair", "on_unpaired": "keep_single"}

    def __init__(
        self, llm: LLM, embedder: Embedder, prompts: Prompts, build: TreeBuild, reading: SegTreeReading
    ) -> None:
        self.llm, self.embedder, self.prompts, self.reading = llm, embedder, prompts, reading
        self.build = build
        self._tree = AnnotatedTree(llm, embedder, prompts, build.annotate, build.summary_tokens)

    def consolidate(self) -> None:
        """Summarise outdated annotations; the results hold until the next unit."""
        self._tree.refresh()

    def read(self, question: Question) -> Recall:
        """Recall by Algorithm 2; an item's score is its node's propagated relevance, s-tilde in the paper."""
        tree, reading = self._tree, self.reading
        if not len(tree):
            return Recall(())
        query = self.embedder.embed([question.text], query=True)[0]
        scores = propagated(tree.similarities(query), tree.parents, reading)
        chosen: dict[Hashable, int] = {}
        for node in map(int, ranking(scores, tree.starts, tree.levels)):
            if len(chosen) == reading.k:
                break
            if reading.leaf_only and tree.levels[node] > 0:
                continue
            chosen.setdefault((tree.starts[node], tree.ends[node], tree.text(node)) if reading.dedup else node, node)
        nodes = list(chosen.values())
        if reading.order == "chronological":
            nodes.sort(key=lambda node: tree.starts[node])
        return Recall(tuple(tree.item(node, float(scores[node])) for node in nodes))

    def nodes(self) -> Iterator[NodeView]:
        return self._tree.views(self.build.collapse_chains)

    @property
    def held(self) -> int:
        return len(self._tree)


def propagated(relevance: np.ndarray, parents: Sequence[int] | np.ndarray, reading: SegTreeReading) -> np.ndarray:
    """Compute the final score of every node, float64 [n]: its relevance plus the scores that reach it in up to `horizon` steps.

    Args:
        relevance: cosine of the query with every node, [n].
        parents: index of every node's parent, [n]; -1 for a root.
        reading: `policy`, `alpha`, `horizon`, `neg` and `sink` are used.
    """
    scores = total = _shares(np.asarray(relevance, dtype=np.float64), reading.neg)
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


def _shares(relevance: np.ndarray, neg: str) -> np.ndarray:
    """The relevance of every node, at least 0, divided by its sum; uniform where all are 0."""
    if neg == "clip0":
        weights = np.maximum(relevance, 0.0)
    else:
        weights = (1.0 + relevance) / 2.0 if neg == "shift" else np.exp(relevance - relevance.max(initial=0.0))
    total = weights.sum()
    return weights / total if total > 0 else np.full(len(weights), 1.0 / max(1, len(weights)))


def ranking(scores: np.ndarray, starts: Sequence[int], levels: Sequence[int]) -> np.ndarray:
    """Sort node indices by score, best first; ties go to the earlier start, then the lower level, then the lower index."""
    order: np.ndarray = np.lexsort((np.asarray(levels), np.asarray(starts), -scores))
    return order
