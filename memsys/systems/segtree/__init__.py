"""SegTreeMem: a segment tree over the units of a conversation, grown at its right edge and read by propagation
("Temporal Order Matters for Agentic Memory", §4, Algorithms 1 and 2, App. E-G).

`reading` holds the tree with its annotations and the recall; the paper's non-temporal control (`similarity_tree`)
shares both.

The paper links code that we have not read: there is no `mode="code"`. Where the paper is silent or contradicts itself, a setting decides:

- `tau_c`: threshold of the cosine model; the paper gives none. Each NONE adds one level to the tree, and the published depths of 3-4
  imply three or four NONEs per conversation, so NONE must be rare. The value depends on the embedder and the annotations: 0.11 gives
  LoCoMo trees of 384 nodes and depth 3.5 with the offline engines and `attach_only` (published: 352 and 4.0). For any other embedder,
  calibrate it on a development conversation; otherwise the tree is flat or reaches `max_depth`. `report()` gives nodes, depth and
  `none_rate`.
- `max_depth`: at this depth, a NONE attaches the unit to the root (counted as `segtree.max_depth`). The paper has no limit (None).
- `pointwise`: the paper speaks of scoring each candidate and of a merge-or-continue decision. `labels` takes the lowest node answered
  with MERGE; `score` takes the highest score of at least `score_threshold`. All candidates are asked about, as the published call
  counts imply; `early_stop` ends at the first that is accepted.
- `annotate`: `full` is Algorithm 1: each insertion summarises the receiving node and all its ancestors. `attach_only` summarises the
  receiving node alone, which gives the published cost of about one call per unit. `lazy` makes no call during writes; a node's text is
  that of its children, truncated. `consolidate` provisionally summarises the annotations that are then outdated.
- A node with a single child copies its annotation and vector, without a call. The paper does not say so; its call counts imply it.
- `summary_tokens`: limit on the child annotations in one annotation prompt; the paper has none. During writes the prompt contains the
  latest children that fit, after the node's previous annotation, which represents the earlier ones. `consolidate` summarises all
  children in order, with several prompts; each begins with the summary before it. None turns the limit off.
- `neg`, `sink`: treatment of negative cosines and of nodes without an outgoing edge. Table 2's "normalized cosine similarity" is
  read as the share in Algorithm 2; with `shift`, as (1 + cosine) / 2 before that.
- `leaf_only`: whether only leaves are admissible. The default is all nodes, as in the paper's figures.
- `dedup`: of several nodes with the same interval and text (chains repeat their leaf), recall only the best-ranked. The paper is silent.
- `order`: order of the recalled items, by start of interval (`chronological`) or by score (`rank`). The paper is silent.
- `collapse_chains`: whether `nodes()` leaves out nodes with a single child. The paper reports a spread of leaf depths above zero, which
  its levelled tree excludes but this view allows. `report()` gives the statistics of both.

Ties in the placement of a unit go to the lower level; ties in the ranking of nodes go to the earlier start, then the lower level.
Cosines are rounded to six decimals before ranking, so that equal texts tie in any order of the additions. A unit is an exchange
(A-B pair): the paper says utterance, but its leaf counts match exchanges. Turns without a partner, which those counts leave out, are
units of their own here; the unit rule of SegTreeMem's tables drops them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from data_loaders.schema import Unit
from memsys.interface import Positive
from memsys.llm import meter
from memsys.llm.ask import ParseFailure, ask, ask_all
from memsys.llm.protocol import LLM
from memsys.prompts import Option, Prompts
from memsys.systems.segtree.reading import SegTreeReading, TreeBuild, TreeMemory
from memsys.vectors import Embedder, cosines


@dataclass(frozen=True)
class Placement(TreeBuild):
    """Settings of the placement of a new unit at a node of the right edge (Algorithm 1)."""

    compatibility: Literal["cosine", "pointwise", "batch"] = "batch"
    """The compatibility model."""
    tau_c: float = 0.11
    """Minimum cosine with which the model `cosine` attaches a unit."""
    max_depth: Positive | None = 8
    """Depth at which a unit goes to the root instead of opening a new one; None for no limit."""
    pointwise: Literal["labels", "score"] = "labels"
    """The reply of the model `pointwise`."""
    score_threshold: float = 0.5
    """Minimum score with which `pointwise="score"` attaches a unit."""
    early_stop: bool = False
    """Whether `pointwise` stops at the first node that it accepts."""


class SegTree(TreeMemory):
    """Recalls the `k` nodes with the highest propagated relevance from a segment tree built online (SegTreeMem).

    Every node covers consecutive units; the root covers all of them. A new unit becomes the rightmost leaf. Its parent is the node of
    the right edge that the compatibility model (`cosine`, `pointwise` or `batch`) chooses, or a new root when it chooses none. All
    leaves have the same depth. The defaults are the paper's representative setting (Table 4).
    """

    build: Placement

    def __init__(
        self,
        llm: LLM,
        embedder: Embedder,
        prompts: Prompts,
        build: Placement = Placement(),
        reading: SegTreeReading = SegTreeReading(),
    ) -> None:
        super().__init__(llm, embedder, prompts, build, reading)
        self._right_edge: list[int] = []
        """Nodes from the last leaf up to the root; a node's index here is its level."""
        self._placed: Counter[str] = Counter()

    def write(self, unit: Unit) -> None:
        """Insert the unit as the rightmost leaf (Algorithm 1); a chain of copies keeps all leaves at the same depth."""
        vector = self.embedder.embed([unit.text])[0]
        level = self._receiving_level(unit, vector)
        leaf = self._add_leaf(unit, vector)
        if level is None and self._right_edge:
            self._right_edge.append(self._wrap(self._right_edge[-1]))
            level = len(self._right_edge) - 1
        branch = [leaf]
        for _ in range(1, level or 0):
            branch.append(self._wrap(branch[-1]))
        if level is not None:
            self._attach(self._right_edge[level], branch[-1])
        self._right_edge[:level] = branch
        self._update(self._right_edge[len(branch) :])

    def report(self) -> dict[str, Any]:
        """Shape of the tree, number of placements, and shares of NONE and of replies that cannot be parsed."""
        return {
            **super().report(),
            **self._placed,
            "none_rate": round(self._placed["none"] / max(1, self._placed["decisions"]), 4),
            "fallback_rate": round(self._placed["fallbacks"] / max(1, self._placed["asked"]), 4),
        }

    def _receiving_level(self, unit: Unit, vector: np.ndarray) -> int | None:
        """Level of the node of the right edge that receives the unit; None calls for a new root (line 8 of Algorithm 1)."""
        candidates = self._right_edge[1:]
        if not candidates:
            return None
        chosen = MODELS[self.build.compatibility](self, unit, vector, candidates)
        self._placed["decisions"] += 1
        self._placed["none"] += chosen is None
        if chosen is not None:
            return chosen + 1
        if self.build.max_depth is None or len(candidates) < self.build.max_depth:
            return None
        self._placed["attached_to_root_at_max_depth"] += 1
        meter.note("segtree.max_depth")
        return len(candidates)

    def _cosine(self, unit: Unit, vector: np.ndarray, candidates: Sequence[int]) -> int | None:
        """Index of the candidate most similar to the unit; None below `tau_c`."""
        similarities = cosines(self._vectors.matrix[list(candidates)], vector)
        chosen = int(np.argmax(similarities))
        return chosen if similarities[chosen] >= self.build.tau_c else None

    def _pointwise(self, unit: Unit, vector: np.ndarray, candidates: Sequence[int]) -> int | None:
        """Index of the candidate that a model accepts, asked about one candidate at a time; None when it accepts none."""
        prompt = self.prompts["segtree/pointwise" if self.build.pointwise == "labels" else "segtree/score"]
        asks = [(prompt, self._fields(unit, [Option("MERGE", self._described(node))])) for node in candidates]
        if not self.build.early_stop:
            scores = [self._score(value) for value in ask_all(self.llm, asks)]
            best = int(np.argmax(scores))
            return best if scores[best] >= self.build.score_threshold else None
        for candidate, (prompt, fields) in enumerate(asks):
            if self._score(ask(self.llm, prompt, **fields)) >= self.build.score_threshold:
                return candidate
        return None

    def _score(self, value: Any) -> float:
        """Score of a pointwise reply: infinite for a label, minus infinite for a reply that cannot be parsed."""
        self._placed["asked"] += 1
        if isinstance(value, ParseFailure):
            self._placed["fallbacks"] += 1
            meter.note("segtree.pointwise_continue")
            return -np.inf
        if isinstance(value, str):
            return np.inf if value == "MERGE" else -np.inf
        return float(value["score"])

    def _batch(self, unit: Unit, vector: np.ndarray, candidates: Sequence[int]) -> int | None:
        """Index of the candidate that a model chooses among all in one call; None when it starts a new segment."""
        labels = [f"MERGE_{number}" for number in range(1, len(candidates) + 1)]
        options = [Option(label, self._described(node)) for label, node in zip(labels, candidates, strict=True)]
        fields = self._fields(unit, options)
        value = ask(self.llm, self.prompts["segtree/batch"], retries=1, labels=(*labels, "SPLIT"), **fields)
        self._placed["asked"] += 1
        if isinstance(value, ParseFailure):
            self._placed["fallbacks"] += 1
            meter.note("segtree.batch_split")
        return labels.index(value) if value in labels else None

    def _fields(self, unit: Unit, options: Sequence[Option]) -> dict[str, Any]:
        """Fields of a compatibility prompt about the unit and its possible parents."""
        same_session = self._units[-1].session_id == unit.session_id
        return {
            "query": unit.text,
            "options": options,
            "time": unit.time_text or "unknown",
            "session": "same session as the unit before" if same_session else "first unit of a new session",
        }


Model = Callable[[SegTree, Unit, np.ndarray, Sequence[int]], "int | None"]
MODELS: Mapping[str, Model] = {"cosine": SegTree._cosine, "pointwise": SegTree._pointwise, "batch": SegTree._batch}
