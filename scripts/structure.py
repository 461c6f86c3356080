"""What memories built, from their run folders and without rebuilding: `python -m scripts.structure RUN [RUN …] [--revenue] …`

Prints the shape of the trees beside the published one where the memory's configuration is a paper's; further parts on request.
`--triplets N` asks the judge's model (MemTree A.3.8): name it with `--with models.judge=gpt-4o-mini network=true`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eval.report.published import find, read_published
from eval.store import read_lines
from eval.structure.tree import Shape, Tree, build_calls, mean_shape, shape, tokens_by_depth, without_chains
from scripts.experiment.exits import guarded
from scripts.experiment.run_folder import data_of, record_of, trees_of
from scripts.settings.arguments import add_traceback, whole

if TYPE_CHECKING:
    import numpy as np


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

SHOWN = {
    "nodes": "nodes",
    "leaves": "leaves",
    "inner": "inner",
    "shared": "several parents",
    "depth_max": "depth max",
    "depth_mean": "depth mean",
    "depth_std": "depth std",
    "leaf_depth_max": "leaf depth max",
    "leaf_depth_mean": "leaf depth mean",
    "leaf_depth_std": "leaf depth std",
    "branching": "branching",
    "height_to_width": "height/width",
    "calls_per_leaf": "calls/leaf",
}
"""Columns, by field of `Shape`."""
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


def stand_ins(record: Mapping[str, Any]) -> list[str]:
    """Roles of the run that an engine without a model filled."""
    return [role for role, model in record["models"].items() if model.get("engine") in ("extractive", "hashing")]


def published_shape(name: str, dataset: str) -> tuple[str, dict[str, float]] | None:
    """Where a paper prints this memory's shape on this data, and its numbers by field of `Shape`; None where none does."""
    if name in SEGTREE_T5 and dataset in SEGTREE_SETS:
        method, variant = SEGTREE_T5[name]
        numbers = read_published("segtreemem_t5")
        wanted, names = {"dataset": SEGTREE_SETS[dataset], "method": method, "variant": variant}, SEGTREE_NAMES
        where = "SegTreeMem T5"
    elif name == "memtree" and dataset.startswith("multihop_rag"):
        numbers, wanted, names, where = read_published("memtree_t5"), {"method": "MemTree"}, MEMTREE_NAMES, "MemTree T5"
    else:
        return None
    found = {field: find(numbers, {**wanted, "metric": metric}) for field, metric in names.items()}
    return where, {field: one.value for field, one in found.items() if one is not None}


def shape_lines(run_folder: Path, record: Mapping[str, Any], trees: Sequence[Tree]) -> list[str]:
    """The table of one run: ours, ours without chains where there are any, and the published row."""
    calls = [_calls(run_folder, tree.case_id) for tree in trees]
    rows = [("ours", _values(mean_shape([shape(tree, count) for tree, count in zip(trees, calls, strict=True)])))]
    plain = [without_chains(tree) for tree in trees]
    if any(len(short.ids) < len(tree.ids) for short, tree in zip(plain, trees, strict=True)):
        means = mean_shape([shape(tree, count) for tree, count in zip(plain, calls, strict=True)])
        rows.append(("ours without chains", _values(means)))
    if (printed := published_shape(record["name"], record["dataset"]["name"])) is not None:
        rows.append((printed[0], printed[1]))
    return table(
        ["means over trees", *SHOWN.values()], ([name, *(_number(row.get(key)) for key in SHOWN)] for name, row in rows)
    )


def _values(means: Shape) -> dict[str, float]:
    return {name: getattr(means, name) for name in SHOWN}


def _calls(run_folder: Path, case_id: str) -> int:
    from eval.store import safe_name

    return build_calls(run_folder / "cases" / safe_name(case_id))


def token_lines(trees: Sequence[Tree]) -> list[str]:
    """Tokens of node texts by depth (MemTree Figure 4)."""
    rows = (
        [str(one.depth), str(one.nodes), *map(_number, (one.median, one.mean, one.std))]
        for one in tokens_by_depth(trees)
    )
    return table(["depth", "nodes", "tokens median", "mean", "std"], rows)


