"""The non-temporal control of SegTreeMem (App. F): units are clustered by content, regardless of their time.

Annotations and their prompt, relevance, propagation and evidence budget are those of SegTreeMem (`reading`); only
the placement of a new unit differs. Choices that the paper leaves open:

- `hierarchy`: the levels above the clusters. `flat` puts one root over all clusters; `online` assigns each new cluster to a
  second-level node by the same rule and threshold, with one root on top. That comparison uses a cluster's mean at the time of its
  assignment, which is its first unit. If the means followed the clusters, no second-level node could ever receive another cluster.
- `annotate`: `attach_only` summarises the cluster that received the unit, and the root in `consolidate`. Placement does not depend on
  annotations, so `full` (App. F as written) ends with the same ones at a higher cost, as long as the root's children fit into one prompt.
- A cluster of one unit copies its text and vector, without a call. Nodes are scored by the vector of their annotation, not by the mean
  of their units.

The mean of the units' vectors is not normalised before the comparison; the cosine does that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from data_loaders.schema import Unit
from memsys.llm.protocol import LLM
from memsys.prompts import Prompts
from memsys.systems.segtree.reading import SegTreeReading, TreeBuild, TreeMemory
from memsys.vectors import Embedder, Vectors, normalised


@dataclass(frozen=True)
class SimilarityPlacement(TreeBuild):
    """Settings of the choice of a cluster for a new unit."""

    annotate: Literal["full", "attach_only", "lazy"] = "attach_only"
    tau_nt: float = 0.45
    """Minimum cosine with which a unit joins a cluster."""
    hierarchy: Literal["flat", "online"] = "flat"
    """Levels above the clusters (see the module's description)."""


class SimilarityTree(TreeMemory):
    """Recalls the `k` nodes with the highest propagated relevance from a tree of similarity clusters built online.

    A unit joins the cluster with the most similar mean vector when the cosine is at least `tau_nt` (0.45 in the paper); otherwise it
    opens a cluster. It never moves again. Ties go to the older cluster.
    """

    build: SimilarityPlacement

    def __init__(
        self,
        llm: LLM,
        embedder: Embedder,
        prompts: Prompts,
        build: SimilarityPlacement = SimilarityPlacement(),
        reading: SegTreeReading = SegTreeReading(policy="none"),
    ) -> None:
        super().__init__(llm, embedder, prompts, build, reading)
        self._hierarchy = [_Clusters(build.tau_nt) for _ in range(2 if build.hierarchy == "online" else 1)]
        self._root: int | None = None

    def write(self, unit: Unit) -> None:
        """Insert the unit into its cluster, or into a new one."""
        vector = self.embedder.embed([unit.text])[0]
        leaf = branch = self._add_leaf(unit, vector)
        # At each level, either a node receives the branch, or the branch gets a new node of that level on top.
        for level in self._hierarchy:
            nearest = level.nearest(vector)
            if nearest is not None:
                self._attach(nearest, branch)
                level.add(nearest, vector)
                break
            branch = self._wrap(branch)
            level.add(branch, vector)
        else:
            if self._root is None:
                self._root = self._wrap(branch)
            else:
                self._attach(self._root, branch)
        self._update(self._ancestors(leaf))

    def report(self) -> dict[str, Any]:
        """Shape of the tree, counts of annotations, and number of clusters."""
        return {**super().report(), "clusters": len(self._hierarchy[0])}


class _Clusters:
    """The clusters of one level; each has the sum of its members' vectors, and that sum's direction as a unit vector."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._rows: dict[int, int] = {}
        """Row of each node in `_sums` and `_directions`, in order of the rows."""
        self._sums: list[np.ndarray] = []
        self._directions = Vectors()

    def __len__(self) -> int:
        return len(self._rows)

    def nearest(self, vector: np.ndarray) -> int | None:
        """Find the node whose mean has the highest cosine with the vector; None below the threshold."""
        if not self._rows:
            return None
        cosines = np.clip(self._directions.similarities(vector), -1.0, 1.0)
        row = int(np.argmax(cosines))
        return list(self._rows)[row] if cosines[row] >= self._threshold else None

    def add(self, node: int, vector: np.ndarray) -> None:
        """Add a member's vector to a node's mean; the node may be new."""
        if node not in self._rows:
            self._rows[node] = self._directions.add(vector)
            self._sums.append(np.zeros(len(vector), dtype=np.float64))
        row = self._rows[node]
        self._sums[row] += vector
        self._directions.matrix[row] = normalised(self._sums[row])
