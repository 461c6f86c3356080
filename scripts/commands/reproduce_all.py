"""Make every table and figure of four papers: `python -m scripts reproduce-all [only=timem] [processes=2] profile=smoke|subset|paper …`.

`only=` selects the names that begin with it. A list of commands, seconds, files and outcomes is printed and written to
`results/tables/index-<profile>.md`. A table or figure that fails is listed with its error and does not stop the others; the exit code
is then 1. `scripts.tables.everything` describes how the work is spread over processes.
"""

from __future__ import annotations

from collections.abc import Sequence

GROUP = "run"


def main(arguments: Sequence[str]) -> int:
    from scripts.setup.arguments import verb_parser
    from scripts.tables.everything import reproduce_all

    parser = verb_parser("reproduce-all", __doc__)
    parser.add_argument("settings", nargs="*", metavar="key=value", help="of memsys-bench reproduce")
    return reproduce_all(parser.parse_args(arguments).settings)
