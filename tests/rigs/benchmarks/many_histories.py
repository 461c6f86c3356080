"""A thousand short histories with bm25, offline: peak memory and open files, in threads and in worker processes.

`python -m tests.rigs.benchmarks.many_histories threads|processes` makes one measurement in this process and prints it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.rigs.benchmarks.measured import ROOT, Measured

HISTORIES, QUESTIONS, TURNS = 1000, 5, 60
MOST_BYTES, MOST_FILES = 600 << 20, 200


def many_histories() -> list[Measured]:
    """Peak memory and open files, in threads and in worker processes."""
    lines = []
    for how in ("threads", "processes"):
        figures = measured(how)
        what = f"{HISTORIES:,} histories x {QUESTIONS} questions, bm25, {how}"
        memory, files = figures["bytes"], figures["files"]
        lines.append(
            Measured(f"{what}: peak memory", f"{memory >> 20} MiB", f"<= {MOST_BYTES >> 20} MiB", memory <= MOST_BYTES)
        )
        lines.append(Measured(f"{what}: open files", str(files), f"<= {MOST_FILES:,}", files <= MOST_FILES))
    return lines


def measured(how: str) -> dict[str, int]:
    """Peak memory over all processes, in bytes, and the largest number of open files of a process; measured in a separate process."""
    command = [sys.executable, "-m", "tests.rigs.benchmarks.many_histories", how]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    figures: dict[str, int] = json.loads(done.stdout)
    return figures


class Watched:
    """Peak memory and open files of this process and its workers, sampled every fifth of a second."""

    def __init__(self) -> None:
        self.bytes = self.files = 0
        self._ended = threading.Event()

    def look(self) -> None:
        """Take one sample."""
        pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children() if child.pid)]
        self.bytes = max(self.bytes, sum(map(own_bytes, pids)))
        self.files = max([self.files, *map(open_files, pids)])

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Sample repeatedly while the block runs."""

        def look_on() -> None:
            while not self._ended.wait(0.2):
                self.look()

        thread = threading.Thread(target=look_on, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()
            self.look()


def own_bytes(pid: int) -> int:
    """Memory of a process, including its share of shared pages; 0 for an ended process."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:")), 0)


def open_files(pid: int) -> int:
    """Number of open files of a process; 0 for an ended process."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def histories(count: int) -> Any:
    """Cases that are created when they are read, as a large data set parses its cases."""
    from data_loaders.raw import LazyCases

    return LazyCases([f"case-{number}" for number in range(count)], [TURNS] * count, _history)


def _history(number: int) -> Any:
    from data_loaders.schema import Case, Gold, Question, Session, Turn

    rng, words = random.Random(number), [f"word{index}" for index in range(500)]

    def said(length: int) -> str:
        return " ".join(rng.choices(words, k=length))

    turns = tuple(Turn(f"t{turn}", "AB"[turn % 2], said(22), ("user", "assistant")[turn % 2]) for turn in range(TURNS))
    questions = tuple((Question(f"q{asked}", f"Which {said(5)}?"), Gold((said(3),))) for asked in range(QUESTIONS))
    return Case(f"case-{number}", ("A", "B"), (Session("s", turns),), questions)


def work(how: str, folder: Path, count: int = HISTORIES) -> dict[str, int]:
    """Answer all questions; return peak memory and open files.

    Raises:
        RuntimeError: a history was left out.
    """
    from functools import partial

    from eval.executors.processes import in_processes
    from eval.running.loop import run_all
    from eval.running.reader import Reader
    from eval.running.run import Run, Services
    from memsys.embed import HashingEmbedder
    from memsys.llm.meter import Metered
    from memsys.llm.offline.extractive import ExtractiveLLM
    from memsys.prompts import Prompts
    from memsys.systems.bm25 import BM25

    llm, cases = Metered(ExtractiveLLM()), histories(count)
    services = Services(llm, llm, llm, HashingEmbedder(), Prompts())
    reader = Reader("bench", "bench", "reader/segtree", None, 64, 0.0)
    run = Run("bench", folder / "run", cases, cases.sizes, partial(BM25), reader, {"rule": "ab_pair"}, services)
    watched = Watched()
    with watched.watching():
        run_all([run], executor=in_processes(2, 8) if how == "processes" else None)
    finished = len(list(run.folder.glob("cases/*/case.json")))
    if finished != count:
        raise RuntimeError(f"{finished} of {count} histories were finished")
    return {"bytes": watched.bytes, "files": watched.files}


def main(arguments: Sequence[str]) -> int:
    """Print one measurement as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(work(arguments[0], Path(folder))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
