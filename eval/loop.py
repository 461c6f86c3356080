"""The pool of cells: a cell is one memory on one case, and every open cell of every run is worked on here, longest first.

`eval.case` lives through one cell, `eval.question` reads, answers and saves one question. The questions of one due point are read
concurrently in a pool of their own, so that a cell that waits for its questions never holds a thread that they need.

Runs that differ only in read knobs share a cell: it is built once, and every run reads from it with its own settings. Each run folder
gets what it would hold if the run had been alone, the cost of building included.
"""

from __future__ import annotations

import json
import resource
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from typing import Any

from eval.case import run_case
from eval.executors.cells import Executor, cells_of
from eval.question import Lanes
from eval.run import OnProgress, Run, ignore_progress
from eval.store import locked, replace_file


def run_all(
    runs: Sequence[Run],
    *,
    threads: int = 8,
    on_progress: OnProgress = ignore_progress,
    executor: Executor | None = None,
) -> None:
    """Run every cell of every run that is not complete, longest first.

    Args:
        threads: memories that are built at once.
        executor: works on the cells in place of the threads of this process (`eval.executors`).

    Raises:
        EndOfRun: the spending cap was reached, the user asked for a stop, or a server is gone. Questions that were not reached have no
            line and are counted as not reached.
        DataError: a question is asked after a turn that does not exist.
    """
    from threadpoolctl import threadpool_limits

    groups, open_cells = _sharing_builds(runs), 2 * threads
    allow_files(len(runs) + 3 * open_cells * max(map(len, groups), default=0) + 256)
    with ExitStack() as locks:
        # One core per matrix product: the sums are the same on every machine, and the cells keep the cores busy.
        locks.enter_context(threadpool_limits(1))
        for folder in sorted({run.folder for run in runs}):
            locks.enter_context(locked(folder))
        for run in runs:
            replace_file(run.folder / "run.json", json.dumps(run.record, indent=1, sort_keys=True, default=str))
        if executor is None:
            _run_cells(groups, threads, open_cells, on_progress)
        else:
            executor(cells_of(groups), on_progress)


def _run_cells(groups: Sequence[Sequence[Run]], threads: int, open_cells: int, on_progress: OnProgress) -> None:
    # More cells are open than are being built: one that only waits for its last answers does not hold up the next build.
    with ThreadPoolExecutor(open_cells, "cell") as cells, ThreadPoolExecutor(64, "question") as questions:
        lanes = Lanes(threads, questions, max((run.outstanding for group in groups for run in group), default=1))
        work = [(size, group, index) for group in groups for index, size in enumerate(group[0].sizes)]
        work.sort(key=lambda cell: -cell[0])
        stop = threading.Event()
        futures = [cells.submit(_run_cell, group, index, lanes, on_progress, stop) for _, group, index in work]
        try:
            for future in as_completed(futures):
                future.result()
        except BaseException:
            stop.set()
            cells.shutdown(cancel_futures=True)
            raise


def _run_cell(group: Sequence[Run], index: int, lanes: Lanes, on_progress: OnProgress, stop: threading.Event) -> None:
    if not stop.is_set():
        run_case(group, group[0].cases[index], lanes, on_progress)


def _sharing_builds(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs grouped by the build that they share; a run that shares none is a group of its own."""
    groups: dict[Any, list[Run]] = {}
    for run in {run.folder: run for run in runs}.values():
        groups.setdefault((run.shared, run.questions) if run.shared else run.folder, []).append(run)
    return list(groups.values())


def allow_files(count: int) -> None:
    """Raise the open-file limit to `count`, or to the maximum allowed: a run needs one file and an open cell three."""
    allowed, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed != resource.RLIM_INFINITY and allowed < count:
        raised = count if maximum == resource.RLIM_INFINITY else min(count, maximum)
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, maximum))
