"""SegTreeMem: a segment tree over the units of a conversation, grown at its right edge and read by propagation
("Temporal Order Matters for Agentic Memory", §4, Algorithms 1 and 2, App. E-G). Annotating and reading,
shared with the paper's non-temporal control, are in `memsys.systems.segtree.annotated_tree`.

No code is public, so there is no `mode="code"`. What the paper leaves open or contradicts is a setting:

- `tau_c` (the paper gives no threshold for the cosine model). Each NONE adds one level, and the published depths of 3-4 mean
  three or four NONEs per conversation, so it must fire rarely. The value depends on embedder and annotations: .11 gives LoCoMo trees of
  384 nodes and depth 3.5 with the offline engines and `attach_only` (published: 352 and 4.0). Calibrate it on a development
  conversation for any other embedder, else the tree is flat or hits `max_depth`; `report()` gives nodes, depth and `none_rate`.
- `max_depth` (none in the paper): at this depth a NONE attaches to the root instead, counted as `segtree.max_depth`; None turns it off.
- `pointwise`: the paper speaks of scoring each candidate and of merge-or-continue. `labels` takes the lowest MERGE, `score` the
  highest score of at least `score_threshold`. One call for every candidate, as the published call counts imply, unless `early_stop`.
- `annotate`: `full` is Algorithm 1 (the receiving node and all its ancestors are summarised anew at each insertion); `attach_only`
  summarises the receiving node alone, which gives the published cost of about one call a unit; `lazy` makes no call while writing and
  a node stands as its cut-off children. The annotations that are then out of date are renewed by `consolidate`, provisionally.
- A node with a single child copies its annotation and vector: 0 calls (the paper does not say; its call counts imply it).
- `summary_tokens` caps what one annotation prompt shows (no cap in the paper): while units come in, the latest children that fit, led by
  the node's previous annotation for the earlier ones; when `consolidate` renews what is out of date, all children from the first to the
  last in several prompts, each led by the note before. None turns it off.
- `neg`, `sink`: negative cosines, and nodes that can pass nothing on (`memsys.systems.segtree.propagation`).
- `leaf_only`: the admissible set is all nodes, as the paper's figures show, or the leaves.
- `dedup`: of nodes with the same interval and text (chains repeat their leaf) the best-ranked is recalled; the paper is silent.
- `order`: the reader sees the evidence by start of interval (`chronological`) or by score (`rank`); the paper is silent.
- `collapse_chains`: `nodes()` leaves out single-child nodes. The paper's non-zero spread of leaf depths cannot arise under its own
  levelled invariant but does in this view; `report()` gives the statistics of both.

Ties go to the lower level when a unit is placed, and to the earlier start, then the lower level, when nodes are ranked. Cosines are
rounded to six decimals before ranking, so that equal texts tie whatever order the processor adds in. A unit is an exchange (A-B pair):
the paper says utterance, its leaf counts say exchange.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from data_loaders.schema import Question, Unit
from memsys.embed import Embedder
from memsys.interface import MemorySystem, NodeView, Recall, one_of
from memsys.llm import meter
from memsys.llm.ask import ask, ask_all
from memsys.llm.parsing import ParseFailure
from memsys.llm.protocol import LLM
from memsys.prompts import Option, Prompts
from memsys.systems.segtree.annotated_tree import READ_KNOBS, AnnotatedTree, check_read_settings, recall


class SegTree(MemorySystem):
    """Recalls the `k` nodes with the highest propagated relevance from a segment tree built online (SegTreeMem).

    Every node covers consecutive units; the root covers all. A new unit becomes the rightmost leaf, under the node of the right edge
    with which the compatibility model (`cosine`, `pointwise` or `batch`) finds it to continue, or under a new root when with none.
    All leaves keep the same depth. The defaults are the paper's representative setting (Table 4).

    Raises:
        ValueError: a setting that is none of the known choices, or out of range.
    """

    READ_KNOBS: ClassVar = READ_KNOBS
    PROMPTS: ClassVar = ("segtree",)
    UNIT: ClassVar = {"rule": "ab_pair"}

    def __init__(
        self,
        llm: LLM,
        embedder: Embedder,
        prompts: Prompts,
        k: int = 10,
        compatibility: str = "batch",
        tau_c: float = 0.11,
        max_depth: int | None = 8,
        pointwise: str = "labels",
        score_threshold: float = 0.5,
        early_stop: bool = False,
        annotate: str = "full",
        summary_tokens: int | None = 8000,
        policy: str = "top_down",
        alpha: float = 0.1,
        horizon: int = 2,
        neg: str = "clip0",
        sink: str = "drop",
        leaf_only: bool = False,
        dedup: bool = True,
        order: str = "chronological",
        collapse_chains: bool = False,
    ) -> None:
        self.llm, self.embedder, self.prompts = llm, embedder, prompts
        self.tau_c, self.max_depth, self.early_stop = tau_c, max_depth, early_stop
        self.score_threshold, self.collapse_chains = score_threshold, collapse_chains
        self.k, self.policy, self.alpha, self.horizon = k, policy, alpha, horizon
        self.neg, self.sink, self.leaf_only, self.dedup, self.order = neg, sink, leaf_only, dedup, order
        check_read_settings(self)
        if max_depth is not None and max_depth < 1:
            raise ValueError(f"max_depth must be at least 1, or None for no limit, found {max_depth}")
        self.compatibility = one_of("compatibility", compatibility, tuple(MODELS))
        self.pointwise = one_of("pointwise", pointwise, ("labels", "score"))
        self._tree = AnnotatedTree(llm, embedder, prompts, annotate, summary_tokens)
        self._frontier: list[int] = []
        self._counts: Counter[str] = Counter()

    def write(self, unit: Unit) -> None:
        vector = self.embedder.embed([unit.text])[0]
        height = self._height(unit, vector)
        leaf = self._tree.add_leaf(unit, vector)
        if height is None and self._frontier:
            self._frontier.append(self._tree.wrap(self._frontier[-1]))
            height = len(self._frontier) - 1
        branch = [leaf]
        for _ in range(1, height or 0):
            branch.append(self._tree.wrap(branch[-1]))
        if height is not None:
            self._tree.attach(self._frontier[height], branch[-1])
        self._frontier[:height] = branch
        self._tree.update(self._frontier[len(branch) :])

    def consolidate(self) -> None:
        self._tree.refresh()

    def read(self, question: Question) -> Recall:
        return recall(self._tree, question, **{knob: getattr(self, knob) for knob in READ_KNOBS})

    def nodes(self) -> Iterator[NodeView]:
        return self._tree.views(self.collapse_chains)

    @property
    def held(self) -> int:
        return len(self._tree)

    def report(self) -> dict[str, Any]:
        decided = max(1, self._counts["decisions"])
        return {
            **self._tree.report(),
            **self._counts,
            "none_rate": round(self._counts["none"] / decided, 4),
            "fallback_rate": round(self._counts["fallbacks"] / max(1, self._counts["asked"]), 4),
        }

    def _height(self, unit: Unit, vector: np.ndarray) -> int | None:
        """Place on the frontier of the node that receives the unit; None asks for a new root (line 8 of Algorithm 1)."""
        candidates = self._frontier[1:]
        if not candidates:
            return None
        chosen = MODELS[self.compatibility](self, unit, vector, candidates)
        self._counts["decisions"] += 1
        self._counts["none"] += chosen is None
        if chosen is not None:
            return chosen + 1
        if self.max_depth is None or len(candidates) < self.max_depth:
            return None
        self._counts["attached_to_root_at_max_depth"] += 1
        meter.note("segtree.max_depth")
        return len(candidates)

    def _cosine(self, unit: Unit, vector: np.ndarray, candidates: Sequence[int]) -> int | None:
        similarities = self._tree.vectors.matrix[list(candidates)] @ vector
        chosen = int(np.argmax(similarities))
        return chosen if similarities[chosen] >= self.tau_c else None

    def _pointwise(self, unit: Unit, vector: np.ndarray, candidates: Sequence[int]) -> int | None:
        prompt = self.prompts["segtree/pointwise" if self.pointwise == "labels" else "segtree/score"]
        asks = [(prompt, self._asked(unit, [Option("MERGE", self._tree.described(node))])) for node in candidates]
        if not self.early_stop:
            scores = [self._score(value) for value in ask_all(self.llm, asks)]
            best = int(np.argmax(scores))
            return best if scores[best] >= self.score_threshold else None
        for candidate, (prompt, fields) in enumerate(asks):
            if self._score(ask(self.llm, prompt, **fields)) >= self.score_threshold:
                return candidate
        return None

    def _score(self, value: Any) -> float:
        self._counts["asked"] += 1
        if isinstance(value, ParseFailure):
            self._counts["fallbacks"] += 1
            meter.note("segtree.pointwise_continue")
            return -np.inf
        if isinstance(value, str):
            return np.inf if value == "MERGE" else -np.inf
        return float(value["score"])

    def _batch(self, unit: Unit, vector: np.ndarray, candidates: Sequence[int]) -> int | None:
        labels = [f"MERGE_{number}" for number in range(1, len(candidates) + 1)]
        options = [Option(label, self._tree.described(node)) for label, node in zip(labels, candidates, strict=True)]
        fields = self._asked(unit, options)
        value = ask(self.llm, self.prompts["segtree/batch"], retries=1, labels=(*labels, "SPLIT"), **fields)
        self._counts["asked"] += 1
        if isinstance(value, ParseFailure):
            self._counts["fallbacks"] += 1
            meter.note("segtree.batch_split")
        return labels.index(value) if value in labels else None

    def _asked(self, unit: Unit, options: Sequence[Option]) -> dict[str, Any]:
        same = self._tree.units[-1].session_id == unit.session_id
        return {
            "query": unit.text,
            "options": options,
            "time": unit.time_text or "unknown",
            "session": "same session as the unit before" if same else "first unit of a new session",
        }


Model = Callable[[SegTree, Unit, np.ndarray, Sequence[int]], "int | None"]
MODELS: Mapping[str, Model] = {"cosine": SegTree._cosine, "pointwise": SegTree._pointwise, "batch": SegTree._batch}