def revenue_lines(run_folder: Path, trees: Sequence[Tree], seed: int) -> list[str]:
    """Revenues per tree as shares of the upper bound, and whether OTD kept its guarantee."""
    import numpy as np

    from eval.structure.revenue import from_vectors, leaf_hierarchy, report

    lines, rng = [], np.random.default_rng(seed)
    names = ["observed", "binarised", "otd", "average linkage", "random binary", "optimum"]
    rows = []
    for tree in trees:
        order = _written(run_folder, tree)
        try:
            found, vectors = leaf_hierarchy(tree, order)
        except ValueError as error:
            lines.append(f"no revenue: {error}")
            continue
        said = report(found, from_vectors(vectors), rng)
        shares = [_number(said.ratios.get(name), 4) for name in names]
        named = "as written" if _leaf_ids(tree) <= set(order) else "as dumped"
        rows.append(
            [
                tree.case_id,
                str(said.n),
                _number(said.total),
                _number(said.bound),
                *shares,
                _number(said.beta, 4),
                str(said.holds),
                named,
            ]
        )
    heads = ["case", "leaves", "sum w", "bound", *names, "beta", "OTD >= beta/3 x bound", "order"]
    lines += table(heads, rows) if rows else []
    return [
        *lines,
        "Shares of the upper bound (n - 2) x sum w, w = (1 + cosine) / 2. `observed` is the memory's own tree: an observation, "
        "to which the theorem does not apply. The guarantee is that of `otd`, over the same leaves in the order named.",
    ]


def _leaf_ids(tree: Tree) -> set[str]:
    return {name for name, under in zip(tree.ids, tree.children, strict=True) if not under}


def _written(run_folder: Path, tree: Tree) -> list[str]:
    """Unit ids of a case in the order in which they were written."""
    from eval.store import safe_name

    lines = read_lines(run_folder / "cases" / safe_name(tree.case_id) / "effort.jsonl", fields=("phase", "subject"))
    return [line["subject"] for line in lines if line["phase"] == "write"]


def guarantee_lines(trials: int, rng: np.random.Generator) -> list[str]:
    """OTD's guarantee on random instances."""
    from eval.structure.revenue import check_guarantee

    found = check_guarantee(trials, rng)
    return [
        f"OTD on {found.trials} random instances: {found.below_optimum} below beta/3 of the optimum, "
        f"{found.below_bound} below beta/3 of the upper bound; smallest ratio to the latter {found.tightest:.4f}, "
        f"smallest share of the optimum {found.worst:.2f}."
    ]


def manifold_lines(trees: Sequence[Tree], seed: int) -> list[str]:
    """TiMem's manifold metrics by level."""
    import numpy as np

    from eval.structure.manifold import Manifold, manifold

    heads = list(Manifold.__slots__)
    rows = ([_number(getattr(one, name), 3) for name in heads] for one in manifold(trees, np.random.default_rng(seed)))
    return table([name.replace("_", " ") for name in heads], rows)


def evidence_lines(run_folder: Path, record: Mapping[str, Any], root: Path | None) -> list[str]:
    """xMemory's evidence analyses by category; needs the data, which hold the answers."""
    from eval.metrics.evidence import evidence

    rows, levels = [], []
    for category, one in evidence(run_folder, data_of(record, root)).items():
        numbers = [*(_number(100 * share, 2) for share in one.hits), _number(100 * one.covered, 1)]
        numbers += [_number(value) for value in (one.blocks_to_cover, one.tokens_to_cover, one.recalled_tokens)]
        rows.append([category or "(none)", str(one.questions), str(one.left_out), str(one.blocks), *numbers])
        levels = [f"level {level}: {share:.1%}" for level, share in one.levels.items()]
    heads = ["category", "questions", "left out", "blocks", "0-hit %", "1-hit %", "2-hit %", "multi-hit %", "covered %"]
    return [
        *table([*heads, "blocks to cover", "tokens to cover", "recalled tokens"], rows),
        f"recalled from {', '.join(levels) or 'nothing'}",
    ]


