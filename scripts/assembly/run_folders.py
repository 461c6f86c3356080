"""Run folders: the record, data set and trees of a finished run, the list of all runs of a results folder (`runs list`), and its report."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from data_loaders.schema import Case, DataError
from eval.files.run_folder import COMPLETE, PREDICTIONS, RunFolder, RunRecord
from eval.files.store import RunError, read_lines
from eval.report.counted import counted
from eval.structure.tree import Tree, read_trees

if TYPE_CHECKING:
    from eval.report.html.build import Wanted
    from scripts.assembly.datasets import Data


@dataclass(frozen=True, slots=True)
class ListedRun:
    path: Path
    record: RunRecord
    """The content of `run.json`; empty if it is missing or unreadable."""
    state: str
    """`finished`, `unfinished`, `in use` or `damaged`."""
    detail: str
    """Numbers of finished cases and failed questions."""
    started: datetime
    """Time of the last start."""


def folders(results: Path) -> list[ListedRun]:
    """All runs below a results folder, by data set and memory."""
    return [_run(path) for path in sorted((results / "runs").glob("*/*")) if path.is_dir()]


def _run(path: Path) -> ListedRun:
    run, record = RunFolder(path), RunRecord()
    started = datetime.fromtimestamp((run.file if run.file.is_file() else path).stat().st_mtime)
    try:
        if run.is_linked:
            raise RunError("a link: the run may lie outside the results; remove the link itself")
        if run.file.is_file():
            record = run.record()
        state, detail = _state(path, record)
    except RunError as error:
        state, detail = "damaged", str(error)
    return ListedRun(path, record, "in use" if held(path) else state, detail, started)


def _state(path: Path, record: RunRecord) -> tuple[str, str]:
    done = RunFolder(path).written(COMPLETE)
    lines = [line for one in done for line in read_lines(one.with_name(PREDICTIONS))]
    failed = sum(line.get("outcome") == "error" for line in lines)
    total = record.cases
    if record.imported:
        return "finished" if len(done) == total else "unfinished", counted(len(lines), "imported answer")
    detail = (counted(len(done), "case") if total is None else f"{len(done)} of {counted(total, 'case')}") + (
        f", {counted(failed, 'error')}" if failed else ""
    )
    return "finished" if len(done) == total and not failed else "unfinished", detail


def held(path: Path) -> bool:
    """Whether another process is writing the run."""
    lock = path / ".lock"
    if lock.is_symlink() or not lock.is_file():
        return False
    with lock.open("rb") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def sizes(runs: Sequence[ListedRun]) -> list[int]:
    """Bytes of each run on the disk; a file with several hard links counts for the first run that has it."""
    seen: set[tuple[int, int]] = set()
    found = []
    for run in runs:
        total = 0
        for path in run.path.rglob("*"):
            known = path.lstat()
            if (known.st_dev, known.st_ino) not in seen:
                seen.add((known.st_dev, known.st_ino))
                total += known.st_blocks * 512
        found.append(total)
    return found


def listed(runs: Sequence[ListedRun]) -> list[str]:
    """The table of `runs list`."""
    rows = [("memory", "data set", "started", "state", "size", "folder")]
    taken = sizes(runs)
    for run, size in zip(runs, taken, strict=True):
        name = run.record.name or RunFolder(run.path).memory or run.path.name
        when, state = f"{run.started:%Y-%m-%d %H:%M}", f"{run.state} ({run.detail})" if run.detail else run.state
        rows.append((name, run.path.parent.name, when, state, shown(size), str(run.path)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [*lines, f"{counted(len(runs), 'run')}, {shown(sum(taken))}"]


def shown(size: int) -> str:
    """Bytes in readable units."""
    amount, units = float(size), ("B", "KB", "MB", "GB", "TB")
    for unit in units[:-1]:
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} {units[-1]}"


def data_of(record: RunRecord, root: Path | None) -> Data:
    """Load the data of a run again, from the file that `dataset.file` named.

    Args:
        root: folder of the raw files; None takes the default one. A run on samples does not read it.

    Raises:
        DataError: the files are missing.
        RunError: the data set has no file in `conf/dataset`, or the files differ from those of the run.
    """
    from scripts.assembly.datasets import data
    from scripts.settings.schema import DataCut
    from scripts.setup.options import load_option

    known, sample = record.dataset, record.data_status == "sample"
    try:
        cut = DataCut(
            source="sample" if sample else "real",
            root=None if root is None or sample else str(root),
            unpinned=record.data_status == "unpinned",
            **{name: known[name] for name in ("transform", "size", "max_cases", "seed")},
        )
    except (KeyError, ValueError) as error:
        raise RunError(f"run.json does not say how the data set was cut: {error}") from error
    option = load_option("dataset", known["name"])
    loaded = data(cut, {**option, "file": record.data_file or option["file"]})
    if differing := [name for name, value in loaded.settings.items() if known.get(name) != value]:
        raise RunError(f"the data set differs from that of the run in {', '.join(differing)}")
    return loaded


def trees_of(run_folder: Path, record: RunRecord, *, vectors: bool = False) -> list[Tree]:
    """Read the trees of a run, with the vectors of their nodes if `vectors` is true.

    Raises:
        RunError: the memory has no tree, no case is finished, or the run did not keep vectors.
    """
    trees = read_trees(run_folder, vectors=vectors)
    if not trees:
        raise RunError(f"{run_folder}: no finished case with nodes; {record.name} may have no tree")
    return trees


def write_report(
    results: Path,
    out: Path | None = None,
    *,
    roots: Sequence[Path | None] = (None,),
    tables: Sequence[str] = (),
    wanted: Wanted | None = None,
) -> Path:
    """Build the report of a results folder; returns its first page.

    Args:
        out: the report's folder; None takes `<results>/report`.
        roots: folders of the raw data files, tried in this order; None is the default one.
        tables: names of table files; only these and their runs are shown. Empty: everything.

    Raises:
        RunError: there is nothing to report, or the target folder is no report.
    """
    from eval.report.html.build import Wanted, build
    from eval.report.html.sources import read_sources
    from scripts.setup.options import load_option

    if not results.is_dir():
        raise RunError(f"no folder {results}; name the results folder, such as: python -m scripts report results")
    wanted = wanted or Wanted(private=(*roots, os.environ.get("MEMSYS_DATA")))
    cases_of = partial(_cases_of, roots=roots)
    sources = read_sources(results, cases_of, tables, lambda name: str(load_option("dataset", name)["aggregate"][0]))
    return build(sources, out or results / "report", wanted, lambda step: print(step, file=sys.stderr, flush=True))


def _cases_of(record: RunRecord, roots: Sequence[Path | None]) -> Sequence[Case]:
    """The cases of a run from the first folder that holds its files: public and private data may be in different folders."""
    for place, root in enumerate(roots):
        try:
            return data_of(record, root).cases
        except (DataError, RunError):
            if place == len(roots) - 1:
                raise
    raise AssertionError("no folder is given")
