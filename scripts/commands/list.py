"""List memories, data sets, judges, tables or runs: `python -m scripts list memories|datasets|judges|tables|runs`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from data_loaders.source import UNTESTED
from scripts.assembly.run_folders import folders
from scripts.assembly.run_folders import listed as run_table
from scripts.setup.arguments import verb_parser
from scripts.setup.options import load_option, options

GROUP = "look"

GROUPS = {"memories": "memory", "datasets": "dataset", "judges": "judge", "tables": "table"}
"""Folders of `conf` by their content."""


def listed(kind: str) -> list[str]:
    """Name and title of each file of a group, aligned; for data sets also whether the loader is untested."""
    names = options(GROUPS[kind])
    width = max(map(len, names), default=0)
    found = {name: load_option(GROUPS[kind], name) for name in names}
    marks = {name: f"; {UNTESTED}" for name in names if kind == "datasets" and found[name].get("untested")}
    return [f"{name:<{width}}  {found[name].get('title', '')}{marks.get(name, '')}".rstrip() for name in names]


def main(arguments: Sequence[str]) -> int:
    parser = verb_parser("list", __doc__)
    parser.add_argument("kind", nargs="?", choices=(*GROUPS, "runs"), help="default: the names of all but the runs")
    parser.add_argument("--results", type=Path, default=Path("results"), help="of runs: the results folder")
    args = parser.parse_args(arguments)

    if args.kind is None:
        every = {kind: options(group) for kind, group in GROUPS.items()}
        print("\n\n".join(f"{kind} ({len(names)}): {', '.join(names)}" for kind, names in every.items()))
        return 0
    lines = run_table(folders(args.results)) if args.kind == "runs" else listed(args.kind)
    print("\n".join(lines))
    return 0
