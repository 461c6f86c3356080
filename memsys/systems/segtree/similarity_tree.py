"""The non-temporal control of SegTreeMem (App. F): units gathered into clusters of similar content, wherever they stand in time.

Annotation with its prompt, relevance, propagation and evidence budget are those of SegTreeMem (`annotated_tree`); only the place
of a new unit differs. Choices that the paper leaves open:

- `hierarchy`: how ancestors above the lowest clusters arise. `flat` puts one root over all clusters; `online` files each new cluster
  into a second level by the same rule and threshold, with one root on top. What is compared there are the clusters' means as they were
  when filed, that is their first units: if those followed the clusters, no second-level node could ever take in another cluster.
- `annotate`: `attach_only` summarises the cluster that received the unit and renews the root when memory is consolidated; places do
  not depend on annotations, so `full` (App. F to the letter) ends in the same annotations at a higher cost.
- A cluster of one unit copies it (0 calls), and nodes are scored by the vector of their annotation, not by the mean of their units.

The mean of the units' vectors is not normalised before it is compared; cosine does that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from data_loaders.schema import Question, Unit
from memsys.embed import Embedder
from memsys.interface import MemorySystem, NodeView, Recall, one_of
from memsys.llm.protocol import LLM
from memsys.prompts import Prompts
from memsys.systems.segtree.annotated_tree import READ_KNOBS, AnnotatedTree, check_read_settings, recall
from memsys.vectors import Vectors, normalised


class SimilarityTree(MemorySystem):
    """Recalls the `k` nodes with the highest propagated relevance from a tree of similarity clusters built online.

    A unit joins the cluster whose mean vector is most similar, when the cosine is at least `tau_nt` (the paper's .45), else it opens
    one; it never moves again. Ties go to the older cluster.

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
        tau_nt: float = 0.45,
        hierarchy: str = "flat",
        annotate: str = "attach_only",
        summary_tokens: int | None = 8000,
        policy: str = "none",
        alpha: float = 0.1,
        horizon: int = 2,
        neg: str = "clip0",
        sink: str = "drop",
        leaf_only: bool = False,
        dedup: bool = True,
        order: str = "chronological",
        collapse_chains: bool = False,
    ) -> None:
        self.embedder = embedder
        self.k, self.policy, self.alpha, self.horizon = k, policy, alpha, horizon
        self.neg, self.sink, self.leaf_only, self.dedup, self.order = neg, sink, leaf_only, dedup, order
        self.collapse_chains = collapse_chains
        check_read_settings(self)
        self._tree = AnnotatedTree(llm, embedder, prompts, annotate, summary_tokens)
        heights = {"flat": 1, "online": 2}[one_of("hierarchy", hierarchy, ("flat", "online"))]
        self._levels = [_Clusters(tau_nt) for _ in range(heights)]
        self._root: int | None = None

    def write(self, unit: Unit) -> None:
        vector = self.embedder.embed([unit.text])[0]
        leaf = branch = self._tree.add_leaf(unit, vector)
        # Each level either has a node that takes the branch, or the branch grows a node for that level.
        for level in self._levels:
            nearest = level.nearest(vector)
            if nearest is not None:
                self._tree.attach(nearest, branch)
                level.add(nearest, vector)
                break
            branch = self._tree.wrap(branch)
            level.add(branch, vector)
        else:
            self._to_root(branch)
        self._tree.update(self._tree.ancestors(leaf))

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
        return {**self._tree.report(), "clusters": len(self._levels[0])}

    def _to_root(self, branch: int) -> None:
        if self._root is None:
            self._root = self._tree.wrap(branch)
        else:
            self._tree.attach(self._root, branch)


class _Clusters:
    """The clusters of one level, each with the sum of its members' vectors and its direction."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._rows: dict[int, int] = {}
        self._nodes: list[int] = []
        self._sums: list[np.ndarray] = []
        self._directions = Vectors()

    def __len__(self) -> int:
        return len(self._nodes)

    def nearest(self, vector: np.ndarray) -> int | None:
        """The node whose mean has the highest cosine with the vector, if that reaches the threshold."""
        if not self._nodes:
            return None
        cosines = np.clip(self._directions.similarities(vector), -1.0, 1.0)
        row = int(np.argmax(cosines))
        return self._nodes[row] if cosines[row] >= self._threshold else None

    def add(self, node: int, vector: np.ndarray) -> None:
        """Take a member's vector into the mean of a node, which may be new."""
        if node not in self._rows:
            self._rows[node] = self._directions.add(vector)
            self._nodes.append(node)
            self._sums.append(np.zeros(len(vector), dtype=np.float64))
        row = self._rows[node]
        self._sums[row] += vector
        self._directions.set(row, normalised(self._sums[row]))
