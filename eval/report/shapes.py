"""Properties of built memories as Markdown tables: tree shape with the published one, tokens by depth, revenue, manifold, evidence."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, median

import numpy as np

from data_loaders.schema import Case
from eval.files.run_folder import RunFolder, RunRecord, read_efforts
from eval.metrics.evidence import evidence
from eval.report.published import find, read_published
from eval.report.rendering import cell_text
from eval.structure.manifold import MEASURES, manifold
from eval.structure.otd import check_guarantee, from_vectors, leaf_hierarchy, report
from eval.structure.tree import Shape, Tree, build_calls, mean_shape, shape, tokens_by_depth, without_chains
from eval.structure.triplets import Tier, TripletAgreement

SEGTREE_T5 = {
    "segtree": ("SegTreeMem", "Batch"),
    "segtree_batch": ("SegTreeMem", "Batch"),
    "segtree_cosine": ("SegTreeMem", "Cosine"),
    "segtree_pointwise": ("SegTreeMem", "Pointwise"),
    "memtree_segt": ("MemTree", ""),
    "raptor_segt": ("RAPTOR", ""),
}
"""Method and variant of SegTreeMem Table 5 by the name of the memory's configuration."""
SEGTREE_SETS = {"locomo": "LoCoMo", "longmemeval_mab": "LongMemEval-MAB", "realmem": "RealMem"}

SHOWN = {name: name.replace("_", " ") for name in Shape.__slots__}
SHOWN |= {"shared": "several parents", "height_to_width": "height/width", "calls_per_leaf": "calls/leaf"}
"""Column headings by field of `Shape`."""
SEGTREE_NAMES = {
    "nodes": "nodes",
    "leaf_depth_max": "max_depth",
    "leaf_depth_mean": "mean_depth",
    "leaf_depth_std": "depth_std",
    "branching": "branching",
    "calls_per_leaf": "calls_per_leaf",
}
MEMTREE_NAMES = {
    "nodes": "nodes",
    "leaves": "leaf_nodes",
    "inner": "branching_nodes",
    "depth_max": "depth_max",
    "depth_mean": "depth_avg",
    "branching": "branching_factor",
    "height_to_width": "height_to_width_ratio",
}


def published_shape(name: str, dataset: str) -> tuple[str, dict[str, float]] | None:
    """The table that prints this memory's shape on this data set, and its numbers by field of `Shape`; None when no paper does."""
    if name in SEGTREE_T5 and dataset in SEGTREE_SETS:
        method, variant = SEGTREE_T5[name]
        numbers = read_published("segtreemem_t5")
        wanted, names = {"dataset": SEGTREE_SETS[dataset], "method": method, "variant": variant}, SEGTREE_NAMES
        where = "SegTreeMem T5"
    elif name == "memtree" and dataset.startswith("multihop_rag"):
        numbers, wanted, names, where = read_published("memtree_t5"), {"method": "MemTree"}, MEMTREE_NAMES, "MemTree T5"
    else:
        return None
    printed = {field: find(numbers, {**wanted, "metric": metric}) for field, metric in names.items()}
    return where, {field: number.value for field, number in printed.items() if number is not None}


def shape_lines(run_folder: Path, record: RunRecord, trees: Sequence[Tree]) -> list[str]:
    """The shape table of one run: ours, ours without chains if there are any, and the published row."""
    calls = [build_calls(RunFolder(run_folder).case(tree.case_id)) for tree in trees]
    rows = [("ours", asdict(mean_shape([shape(tree, count) for tree, count in zip(trees, calls, strict=True)])))]
    plain = [without_chains(tree) for tree in trees]
    if any(len(short.ids) < len(tree.ids) for short, tree in zip(plain, trees, strict=True)):
        means = mean_shape([shape(tree, count) for tree, count in zip(plain, calls, strict=True)])
        rows.append(("ours without chains", asdict(means)))
    if (printed := published_shape(record.name, record.dataset["name"])) is not None:
        rows.append((printed[0], printed[1]))
    lines = ([name, *(_number(row.get(key)) for key in SHOWN)] for name, row in rows)
    return table(["means over trees", *SHOWN.values()], lines)


def token_lines(trees: Sequence[Tree]) -> list[str]:
    """A table of the tokens of node texts by depth (MemTree Figure 4)."""
    rows = (
        [str(depth), str(len(counts)), *map(_number, (median(counts), fmean(counts), float(np.std(counts))))]
        for depth, counts in tokens_by_depth(trees).items()
    )
    return table(["depth", "nodes", "tokens median", "mean", "std"], rows)


