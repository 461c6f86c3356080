"""The structure that a memory built, read from a run folder: nodes, depths, branching, tokens by depth.

The quantities are those of SegTreeMem Table 5, MemTree Tables 5 and A.3, and MemTree Figure 4. Depth counts edges from the root. MemTree
and other memories whose root has no text do not save it: their topmost nodes are at depth 1, and the root counts as a branching node but
not as a node. A node with several parents (soft clusters) is one deeper than its deepest parent and a child of each.

Deviations. MemTree does not define its height-to-width ratio. The printed values (6.5 at depth 13, 7.5 at depth 15) are half the maximum
depth, and ours is defined so. SegTreeMem keeps all leaves of a tree at one depth, yet its Table 5 prints standard deviations above zero:
they can only arise in a view such as `without_chains`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from eval.analysis.costs import BUILD
from eval.files.run_folder import COMPLETE, NODES, VECTORS, RunFolder, read_efforts
from eval.files.store import RunError, read_lines, read_record
from memsys.tokens import count_tokens


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """The saved structure of one case; nodes are numbered in the order of the file."""

    case_id: str
    ids: tuple[str, ...]
    parents: tuple[tuple[int, ...], ...]
    levels: tuple[int, ...]
    kinds: tuple[str, ...]
    texts: tuple[str, ...]
    sources: tuple[tuple[str, ...], ...]
    vectors: np.ndarray
    """float32 [nodes, d]; zeros for a node without a vector."""
    hidden_root: bool
    """Whether the topmost nodes have a common parent that is not among the nodes."""

    @property
    def children(self) -> list[list[int]]:
        """Children of each node, in ascending order."""
        below: list[list[int]] = [[] for _ in self.ids]
        for node, parents in enumerate(self.parents):
            for parent in parents:
                below[parent].append(node)
        return below


def read_tree(case_folder: Path, *, vectors: bool = False) -> Tree | None:
    """The saved structure of a case; None when its memory has none.

    The root is hidden when `case.json` says so, or when there are several topmost nodes.

    Args:
        vectors: whether to read the nodes' vectors; without them each node has a vector of length 0.

    Raises:
        RunError: a parent does not exist, a node is its own ancestor, or the vectors are missing, damaged, or not one per node.
    """
    path = case_folder / NODES
    lines = read_lines(path, fields=("id", "parents", "level", "kind", "text", "sources"))
    if not lines:
        return None
    place = {line["id"]: number for number, line in enumerate(lines)}
    matrix = _vectors(case_folder) if vectors else np.empty((len(lines), 0), dtype=np.float32)
    if len(place) != len(lines) or len(matrix) != len(lines):
        counts = f"{len(lines)} nodes with {len(place)} ids and {len(matrix)} vectors"
        raise RunError(f"{case_folder}: {counts}; run the case again")
    if lost := {parent for line in lines for parent in line["parents"]} - place.keys():
        raise RunError(f"{case_folder}: parents that are no nodes: {', '.join(sorted(lost)[:5])}")
    parents = tuple(tuple(place[parent] for parent in dict.fromkeys(line["parents"])) for line in lines)
    tops = sum(not above for above in parents)
    case = read_record(case_folder / COMPLETE)
    tree = Tree(
        case_id=str(case.get("case_id", case_folder.name)),
        ids=tuple(place),
        parents=parents,
        levels=tuple(line["level"] for line in lines),
        kinds=tuple(line["kind"] for line in lines),
        texts=tuple(line["text"] for line in lines),
        sources=tuple(tuple(line["sources"]) for line in lines),
        vectors=matrix,
        hidden_root=bool(case.get("hidden_root")) or tops > 1,
    )
    top_down(tree)
    return tree


def _vectors(case_folder: Path) -> np.ndarray:
    path = case_folder / VECTORS
    if not path.is_file():
        remedy = "repeat its command with nodes.vectors=true (answers are kept)"
        raise RunError(f"{path} is not there: the run kept no vectors; {remedy}")
    try:
        matrix: np.ndarray = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise RunError(f"{path} is damaged ({error}); delete it and run the same command again") from error
    return matrix


def read_trees(run_folder: Path, *, vectors: bool = False) -> list[Tree]:
    """The structures of all complete cases of a run, in the order of their folders."""
    trees = (read_tree(folder, vectors=vectors) for folder in RunFolder(run_folder).complete())
    return [tree for tree in trees if tree is not None]


def top_down(tree: Tree) -> list[int]:
    """All nodes, each after all of its parents.

    Raises:
        RunError: a node is its own ancestor.
    """
    waiting = [len(parents) for parents in tree.parents]
    below = tree.children
    order = [node for node, count in enumerate(waiting) if not count]
    for node in order:
        for child in below[node]:
            waiting[child] -= 1
            if not waiting[child]:
                order.append(child)
    if len(order) < len(tree.ids):
        node = next(node for node, count in enumerate(waiting) if count)
        for _ in tree.ids:  # upwards: a node below a circle waits, too
            node = next(parent for parent in tree.parents[node] if waiting[parent])
        raise RunError(f"{tree.case_id}: nodes that are their own ancestors, among {tree.ids[node]}")
    return order


def depths(tree: Tree) -> list[int]:
    """Depth of each node: edges from the root; with several parents, one more than the deepest of them."""
    deep = [0] * len(tree.ids)
    for node in top_down(tree):
        above = [deep[parent] for parent in tree.parents[node]]
        deep[node] = max(above) + 1 if above else int(tree.hidden_root)
    return deep


def ancestors(tree: Tree) -> list[frozenset[int]]:
    """Ancestors of each node."""
    above: list[frozenset[int]] = [frozenset()] * len(tree.ids)
    for node in top_down(tree):
        above[node] = frozenset(tree.parents[node]).union(*(above[parent] for parent in tree.parents[node]))
    return above


def without_chains(tree: Tree) -> Tree:
    """The tree without nodes that have a single child with no other parent; the child takes its parent's place."""
    below = tree.children
    gone = {node for node, under in enumerate(below) if len(under) == 1 and len(tree.parents[under[0]]) == 1}
    stand_ins: dict[int, tuple[int, ...]] = {}
    for node in top_down(tree):
        above = [stand_ins[parent] if parent in gone else (parent,) for parent in tree.parents[node]]
        stand_ins[node] = tuple(dict.fromkeys(chain(*above)))
    kept = [node for node in range(len(tree.ids)) if node not in gone]
    names = ("ids", "levels", "kinds", "texts", "sources")
    own: dict[str, Any] = {name: tuple(getattr(tree, name)[node] for node in kept) for name in names}
    number = {node: place for place, node in enumerate(kept)}
    parents = tuple(tuple(number[parent] for parent in stand_ins[node]) for node in kept)
    return replace(tree, parents=parents, vectors=tree.vectors[kept], **own)