def triplet_lines(trees: Sequence[Tree], count: int, seed: int, overrides: Sequence[str]) -> list[str]:
    """MemTree's triplet test with the judge's model as the annotator."""
    import numpy as np

    from eval.structure.tree import agreement, ask_triplets, sample_triplets
    from scripts.experiment.launch import composed
    from scripts.experiment.models import build_models

    built = build_models(composed("config", overrides))
    triplets = sample_triplets(trees, count, np.random.default_rng(seed))
    found = agreement(triplets, ask_triplets(built.judge.llm, built.prompts, trees, triplets))
    rows = (
        [tier, band, str(one.asked), str(one.answered), _number(None if one.share is None else 100 * one.share, 1)]
        for (tier, band), one in found.items()
    )
    engine = " (STAND-IN: an engine without a model)" if built.judge.stand_in else ""
    return [
        f"Annotator: the model {built.judge.name}{engine}, no human; MemTree's figures are of five people and not comparable.",
        *table(["tier", "depth of the alternatives", "asked", "answered", "agrees with the tree %"], rows),
    ]


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A Markdown table."""
    cells = [[one.replace("|", "\\|") for one in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    lines = [heads, ["-" * width for width in widths], *cells]
    return [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]


def _number(value: float | None, digits: int = 2) -> str:
    if value is None:
        return "–"
    return str(int(value)) if float(value).is_integer() else f"{value:.{digits}f}"


def lines_of(run_folder: Path, args: argparse.Namespace) -> list[str]:
    """Everything asked for about one run.

    Raises:
        RunError: the folder is no run, or its memory has no structure.
    """
    record = record_of(run_folder)
    trees = trees_of(run_folder, record, vectors=args.revenue or args.manifold)
    replaced = stand_ins(record)
    lines = [
        f"## {record['name']} on {record['dataset']['name']} ({record['data_status']} data, {len(trees)} trees)",
        "",
    ]
    if replaced:
        lines += [
            f"STAND-IN: {', '.join(replaced)} filled by engines without a model; not comparable with published values.",
            "",
        ]
    lines += shape_lines(run_folder, record, trees)
    parts: list[tuple[object, Callable[[], list[str]]]] = [
        (args.tokens, lambda: token_lines(trees)),
        (args.revenue, lambda: revenue_lines(run_folder, trees, args.seed)),
        (args.manifold, lambda: manifold_lines(trees, args.seed)),
        (args.evidence, lambda: evidence_lines(run_folder, record, args.data)),
        (args.triplets, lambda: triplet_lines(trees, args.triplets, args.seed, args.overrides)),
    ]
    for wanted, part in parts:
        if wanted:
            lines += ["", *part()]
    return [*lines, ""]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m scripts.structure", description=__doc__)
    made.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a folder below results/runs")
    made.add_argument("--tokens", action="store_true", help="tokens of node texts by depth")
    made.add_argument("--revenue", action="store_true", help="Moseley-Wang revenue, and OTD's guarantee checked")
    made.add_argument("--trials", type=whole(1), default=400, help="random instances of that check")
    made.add_argument("--manifold", action="store_true", help="TiMem's manifold metrics by level (scikit-learn)")
    made.add_argument("--evidence", action="store_true", help="xMemory's evidence density (needs the data)")
    made.add_argument(
        "--data", type=Path, help="folder of the raw files (default: MEMSYS_DATA, else the download folder)"
    )
    made.add_argument(
        "--triplets", type=whole(0), default=0, metavar="N", help="ask N easy and N hard triplets of the judge"
    )
    made.add_argument(
        "--with", dest="overrides", nargs="*", default=[], metavar="KEY=VALUE", help="settings of the judge"
    )
    made.add_argument("--seed", type=whole(0), default=0)
    add_traceback(made)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; 2 with one line on standard error for what the user can mend."""
    args = parser().parse_args(arguments)

    def work() -> int:
        import numpy as np

        for run_folder in args.runs:
            print("\n".join(lines_of(run_folder, args)))
        if args.revenue:
            print("\n".join(guarantee_lines(args.trials, np.random.default_rng(args.seed))))
        return 0

    return guarded(work, traceback=args.traceback)


if __name__ == "__main__":
    sys.exit(guarded(main))
