"""What `scripts.report` does, and `scripts.reproduce report=true` at its end."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from data_loaders.schema import Case, DataError
from eval.report.html.build import Wanted, build
from eval.report.html.sources import read_sources
from eval.store import RunError
from scripts.experiment.exits import guarded
from scripts.experiment.run_folder import data_of
from scripts.settings.arguments import add_traceback, as_called, whole


def write_report(
    results: Path,
    out: Path | None = None,
    *,
    root: Path | None = None,
    more_roots: Sequence[Path] = (),
    tables: Sequence[str] = (),
    wanted: Wanted | None = None,
) -> Path:
    """Build the report of a results folder; returns its first page.

    Args:
        out: the report's folder; None takes `<results>/report`.
        root, more_roots: folders of the raw data files, tried in this order.
        tables: names of table files; only these and the runs behind them are shown. Empty: everything.

    Raises:
        RunError: there is nothing to report, or the folder to write to is no report.
    """
    if not results.is_dir():
        raise RunError(f"no folder {results}; name the results folder, such as: python -m scripts.report results")
    wanted = wanted or Wanted(private=(root, *more_roots, os.environ.get("MEMSYS_DATA")))
    sources = read_sources(results, partial(_cases_of, roots=(root, *more_roots)), tables)
    return build(sources, out or results / "report", wanted, lambda step: print(step, file=sys.stderr, flush=True))


def _cases_of(record: Mapping[str, Any], roots: Sequence[Path | None]) -> Sequence[Case]:
    """The cases of a run from the first folder that holds its files: public data and one's own may lie apart."""
    for place, root in enumerate(roots):
        try:
            return data_of(record, root)
        except (DataError, RunError):
            if place == len(roots) - 1:
                raise
    raise AssertionError("no folder is given")


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the report and print where it is."""
    parser = argparse.ArgumentParser(prog=as_called("python -m scripts.report"), description=__doc__)
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
    add_traceback(parser)
    args = parser.parse_args(arguments)

    def work() -> int:
        root, *more = args.data or [None]
        wanted = Wanted(args.title, args.trees, (*args.data, os.environ.get("MEMSYS_DATA")))
        page = write_report(args.results, args.out, root=root, more_roots=more, tables=args.tables, wanted=wanted)
        print(f"open in a browser: {page}")
        return 0

    return guarded(work, traceback=args.traceback)
