"""Show the structures that memories built, from their run folders: `python -m scripts structure RUN [RUN …] [--revenue] …`

Prints the shape of the trees, with the published shape if the memory's configuration is a paper's; further parts on request.
`--triplets N` asks the judge's model (MemTree A.3.8): name it with `--with models.judge=gpt-4o-mini network=true`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from eval.files.run_folder import RunFolder
from eval.report.counted import counted
from eval.structure.tree import Tree
from scripts.assembly.run_folders import data_of, trees_of
from scripts.setup.arguments import add_data_folder, verb_parser, whole

GROUP = "look"


def triplet_lines(trees: Sequence[Tree], count: int, seed: int, overrides: Sequence[str]) -> list[str]:
    """MemTree's triplet test with the judge's model as the annotator."""
    import numpy as np

    from eval.report.shapes import agreement_lines
    from eval.structure.triplets import agreement, ask_triplets, sample_triplets
    from scripts.lab.lab import Lab

    built = Lab(*overrides).models
    triplets = sample_triplets(trees, count, np.random.default_rng(seed))
    agreements = agreement(triplets, ask_triplets(built.judge.llm, built.prompts, trees, triplets))
    engine = " (STAND-IN: an engine without a model)" if built.judge.prices is None else ""
    return agreement_lines(agreements, built.judge.name + engine)


def lines_of(run_folder: Path, args: argparse.Namespace) -> list[str]:
    """All requested parts about one run. Raises RunError if the folder is no run, or its memory has no structure."""
    from eval.report.shapes import evidence_lines, manifold_lines, revenue_lines, shape_lines, token_lines

    record = RunFolder(run_folder).record()
    trees = trees_of(run_folder, record, vectors=args.revenue or args.manifold)
    replaced = record.stand_ins
    lines = [
        f"## {record.name} on {record.dataset['name']} ({record.data_status} data, {counted(len(trees), 'tree')})",
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
        (args.evidence, lambda: evidence_lines(run_folder, data_of(record, args.data).cases)),
        (args.triplets, lambda: triplet_lines(trees, args.triplets, args.seed, args.overrides)),
    ]
    for wanted, part in parts:
        if wanted:
            lines += ["", *part()]
    return [*lines, ""]


def main(arguments: Sequence[str]) -> int:
    made = verb_parser("structure", __doc__)
    made.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a folder below results/runs")
    made.add_argument("--tokens", action="store_true", help="tokens of node texts by depth")
    made.add_argument("--revenue", action="store_true", help="Moseley-Wang revenue, and OTD's guarantee checked")
    made.add_argument("--trials", type=whole(1), default=400, help="random instances of that check")
    made.add_argument("--manifold", action="store_true", help="TiMem's manifold metrics by level (scikit-learn)")
    made.add_argument("--evidence", action="store_true", help="xMemory's evidence density (needs the data)")
    add_data_folder(made)
    made.add_argument(
        "--triplets", type=whole(0), default=0, metavar="N", help="ask N easy and N hard triplets of the judge"
    )
    made.add_argument(
        "--with", dest="overrides", nargs="*", default=[], metavar="KEY=VALUE", help="settings of the judge"
    )
    made.add_argument("--seed", type=whole(0), default=0)
    args = made.parse_args(arguments)
    import numpy as np

    from eval.report.shapes import guarantee_lines

    for run_folder in args.runs:
        print("\n".join(lines_of(run_folder, args)))
    if args.revenue:
        print("\n".join(guarantee_lines(args.trials, np.random.default_rng(args.seed))))
    return 0