@dataclass(frozen=True, slots=True)
class Shape:
    """Properties of one tree, or their means over the trees of a run."""

    nodes: float
    """Number of nodes, without a hidden root."""
    leaves: float
    inner: float
    shared: float
    """Nodes with several parents."""
    depth_max: float
    depth_mean: float
    """Mean depth over all nodes (MemTree Table 5)."""
    depth_std: float
    leaf_depth_max: float
    leaf_depth_mean: float
    """Mean depth over the leaves (SegTreeMem Table 5)."""
    leaf_depth_std: float
    """Population standard deviation of the leaves' depths within a tree."""
    branching: float
    """Mean number of children of inner nodes, a hidden root included; 0 in a tree without inner nodes."""
    height_to_width: float
    """Half the maximum depth, see the module's deviations."""
    calls_per_leaf: float
    """Logical model calls of the whole build, divided by the number of leaves."""


def shape(tree: Tree, calls: float) -> Shape:
    """Properties of one tree whose build took `calls` logical model calls."""
    below, deep = tree.children, depths(tree)
    leaves = [node for node, under in enumerate(below) if not under]
    inner = len(below) - len(leaves)
    edges = sum(map(len, below)) + (sum(not parents for parents in tree.parents) if tree.hidden_root else 0)
    leaf_depths = [deep[node] for node in leaves]
    return Shape(
        nodes=len(below),
        leaves=len(leaves),
        inner=inner,
        shared=sum(len(parents) > 1 for parents in tree.parents),
        depth_max=max(deep),
        depth_mean=fmean(deep),
        depth_std=float(np.std(deep)),
        leaf_depth_max=max(leaf_depths),
        leaf_depth_mean=fmean(leaf_depths),
        leaf_depth_std=float(np.std(leaf_depths)),
        branching=edges / max(1, inner + tree.hidden_root),
        height_to_width=max(deep) / 2,
        calls_per_leaf=calls / len(leaves),
    )


def build_calls(case_folder: Path) -> int:
    """Logical model calls of building one case."""
    lines = read_efforts(case_folder, "calls")
    return sum(sum(line["calls"].values()) for line in lines if line["phase"] in BUILD)


def mean_shape(shapes: Sequence[Shape]) -> Shape:
    """Means over trees, as SegTreeMem Table 5 prints them. Raises ValueError where there are no trees."""
    if not shapes:
        raise ValueError("no tree to take a mean over")
    return Shape(**{name: fmean(getattr(own, name) for own in shapes) for name in Shape.__slots__})


def tokens_by_depth(trees: Sequence[Tree]) -> dict[int, list[int]]:
    """Tokens of each node's text by ascending depth, over the nodes of all trees (MemTree Figure 4)."""
    by_depth: dict[int, list[int]] = {}
    for tree in trees:
        for depth, text in zip(depths(tree), tree.texts, strict=True):
            by_depth.setdefault(depth, []).append(count_tokens(text))
    return dict(sorted(by_depth.items()))
