"""LATTICE: best-first search in a semantic tree, where a model rates nodes in lists (Gupta et al., 2025, arXiv 2510.13217).

Leaves are units; inner nodes have generated descriptions (`lattice.tree`). A step of the search shows the model a slate: the children of a
promising node and some nodes rated before (`lattice.search`). The nodes rated before let the ratings of different slates be calibrated
(`lattice.calibration`). The path relevance of a node mixes its calibrated score with its parent's path relevance. After a number of
steps the leaves with the highest path relevance are recalled.

`mode="code"` follows the search released in October 2025 where it differs from the paper:

- Nodes to expand are ranked by their first ratings; a first rating of at most .09 is the path relevance, without the parent's.
- The node rated again beside inner children is the best expanded node of the same level.
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
from importlib.util import find_spec
from typing import Any, ClassVar, Literal

from data_loaders.schema import Question, Unit
from memsys.embed import Embedder
from memsys.interface import MemorySystem, NodeView, Recall, known_mode, one_of, period, positive, union, unit_item
from memsys.llm import meter
from memsys.llm.protocol import LLM
from memsys.prompts import Prompts
from memsys.systems.lattice.search import Search, SearchRules
from memsys.systems.lattice.tree import LatticeNode, TreeBuilder, height


class Lattice(MemorySystem):
    """Recalls the `k` units with the highest path relevance among those that the search has rated, best first.

    Args:
        mode: `paper` or `code`, see the module; it changes the search only.
        k: most items of a recall.
        beam: nodes expanded in one step.
        iterations: steps of a search; it ends early when every inner node is expanded.
        alpha: weight of the parent's path relevance.
        anchors: leaves that are rated again beside a node's children, when these are leaves.
        build: `bottom_up` describes clusters layer by layer; `top_down` splits by topics, from five labels of each unit.
        init: first layer of a bottom-up build: the units of a `session` in order, or clusters of all units (`scratch`).
        branching: most children of a node.
        slate_tokens: most tokens of the texts in one slate; where they have more, all are cut to one length.
        partition_tokens: most tokens of the labels that are shown to partition a node.
        seed: seed of the clustering and of the draws of leaves; a draw depends on the question and the step only.

    Raises:
        ValueError: an unknown choice, or a number out of range.
        ImportError: scikit-learn is not installed.
    """

    READ_KNOBS: ClassVar = ("mode", "k", "beam", "iterations", "alpha", "anchors", "slate_tokens")
    MODES: ClassVar = ("paper", "code")
    PROMPTS: ClassVar = ("lattice",)
    EMBEDS_UNITS: ClassVar = False
    UNIT: ClassVar = {"rule": "ab_pair", "on_unpaired": "keep_single"}
    OFFLINE: ClassVar = True

    def __init__(
        self,
        llm: LLM,
        embedder: Embedder,
        prompts: Prompts,
        mode: Literal["paper", "code"] = "paper",
        k: int = 10,
        beam: int = 2,
        iterations: int = 20,
        alpha: float = 0.5,
        anchors: int = 10,
        build: Literal["bottom_up", "top_down"] = "bottom_up",
        init: Literal["session", "scratch"] = "session",
        branching: int = 10,
        slate_tokens: int = 30000,
        partition_tokens: int = 8000,
        seed: int = 0,
    ) -> None:
        for name, value, least in (("iterations", iterations, 0), ("anchors", anchors, 0), ("branching", branching, 2)):
            if value < least:
                raise ValueError(f"{name} must be at least {least}, found {value}")
        if not 0 <= alpha <= 1:
            raise ValueError(f"alpha must be between 0 and 1, found {alpha}")
        if find_spec("sklearn") is None:
            raise ImportError("LATTICE needs sklearn: pip install memsys-bench[cluster]")
        self.llm, self.embedder, self.prompts, self.mode = llm, embedder, prompts, known_mode(self, mode)
        self.k, self.beam, self.iterations = positive("k", k), positive("beam", beam), iterations
        self.alpha, self.anchors, self.branching, self.seed = alpha, anchors, branching, seed
        self.build = one_of("build", build, ("bottom_up", "top_down"))
        self.init = one_of("init", init, ("session", "scratch"))
        self.slate_tokens = positive("slate_tokens", slate_tokens)
        self.partition_tokens = positive("partition_tokens", partition_tokens)
        self._units: list[Unit] = []
        self._root: LatticeNode | None = None
        self._built = 0
        self._inner = 0
        self._fallbacks = 0

    def write(self, unit: Unit) -> None:
        self._units.append(unit)

    def consolidate(self) -> None:
        """Build the tree anew when units have been written since the last build."""
        if self._built < len(self._units):
            builder = TreeBuilder(
                self.llm, self.embedder, self.prompts, self.branching, self.partition_tokens, self.seed
            )
            leaves = [LatticeNode(unit.id, unit.text, (), unit, place) for place, unit in enumerate(self._units)]
            top_down = self.build == "top_down"
            self._root = LatticeNode(
                "root", "", builder.top_down(leaves) if top_down else builder.bottom_up(leaves, self.init)
            )
            self._inner, self._fallbacks = builder.inner, builder.fallbacks
            self._built = len(self._units)

    def read(self, question: Question) -> Recall:
        search = self.search(question)
        meter.note("lattice.leaves_scored", len(search.leaves))
        meter.note("lattice.leaves_held", self._built)
        ranked = sorted(search.leaves, key=lambda leaf: (-search.path[leaf.id], leaf.place))
        return Recall(tuple(unit_item(leaf.unit, search.path[leaf.id]) for leaf in ranked[: self.k] if leaf.unit))

    def search(self, question: Question) -> Search:
        """The finished search for one question in the tree of the last build."""
        rules = SearchRules(
            self.mode, self.beam, self.iterations, self.alpha, self.anchors, self.slate_tokens, self.seed
        )
        search = Search(self.llm, self.prompts, rules, question, self._root)
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
