"""Write a results card with everything that a reviewer asks: `python -m scripts card RUN [RUN …]` or `… TABLE [key=value …]`.

A card of runs is made from their folders alone, without the data: scores, outcomes, models, prompts' hashes, data, seeds, versions, costs,
failures. Scores are means over all questions with an answer, because categories are in the data only. A card of a table has the table's
own cells first, with detectable differences, and then its runs; its settings are those of `memsys-bench reproduce`. Nothing is run.

The card is printed, and written to `<results>/cards/` or to the place given by `--to`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from eval.files.run_folder import RunFolder
from eval.files.store import RunError, replace_file
from eval.report.card import run_card, table_card
from scripts.setup.arguments import verb_parser
from scripts.setup.options import options

GROUP = "publish"


def main(arguments: Sequence[str]) -> int:
    parser = verb_parser("card", __doc__)
    parser.add_argument(
        "what", nargs="+", metavar="RUN|TABLE key=value", help="run folders, or a table and its settings"
    )
    parser.add_argument("--to", type=Path, metavar="FILE", help="the card's file")
    args = parser.parse_args(arguments)
    if "/" in args.what[0] or Path(args.what[0]).is_dir():
        folders = [Path(name) for name in args.what]
        text = "\n".join(run_card(folder, RunFolder(folder).record()) for folder in folders)
        others = f"-and-{len(folders) - 1}" if folders[1:] else ""
        file = RunFolder(folders[0]).results / "cards" / f"{folders[0].name}{others}.md"
    elif args.what[0] not in options("table"):
        raise RunError(
            f"{args.what[0]} is neither a run folder (results/runs/<dataset>/<memory>-<identity>) nor a table "
            "(python -m scripts list tables)"
        )
    else:
        from scripts.tables.table import finished_table

        folders = []
        table, stem = finished_table(args.what[0], args.what[1:])
        every = (RunFolder(folder) for row in table.rows for folder in row.runs.values())
        text = table_card(table, {run.path: run.record() for run in every if run.file.is_file()})
        file = stem.parents[1] / "cards" / f"{stem.name}.md"
    file = args.to or file
    replace_file(file, text)
    several = f" (one card of {len(folders)} runs; a card of each: one RUN at a time)" if folders[1:] else ""
    print(f"{text}\nwritten: {file}{several}")
    return 0
