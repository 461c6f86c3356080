"""The runner of the campaign: a warm process that forks a child for each task, with a second child that forks the task's commands.

`tests.rigs.campaign.campaign` starts it as `python -m tests.rigs.campaign.forks SHARE SEED PROCESSES FOLDER PART…`; it prints the number of
tasks, then the outcome of each as a line of JSON. It imports the modules that runs import and starts no thread, so that a fork never copies
a lock that another thread holds.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import mkdtemp

from memsys.lean import hide_modules
from tests.rigs.campaign import targets
from tests.rigs.campaign.tasks import PARTS, Task
from tests.rigs.campaign.trial import SIGNALS, Outcome, settings

IMPORTED_BY_RUNS = (
    *("aiohttp.web", "bm25s", "hydra", "jsonschema_rs", "numpy", "pydantic", "uvloop"),
    *("scripts.setup.launch", "scripts.lab.lab", "scripts.commands.run"),
)
"""This list only saves time: a module that is missing here or not installed is imported by each task that needs it."""


def warm() -> None:
    """Run the start-up code that every run needs, as far as it starts no thread.

    Raises:
        RuntimeError: an import started a thread.
    """
    for module in IMPORTED_BY_RUNS:
        with suppress(ImportError), hide_modules("numba"):
            import_module(module)
    from eval.metrics.lexical import nltk_bleu, splitter
    from memsys.tokens import count_tokens
    from scripts.setup.launch import composed

    composed("config", settings("bm25", "http://127.0.0.1:9/v1", Path("unused")))
    count_tokens("a few words")
    splitter()
    nltk_bleu("a few words", "a few other words")
    if threading.active_count() > 1:
        raise RuntimeError(f"the runner must have no threads, found {threading.enumerate()}")
    gc.collect()
    gc.freeze()  # else the garbage collector touches pages, and each child copies them


def run(tasks: Iterable[Task], processes: int, place: Path) -> Callable[[], int]:
    """Run the tasks in forked children, `processes` at a time; print their outcomes; return the next step of this process (or a child)."""
    waiting = deque(tasks)
    under_way: dict[int, tuple[Task, Path]] = {}
    while waiting or under_way:
        while waiting and len(under_way) < processes:
            task, folder = waiting.popleft(), Path(mkdtemp(dir=place))
            task_end, forking_end = socket.socketpair()
            if not os.fork():
                task_end.close()
                return targets.serve(forking_end)
            forking_end.close()
            if not (pid := os.fork()):
                return partial(_done, task, folder, task_end)
            task_end.close()
            under_way[pid] = task, folder
        pid, status = os.wait()
        if pid in under_way:
            task, folder = under_way.pop(pid)
            print(_outcome(task, folder, os.waitstatus_to_exitcode(status)), flush=True)
            shutil.rmtree(folder, ignore_errors=True)
    return lambda: 0


def _done(task: Task, folder: Path, line: socket.socket) -> int:
    """Run one task, and end without waiting for threads of its runs."""
    targets.Forking.line = line
    (own := folder / "task").mkdir()
    try:
        outcome = task(own)
    except Exception as error:
        outcome = Outcome("the campaign itself", defects=[f"{task}: {error!r}"])
    (folder / "outcome.json").write_text(outcome.to_json(), encoding="utf-8")
    sys.stderr.flush()
    os._exit(0)


def _outcome(task: Task, folder: Path, code: int) -> str:
    """A task's outcome as a line; a task without an outcome is a defect."""
    try:
        return (folder / "outcome.json").read_text(encoding="utf-8")
    except FileNotFoundError:
        return Outcome("the campaign itself", defects=[f"{task} ended with exit code {code}"]).to_json()


def hear_signals() -> None:
    """Restore signal handling for children: a process that a shell starts in the background ignores Ctrl-C, and its children would, too."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def main() -> int:
    share, seed, processes, place, *parts = sys.argv[1:]
    hear_signals()
    tasks = [task for part in parts for task in PARTS[part](float(share), int(seed))]
    print(len(tasks), flush=True)
    warm()
    return run(tasks, int(processes), Path(place))()


if __name__ == "__main__":
    sys.exit(main())
