"""Reading an annotated tree (SegTreeMem Algorithm 2, §4.3): its settings, and the selection of nodes after propagation.

SegTreeMem and its non-temporal control share it.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, fields

from data_loaders.schema import Question
from memsys.interface import MemorySystem, Recall, one_of, positive
from memsys.systems.segtree.annotated_tree import AnnotatedTree
from memsys.systems.segtree.propagation import check_propagation, propagated, ranking

ORDERS = ("chronological", "rank")


@dataclass(frozen=True, slots=True)
class SegTreeReading:
    """Settings of a read; `memsys.systems.segtree` explains the choices that the paper leaves open.

    Raises:
        ValueError: an unknown choice, or a number out of range.
    """

    k: int
    """Number of nodes to recall."""
    alpha: float
    """Decay per propagation step, in [0, 1)."""
    horizon: int
    """Number of propagation steps H."""
    policy: str
    """Direction of propagation: `none`, `top_down` or `bottom_up`."""
    leaf_only: bool
    """Whether only leaves may be recalled."""
    neg: str
    """Treatment of negative cosines: `clip0`, `shift` or `softmax`."""
    sink: str
    """Treatment of nodes without an outgoing edge: `drop` or `self_loop`."""
    dedup: bool
    """Whether only the best-ranked of several nodes with the same interval and text is recalled."""
    order: str
    """Order of the items: `chronological` (by start of interval) or `rank`."""

    def __post_init__(self) -> None:
        positive("k", self.k)
        one_of("order", self.order, ORDERS)
        check_propagation(self.policy, self.alpha, self.horizon, self.neg, self.sink)


READ_KNOBS = tuple(setting.name for setting in fields(SegTreeReading))


def read_settings(memory: MemorySystem) -> SegTreeReading:
    """The read settings as a memory's attributes stand now; a sweep sets them on copies of the memory.

    Raises:
        ValueError: see `SegTreeReading`.
    """
    return SegTreeReading(**{knob: getattr(memory, knob) for knob in READ_KNOBS})


def recall(tree: AnnotatedTree, question: Question, settings: SegTreeReading) -> Recall:
    """Recall the `k` nodes with the highest propagated relevance to the question (Algorithm 2).

    The score of an item is its node's propagated relevance, s-tilde in the paper.
    """
    if not len(tree):
        return Recall(())
    query = tree.embedder.embed([question.text], query=True)[0]
    scores = propagated(
        tree.similarities(query), tree.parents, policy=settings.policy, alpha=settings.alpha, horizon=settings.horizon,
        neg=settings.neg, sink=settings.sink,
    )  # fmt: skip
    chosen: dict[Hashable, int] = {}
    for node in map(int, ranking(scores, tree.starts, tree.levels)):
        if len(chosen) == settings.k:
            break
        if settings.leaf_only and tree.levels[node] > 0:
            continue
        chosen.setdefault((tree.starts[node], tree.ends[node], tree.text(node)) if settings.dedup else node, node)
    nodes = list(chosen.values())
    if settings.order == "chronological":
        nodes.sort(key=lambda node: tree.starts[node])
    return Recall(tuple(tree.item(node, float(scores[node])) for node in nodes))
