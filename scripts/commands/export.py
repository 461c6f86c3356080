"""Write a run in the format of others: `python -m scripts export RUN --format eee|hf|mem0 --to FOLDER [--data ROOT]`.

eee: Every Eval Ever's schema, one file with the scores of the run and one with its answers, below `data/` as its datastore has them.
hf: a folder that `datasets.load_dataset` loads, one row a question, with a README.
mem0: the file that Mem0's evaluation writes and its forks read, for those who want to judge the answers themselves.

Question and gold are read from the data set that the run names; its licence goes with them. Failed answers are left out of `mem0`,
which has no word for them, and the command says how many.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from scripts.answers.every_eval_ever import write_every_eval_ever
from scripts.answers.finished import FinishedRun, finished_run
from scripts.answers.hugging_face import write_hugging_face
from scripts.answers.mem0_form import write_mem0
from scripts.settings.arguments import as_called

GROUP = "publish"

WRITERS: Mapping[str, Callable[[FinishedRun, Path], list[str]]] = {
    "eee": write_every_eval_ever,
    "hf": write_hugging_face,
    "mem0": write_mem0,
}
"""Each returns what was written, and what was left out, as lines."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files and name them; 2 with one line on standard error for what the user can mend."""
    parser = argparse.ArgumentParser(
        prog=as_called("python -m scripts export"),
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, help="a folder below results/runs")
    parser.add_argument("--format", choices=list(WRITERS), required=True)
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER", help="where the files are written")
    parser.add_argument(
        "--data", type=Path, help="folder of the raw files (default: MEMSYS_DATA, else the download folder)"
    )
    args = parser.parse_args(arguments)

    print("\n".join(WRITERS[args.format](finished_run(args.run, args.data), args.to)))
    return 0
