"""The HTML report of a results folder, from its run folders and table files."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from data_loaders.schema import Case, DataError
from eval.files.run_folder import RunRecord
from eval.files.store import RunError
from eval.report.html.build import Wanted, build
from eval.report.html.sources import read_sources
from scripts.assembly.run_folders import data_of


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
        tables: names of table files; only these and their runs are shown. Empty: everything.

    Raises:
        RunError: there is nothing to report, or the target folder is no report.
    """
    if not results.is_dir():
        raise RunError(f"no folder {results}; name the results folder, such as: python -m scripts report results")
    wanted = wanted or Wanted(private=(root, *more_roots, os.environ.get("MEMSYS_DATA")))
    sources = read_sources(results, partial(_cases_of, roots=(root, *more_roots)), tables)
    return build(sources, out or results / "report", wanted, lambda step: print(step, file=sys.stderr, flush=True))


def _cases_of(record: RunRecord, roots: Sequence[Path | None]) -> Sequence[Case]:
    """The cases of a run from the first folder that holds its files: public and private data may be in different folders."""
    for place, root in enumerate(roots):
        try:
            return data_of(record, root)
        except (DataError, RunError):
            if place == len(roots) - 1:
                raise
    raise AssertionError("no folder is given")
