"""The cost of twenty kills of a run."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.rigs.benchmarks.measured import ROOT, Measured, mock, stats, timed

KILLED = """
import sys
from functools import partial
from pathlib import Path
from eval.running.loop import run_all
from memsys.systems.memtree import MemTree
from tests.rigs.benchmarks.histories import bench_run, histories_of_words
run_all([bench_run(sys.argv[1], Path(sys.argv[2]), histories_of_words(3, 20), partial(MemTree), in_flight=8)], threads=3)
"""


def kill(times: int = 20) -> list[Measured]:
    """Kill a run with -9 at random moments; then let it end and compare it with an undisturbed run."""
    rng = random.Random(11)
    with tempfile.TemporaryDirectory() as undisturbed, tempfile.TemporaryDirectory() as disturbed:
        with mock("--latency", "0.03") as url:
            whole = timed([sys.executable, "-c", KILLED, url, undisturbed])[0]
            calls = stats(url)["answered"]
        with mock("--latency", "0.03") as url:
            killed = 0
            for _ in range(times):
                process = subprocess.Popen([sys.executable, "-c", KILLED, url, disturbed], cwd=ROOT)
                try:
                    process.wait(timeout=rng.uniform(0.4, 1.2) * whole / 4)
                except subprocess.TimeoutExpired:
                    process.kill()
                    killed += 1
                process.wait()
            timed([sys.executable, "-c", KILLED, url, disturbed])
            repeated = stats(url)["repeated"]
        same = _predictions(Path(undisturbed)) == _predictions(Path(disturbed))
    return [
        Measured(
            f"calls asked twice after {killed} kills, 8 in flight ({calls} calls in all)",
            str(repeated),
            f"≤ {8 * killed}",
            repeated <= 8 * killed,
        ),
        Measured("predictions equal an undisturbed run's", str(same), "True", same and killed > 0),
    ]


def _predictions(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("predictions.jsonl"))}
