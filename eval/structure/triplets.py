"""The triplet test: a language model decides whether a node is more similar to its descendant than to another node of the same depth.

This is MemTree's appendix A.3.8 with a language model in place of the five human annotators: it measures agreement with a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from eval.structure.tree import Tree, ancestors, depths
from memsys.llm.ask import ParseFailure, ask_all
from memsys.llm.protocol import LLM
from memsys.prompts import Option, Prompt, Prompts

Tier = Literal["easy", "hard"]
TIERS: tuple[Tier, Tier] = ("easy", "hard")


@dataclass(frozen=True, slots=True)
class Triplet:
    """The question whether `source` is more similar to its descendant `near` than to `far`, another node of the same depth as `near`."""

    tree: int
    source: int
    near: int
    far: int
    depth: int
    """Depth of the two alternatives."""
    tier: Tier
    """easy: the alternatives share no ancestor but the root; hard: they share a further ancestor."""
    near_first: bool


def sample_triplets(trees: Sequence[Tree], count: int, rng: np.random.Generator) -> list[Triplet]:
    """Draw at most `count` different triplets of each tier, easy ones first; fewer where the trees do not have as many.

    The source is drawn from the nodes with descendants, `near` from its descendants at any depth, `far` from the other nodes of that
    depth, and the order of the two at random. The root is never a source: every node is its descendant.
    """
    views = [_Kin(tree) for tree in trees]
    sources = [(number, node) for number, kin in enumerate(views) for node in kin.sources]
    triplets: list[Triplet] = []
    for tier in TIERS:
        seen: set[tuple[int, int, int, int]] = set()
        for _ in range(50 * count if sources else 0):
            if len(seen) == count:
                break
            number, source = sources[rng.integers(len(sources))]
            kin = views[number]
            near = int(rng.choice(kin.under[source]))
            others = kin.beside(source, near, tier)
            if not others:
                continue
            key = (number, source, near, int(rng.choice(others)))
            if key not in seen:
                seen.add(key)
                triplets.append(Triplet(*key, kin.depths[near], tier, bool(rng.integers(2))))
    return triplets


class _Kin:
    """Ancestors, descendants and nodes of equal depth in one tree."""

    def __init__(self, tree: Tree) -> None:
        tops = [node for node, parents in enumerate(tree.parents) if not parents]
        self.root = frozenset() if tree.hidden_root or len(tops) > 1 else frozenset(tops)
        self.depths, self.above = depths(tree), ancestors(tree)
        self.under: list[list[int]] = [[] for _ in tree.ids]
        self.level: dict[int, list[int]] = {}
        for node, above in enumerate(self.above):
            self.level.setdefault(self.depths[node], []).append(node)
            for other in above:
                self.under[other].append(node)
        self.sources = [node for node, under in enumerate(self.under) if under and node not in self.root]

    def beside(self, source: int, near: int, tier: Tier) -> list[int]:
        """Nodes at the depth of `near` that are no descendants of `source` and fit the tier."""
        shared = self.above[near] - self.root
        return [
            node
            for node in self.level[self.depths[near]]
            if source not in self.above[node] and (shared.isdisjoint(self.above[node])) == (tier == "easy")
        ]


@dataclass(frozen=True, slots=True)
class TripletAgreement:
    """Counts of the annotator's choices of the descendant."""

    asked: int
    answered: int
    agreed: int

    @property
    def share(self) -> float | None:
        """Agreement among the answered triplets; None when there are none."""
        return self.agreed / self.answered if self.answered else None


def ask_triplets(llm: LLM, prompts: Prompts, trees: Sequence[Tree], triplets: Sequence[Triplet]) -> list[bool | None]:
    """Ask a model, for each triplet, whether the descendant is more similar; None when its reply names neither alternative.

    Raises:
        ModelError: a call failed for good.
    """
    asks: list[tuple[Prompt, Mapping[str, Any]]] = []
    for one in triplets:
        texts, ends = trees[one.tree].texts, (one.near, one.far) if one.near_first else (one.far, one.near)
        options = [Option(label, texts[end]) for label, end in zip("AB", ends, strict=True)]
        asks.append((prompts["judge/triplet"], {"query": texts[one.source], "options": options}))
    replies = ask_all(llm, asks, retries=1)
    return [
        None if isinstance(reply, ParseFailure) else (reply == "A") == one.near_first
        for one, reply in zip(triplets, replies, strict=True)
    ]


def agreement(triplets: Sequence[Triplet], agreed: Sequence[bool | None]) -> dict[tuple[Tier, str], TripletAgreement]:
    """Agreement by tier and depth of the alternatives: over all, and in the paper's bands (depth 1 to 5, and deeper)."""
    by_group: dict[tuple[Tier, str], TripletAgreement] = {}
    for tier in TIERS:
        for band, low, high in (("all", 0, 10**9), ("depth 1-5", 0, 5), ("depth 6+", 6, 10**9)):
            own = zip(triplets, agreed, strict=True)
            said = [verdict for one, verdict in own if one.tier == tier and low <= one.depth <= high]
            by_group[tier, band] = TripletAgreement(len(said), len(said) - said.count(None), said.count(True))
    return by_group
