"""LATTICE: best-first search in a semantic tree, where a model rates nodes in lists (Gupta et al., 2025, arXiv 2510.13217).

Leaves are units; inner nodes have generated descriptions (`lattice.search.TreeBuilder`). A step of the search shows the model a slate: the
children of a promising node and some nodes rated before (`lattice.search.Search`). The nodes rated before let the ratings of different
slates be calibrated (`lattice.search.calibrated`). The path relevance of a node mixes its calibrated score with its parent's path
relevance. After a number of steps the leaves with the highest path relevance are recalled.

`mode="code"` follows the search released in October 2025 where it differs from the paper:

- Nodes to expand are ranked by their first ratings; a first rating of at most .09 is the path relevance, without the parent's.
- The node rated again together with inner children is the best expanded node of the same level.
- Leaves to rate again are drawn with weight 16^score above the valley of a two-component mixture.

The released repository has no code that builds the tree.

Deviations and decisions:

- The tree is built offline: `consolidate` builds it from all units so far. Summaries of closed sessions are not updated in place.
- The last layer under the root is described too; in the paper's algorithm it is not. A group of one leaf takes over that leaf's text; a
  group of one inner node is that node.
- `branching` bounds the size of a cluster (in the paper's appendix, the number of clusters). Clustering is spectral on cosine
  affinities; layers of more than 2,000 nodes are clustered by k-means, because their eigenvectors would take too long. Where there are
  more clusters than half the nodes, the most similar single nodes are joined in pairs.
- Calibration is least squares in closed form in both modes: a rating is the node's score plus the slate's bias; biases sum to zero among
  connected slates; scores are clipped to [0, 1]. The paper takes 100 steps of Adam, the release 200 of AdamW from a random start. As
  released, mode `code` then divides the scores by their maximum, where that is positive.
- Invalid pairs in a reply are dropped and scores are clamped to 0–100. After two unusable replies all children of the node score 0. A
  leaf shown again that the reply leaves out has no rating in that slate.
- Top-down build: a label in no topic goes to the most similar topic; chunks in time order replace a single topic; clustering replaces a
  partition that cannot be read.
- Left out: the final reranking of the best hundred (optional in the paper) and the random number in each prompt.
- Items come best first; the paper evaluates rankings only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from importlib.util import find_spec
from typing import Any, ClassVar

from data_loaders.schema import Question
from memsys.interface import NodeView, Recall, period, union, unit_item
from memsys.llm import meter
from memsys.llm.protocol import LLM
from memsys.prompts import Prompts
from memsys.systems.lattice.search import LatticeBuild, LatticeNode, Search, SearchRules, TreeBuilder, height
from memsys.systems.rebuilt import RebuiltMemory
from memsys.vectors import Embedder


class Lattice(RebuiltMemory):
    """Recalls the `k` units with the highest path relevance among those that the search has rated, best first.

    Raises:
        ImportError: scikit-learn is not installed.
    """

    READ_KNOBS: ClassVar = tuple(setting.name for setting in fields(SearchRules))
    MODES: ClassVar = ("paper", "code")
    PROMPTS: ClassVar = ("lattice",)
    UNIT: ClassVar = {"rule": "ab_pair", "on_unpaired": "keep_single"}

    def __init__(
        self,
        llm: LLM,
        embedder: Embedder,
        prompts: Prompts,
        build: LatticeBuild = LatticeBuild(),
        reading: SearchRules = SearchRules(),
    ) -> None:
        if find_spec("sklearn") is None:
            raise ImportError("LATTICE needs sklearn: pip install memsys-bench[cluster]")
        super().__init__()
        self.llm, self.embedder, self.prompts = llm, embedder, prompts
        self.build, self.reading = build, reading
        self._root: LatticeNode | None = None
        self._inner = 0
        self._fallbacks = 0

    def _build(self) -> None:
        builder = TreeBuilder(self.llm, self.embedder, self.prompts, self.build)
        leaves = [LatticeNode(unit.id, unit.text, (), unit, place) for place, unit in enumerate(self._units)]
        children = builder.top_down(leaves) if self.build.build == "top_down" else builder.bottom_up(leaves)
        self._root = LatticeNode("root", "", children)
        self._inner, self._fallbacks = builder.inner, builder.fallbacks

    def read(self, question: Question) -> Recall:
        search = self.search(question)
        meter.note("lattice.leaves_scored", len(search.leaves))
        meter.note("lattice.leaves_held", self._built)
        ranked = sorted(search.leaves, key=lambda leaf: (-search.path[leaf.id], leaf.place))
        return Recall(
            tuple(unit_item(leaf.unit, search.path[leaf.id]) for leaf in ranked[: self.reading.k] if leaf.unit)
        )

    def search(self, question: Question) -> Search:
        """The finished search for one question in the tree of the last build."""
        search = Search(self.llm, self.prompts, self.reading, self.build.seed, question, self._root)
        search.run()
        return search

    def nodes(self) -> Iterator[NodeView]:
        """Every node but the root, parents before children; `level` is the height above the deepest leaf below."""
        top = self._root.children if self._root else ()
        queue: list[tuple[LatticeNode, tuple[str, ...]]] = [(child, ()) for child in top]
        for node, parents in queue:
            queue += [(child, (node.id,)) for child in node.children]
            units = [leaf.unit for leaf in node.leaves() if leaf.unit]
            kind, sources = "leaf" if node.unit else "summary", union(unit.turn_ids for unit in units)
            yield NodeView(node.id, parents, height(node), kind, node.text, None, sources, *period(units))

    @property
    def held(self) -> int:
        return self._built

    def report(self) -> dict[str, Any]:
        """The shape of the last build, and how many replies could not be used in it."""
        return {
            "policy": "rebuild",
            "leaves": self._built,
            "inner": self._inner,
            "root_children": len(self._root.children) if self._root else 0,
            "height": height(self._root) if self._root else 0,
            "fallbacks": self._fallbacks,
        }