def revenue_lines(run_folder: Path, trees: Sequence[Tree], seed: int) -> list[str]:
    """A table of revenues per tree as shares of the upper bound, and whether OTD kept its guarantee; `seed` is that of the random tree."""
    lines, rng = [], np.random.default_rng(seed)
    names = ["observed", "binarised", "otd", "average linkage", "random binary", "optimum"]
    rows = []
    for tree in trees:
        steps = read_efforts(RunFolder(run_folder).case(tree.case_id), "subject")
        order = [line["subject"] for line in steps if line["phase"] == "write"]
        try:
            found, vectors = leaf_hierarchy(tree, order)
        except ValueError as error:
            lines.append(f"no revenue: {error}")
            continue
        said = report(found, from_vectors(vectors), rng)
        shares = [_number(said.ratios.get(name), 4) for name in names]
        leaves = {name for name, under in zip(tree.ids, tree.children, strict=True) if not under}
        named = "as written" if leaves <= set(order) else "as dumped"
        sums = str(said.n), _number(said.total), _number(said.bound)
        rows.append([tree.case_id, *sums, *shares, _number(said.beta, 4), str(said.holds), named])
    heads = ["case", "leaves", "sum w", "bound", *names, "beta", "OTD >= beta/3 x bound", "order"]
    lines += table(heads, rows) if rows else []
    return [
        *lines,
        "Shares of the upper bound (n - 2) x sum w, w = (1 + cosine) / 2. `observed` is the memory's own tree: an observation, "
        "to which the theorem does not apply. The guarantee is that of `otd`, over the same leaves in the order named.",
    ]


def guarantee_lines(trials: int, rng: np.random.Generator) -> list[str]:
    """A sentence about OTD's guarantee on `trials` random instances."""
    found = check_guarantee(trials, rng)
    return [
        f"OTD on {found.trials} random instances: {found.below_optimum} below beta/3 of the optimum, "
        f"{found.below_bound} below beta/3 of the upper bound; smallest ratio to the latter {found.tightest:.4f}, "
        f"smallest share of the optimum {found.worst:.2f}."
    ]


def manifold_lines(trees: Sequence[Tree], seed: int) -> list[str]:
    """A table of TiMem's manifold metrics by level."""
    heads = ("level", "nodes", "histories", *MEASURES)
    rows = ([_number(row[name], 3) for name in heads] for row in manifold(trees, np.random.default_rng(seed)))
    return table([name.replace("_", " ") for name in heads], rows)


def evidence_lines(run_folder: Path, cases: Iterable[Case]) -> list[str]:
    """A table of xMemory's evidence density by category (section 5.2)."""
    rows, levels = [], []
    for category, one in evidence(run_folder, cases).items():
        numbers = [*(_number(100 * share, 2) for share in one.hits), _number(100 * one.covered, 1)]
        numbers += [_number(value) for value in (one.blocks_to_cover, one.tokens_to_cover, one.recalled_tokens)]
        rows.append([category or "(none)", str(one.questions), str(one.left_out), str(one.blocks), *numbers])
        levels = [f"level {level}: {share:.1%}" for level, share in one.levels.items()]
    heads = ["category", "questions", "left out", "blocks", "0-hit %", "1-hit %", "2-hit %", "multi-hit %", "covered %"]
    return [
        *table([*heads, "blocks to cover", "tokens to cover", "recalled tokens"], rows),
        f"recalled from {', '.join(levels) or 'nothing'}",
    ]


def agreement_lines(agreements: Mapping[tuple[Tier, str], TripletAgreement], annotator: str) -> list[str]:
    """A table of MemTree's triplet test by tier and depth; `annotator` is the name of the model that answered."""
    rows = (
        [tier, band, str(one.asked), str(one.answered), _number(None if one.share is None else 100 * one.share, 1)]
        for (tier, band), one in agreements.items()
    )
    return [
        f"Annotator: the model {annotator}, no human; MemTree's figures are of five people and not comparable.",
        *table(["tier", "depth of the alternatives", "asked", "answered", "agrees with the tree %"], rows),
    ]


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    head, *cells = [list(map(cell_text, row)) for row in (heads, *rows)]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    lines = [head, ["-" * width for width in widths], *cells]
    return [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]


def _number(value: float | None, digits: int = 2) -> str:
    if value is None:
        return "–"
    return str(int(value)) if float(value).is_integer() else f"{value:.{digits}f}"
