"""Make the HTML report of a results folder: `python -m scripts report [RESULTS] [--out FOLDER] [--tables NAME …]`.

It shows every table, compares any two runs question by question, and opens single questions and memories. It reads run folders and table
files alone and holds texts of the data sets: check their licences before you share a report.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from eval.report.html.build import Wanted
from scripts.assembly.run_folders import write_report
from scripts.setup.arguments import verb_parser, whole

GROUP = "look"


def main(arguments: Sequence[str]) -> int:
    parser = verb_parser("report", __doc__)
    parser.add_argument(
        "results", type=Path, nargs="?", default=Path("results"), help="results folder (default: results)"
    )
    parser.add_argument("--out", type=Path, help="folder of the report (default: RESULTS/report)")
    parser.add_argument(
        "--data",
        type=Path,
        nargs="+",
        default=(),
        help="folders of the raw files, tried in turn (default: MEMSYS_DATA, else the download folder)",
    )
    parser.add_argument("--tables", nargs="+", default=(), metavar="NAME", help="only these table files and their runs")
    parser.add_argument("--trees", type=whole(0), default=10, help="histories of each run whose nodes are shown")
    parser.add_argument("--title", default=Wanted().title)
    args = parser.parse_args(arguments)

    wanted = Wanted(args.title, args.trees, (*args.data, os.environ.get("MEMSYS_DATA")))
    page = write_report(args.results, args.out, roots=args.data or [None], tables=args.tables, wanted=wanted)
    print(f"open in a browser: {page}")
    return 0
