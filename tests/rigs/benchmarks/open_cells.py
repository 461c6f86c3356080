"""512 cells open at once, each a memory that waits for its calls: memory beyond the histories themselves.

`python -m tests.rigs.benchmarks.open_cells URL FOLDER` makes the measurement in this process and prints it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests.rigs.benchmarks.measured import ROOT, Measured, mock

TURNS, QUESTIONS = 20, 1
MOST_BYTES = 1 << 30


def open_cells() -> list[Measured]:
    """Peak memory above that of the process with its histories loaded, while the maximum number of cells is open."""
    from eval.running.cells import OPEN

    with mock("--latency", "2") as url, tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.rigs.benchmarks.open_cells", url, folder]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    figures: dict[str, int] = json.loads(done.stdout)
    return [
        Measured(
            f"{figures['open']} cells of memtree open at once: memory beyond their data",
            f"{figures['bytes'] >> 20} MiB",
            f"<= {MOST_BYTES >> 20} MiB, {OPEN} cells",
            figures["bytes"] <= MOST_BYTES and figures["open"] == OPEN,
        )
    ]


def main(arguments: Sequence[str]) -> int:
    """Print the peak memory beyond the data, in bytes, and the largest number of open cells."""
    from eval.running.cells import OPEN
    from eval.running.loop import run_all
    from memsys.systems.memtree import MemTree
    from tests.rigs.benchmarks.histories import bench_run, histories_of_words
    from tests.rigs.benchmarks.many_histories import Watched

    class WatchedCells(Watched):
        cells = 0

        def look(self) -> None:
            super().look()
            self.cells = max(self.cells, sum(thread.name == "cell" for thread in threading.enumerate()))

    histories = histories_of_words(OPEN, QUESTIONS, TURNS)
    run = bench_run(arguments[0], Path(arguments[1]), histories, partial(MemTree), in_flight=OPEN)
    before, watched = Watched(), WatchedCells()
    before.look()
    with watched.watching():
        run_all([run])
    print(json.dumps({"bytes": watched.bytes - before.bytes, "open": watched.cells}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
