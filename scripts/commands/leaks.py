"""Check whether an answer key reaches a memory: `python -m scripts leaks mine locomo [key=value …]`.

Builds and reads the memory on data whose gold is replaced by marks (`eval.analysis.leaks`), with offline engines for every model, and
searches everything that the memory, the embedder and the models receive, and every file of the run, for marks. The exit code is 1 if a
mark is found, and 2 if none is found but questions ended in an error, so that not everything was searched.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from eval.analysis.leaks import check
from eval.report.counted import counted
from scripts.assembly.steps import check_no_replay
from scripts.lab.lab import Lab
from scripts.setup.arguments import verb_parser

GROUP = "science"
RUNS_MEMORIES = True
WORDS = "memory dataset"

OFFLINE = ["profile=smoke", "network=false", "models.memory=null", "models.reader=null", "models.embedder=null"]


def main(arguments: Sequence[str]) -> int:
    parser = verb_parser("leaks", __doc__)
    parser.add_argument("settings", nargs="*", metavar="key=value", help="memory=bm25 dataset=locomo data.size=20 …")
    settings = parser.parse_args(arguments).settings
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(*OFFLINE, *settings, f"results={folder}")
        dataset, option = lab.load(), lab.memory()
        run = lab.run(option, dataset)
        check_no_replay(lab.cfg, run, "the search for leaks")
        found = check(replace(run, folder=Path(folder) / "marked"))
    looked = ", ".join(f"{count} {channel}" for channel, count in sorted(found.looked.items()))
    marks = f"{counted(found.marks, 'mark')} in the gold"
    print(f"{option['title']} on {dataset.title}: {marks}; looked into {looked}.")
    if not found.leaks:
        print("No gold reaches the memory, the embedder, a model or a file of the run.")
        return 0
    print("\n".join([f"GOLD LEAKS at {counted(len(found.leaks), 'place')}:", *(f"  {leak}" for leak in found.leaks)]))
    return 1
