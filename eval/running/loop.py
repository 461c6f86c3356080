"""The run loop: it works on every cell of every run; a cell is one memory on one case.

`eval.running.cells` decides when a cell is opened, `eval.running.case` runs one, `eval.running.question` reads, answers and saves
one question. The questions of one due point are read concurrently in a pool of their own, so that a cell that waits for its questions
never holds a thread that they need.

Runs that differ only in read knobs share a cell: it is built once, and every run reads from it with its own settings. Each run folder
gets the same content as if the run had been alone, including the cost of building.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

from eval.files.run_folder import RunFolder
from eval.files.store import MOST_OPEN, RunError, locked, replace_file
from eval.running.case import run_case
from eval.running.cells import OpenCell, Opening
from eval.running.pool import UrgentPool
from eval.running.question import AnswerPools
from eval.running.run import OnAnswer, OnProgress, Run, build_memory, ignore_answer, innermost
from eval.running.work import Build, Executor

OTHER_FILES = 256
"""Open files of a run in addition to the locks of its folders and the files of its cells: connections, the cache, modules."""


def run_all(
    runs: Sequence[Run],
    *,
    threads: int | None = None,
    on_progress: OnProgress = lambda progress: None,
    on_answer: OnAnswer = ignore_answer,
    executor: Executor | None = None,
) -> None:
    """Run every cell of every run that is not complete, those with the longest chain of calls first.

    Args:
        threads: maximum number of memories that are built at once; None: as many as keep the endpoint busy, or a few without an endpoint.
        on_answer: called when an answer is saved (`eval.judging.score`); with an executor, when the answer's cell is finished.
        executor: works on the cells instead of the threads of this process (`eval.executors`).

    Raises:
        EndOfRun: the spending cap was reached, the user asked for a stop, or a server is gone. Questions that were not reached have no
            line and are counted as not reached.
        DataError: a question is asked after a turn that does not exist.
        RunError: the working folder changed during the run, and the run folders are below it.
    """
    from threadpoolctl import threadpool_limits

    sharing: dict[Any, list[Run]] = {}  # a run that shares its build with no other is a group of its own
    for run in {run.folder: run for run in runs}.values():
        sharing.setdefault((run.shared, run.questions) if run.shared else run.folder, []).append(run)
    groups = list(sharing.values())
    allow_files(len(runs) + MOST_OPEN + OTHER_FILES)
    with ExitStack() as locks:
        # One core per matrix product: results are the same on every machine, and the cells keep the cores busy.
        locks.enter_context(threadpool_limits(1))
        # Scoring, which follows, needs both as they are now, whatever a memory does to them.
        locks.callback(sys.path.__setitem__, slice(None), sys.path[:])
        locks.callback(sys.setrecursionlimit, sys.getrecursionlimit())
        for folder in sorted({run.folder for run in runs}):
            locks.enter_context(locked(folder))
        for run in runs:
            replace_file(
                RunFolder(run.folder).file, json.dumps(run.record.content, indent=1, sort_keys=True, default=str)
            )
        clear_up(runs)
        if executor is not None:
            every = ((tuple(own), group) for group, own in enumerate(groups))
            builds = [Build(own, group, index) for own, group in every for index in range(len(own[0].sizes))]
            executor(sorted(builds, key=lambda build: -build.size), on_progress, on_answer)  # the largest case first
            return
        here = Path.cwd()
        _run_cells(Opening(groups, threads), on_progress, on_answer)
        if Path.cwd() != here and not runs[0].folder.is_absolute():
            moved = f"a thread of a memory or a library has changed the working folder from {here} to {Path.cwd()}"
            raise RunError(f"{moved}, so results are in both; name an absolute folder with results=")


def clear_up(runs: Sequence[Run]) -> None:
    """Let services delete the data that killed runs left in them, and print the amount on standard error."""
    for run in runs:
        lives_elsewhere = run.control is None and not getattr(innermost(run.build), "REPLAYABLE", True)
        if lives_elsewhere and run.cases and (said := build_memory(run, run.cases[0]).clear_up()):
            print(f"note: {run.name}: {said}", file=sys.stderr, flush=True)


def _run_cells(opening: Opening, on_progress: OnProgress, on_answer: OnAnswer) -> None:
    """Give each opened cell a thread, and wait for all; the first failure ends the run once the open cells have ended."""
    in_flight = sum(gauge.load()[1] for gauge in opening.gauges)
    failures: list[BaseException] = []
    with (
        closing(UrgentPool(1, "answer")) as saving,
        closing(UrgentPool(max(64, 2 * in_flight), "question", spacing=opening.spacing)) as questions,
    ):
        slots = threading.Semaphore(max(opening.outstanding, 2 * in_flight))
        lanes = AnswerPools(questions, saving, slots, on_answer)
        threads: list[threading.Thread] = []

        def work(cell: OpenCell) -> None:
            try:
                run_case(cell.group, cell.group[0].cases[cell.index], lanes, cell, on_progress)
            except BaseException as error:
                failures.append(error)
                opening.stop()
            finally:
                opening.ended(cell)

        try:
            for cell in opening:
                threads = [thread for thread in threads if thread.is_alive()]
                threads.append(threading.Thread(target=work, args=(cell,), name="cell", daemon=True))
                threads[-1].start()
            for thread in threads:
                thread.join()
        finally:  # an interrupt, also of the wait above, waits for the open cells
            opening.stop()
            for thread in threads:
                thread.join()
    if failures:
        raise failures[0]


def allow_files(count: int) -> None:
    """Raise the open-file limit to `count` files in addition to those that are open now, or to the maximum allowed.

    Where the system refuses (macOS above `kern.maxfilesperproc`, even below the stated maximum), the limit stays as it is.
    """
    allowed, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + len(os.listdir("/dev/fd"))
    if allowed != resource.RLIM_INFINITY and allowed < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(
                resource.RLIMIT_NOFILE, (wanted if maximum == resource.RLIM_INFINITY else min(wanted, maximum), maximum)
            )
