"""Write a table for a paper, in LaTeX: `python -m scripts paper-table segtreemem_t4 [key=value …]`.

Writes `<results>/tables/<table>-<profile>-paper.tex`, for inclusion in a paper, and `…-standalone.tex`, which compiles on its own. The
numbers come from existing runs and score files; no model is called. Settings are those of
`memsys-bench reproduce`, which makes missing runs.
"""

from __future__ import annotations

from collections.abc import Sequence

from eval.files.store import replace_file
from eval.report.paper import paper_table, standalone
from scripts.setup.arguments import verb_parser

GROUP = "publish"


def main(arguments: Sequence[str]) -> int:
    parser = verb_parser("paper-table", __doc__)
    parser.add_argument("table", help="a file of conf/table")
    parser.add_argument("settings", nargs="*", metavar="key=value", help="as memsys-bench reproduce takes them")
    args = parser.parse_args(arguments)
    from scripts.tables.table import finished_table

    table, stem = finished_table(args.table, args.settings)
    for suffix, text in (("paper", paper_table(table)), ("standalone", standalone(table))):
        file = stem.with_name(f"{stem.name}-{suffix}.tex")
        replace_file(file, text)
        print(f"written: {file}")
    return 0
