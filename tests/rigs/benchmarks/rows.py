"""One row of a table: answering and judging against the ideal, and the bm25 row's memory, seconds and calls."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.rigs.benchmarks.histories import bench_run, histories_of_words
from tests.rigs.benchmarks.measured import Measured, mock, stats, timed
from tests.rigs.benchmarks.table import run_and_judge


def answer_and_judge() -> list[Measured]:
    """1,540 questions, answered and judged at 200 ms, 64 in flight, against the ideal; one question before loads modules and data."""
    from functools import partial

    from eval.judging.judge import Judge
    from eval.judging.score import Judging
    from memsys.prompts import Prompts
    from memsys.systems.controls import Recency
    from scripts.setup.options import load_option

    judge = Judge(**load_option("judge", "segtree"))

    def seconds(url: str, folder: Path, cases: Sequence[Any]) -> float:
        run = bench_run(url, folder, cases, partial(Recency, k=10))
        started = time.perf_counter()
        run_and_judge([run], Judging(judge, run.services.reader, "mock", Prompts()))
        return time.perf_counter() - started

    with mock("--latency", "0.2") as url, tempfile.TemporaryDirectory() as folder:
        seconds(url, Path(folder) / "warm", histories_of_words(1, 1))
        before = stats(url)["answered"]
        taken = seconds(url, Path(folder) / "timed", histories_of_words(10, 154))
        calls = stats(url)["answered"] - before
    ratio = calls * 0.2 / 64 / taken
    return [
        Measured(
            "answer + judge, 1,540 questions after a warm-up of one, 200 ms, 64 in flight: ideal ÷ measured",
            f"{ratio:.3f} ({taken:.1f} s, {calls} calls)",
            "≥ 0.94",
            ratio >= 0.94,
        )
    ]


def bm25_row() -> list[Measured]:
    """The bm25 row on LoCoMo (real where MEMSYS_DATA has it, else the samples): peak memory cold, seconds and calls warm."""
    from data_loaders.schema import DataError
    from data_loaders.source import find

    try:
        find("locomo/locomo10.json")
        data = ["profile=subset", "data.size=all"]
    except DataError:
        data = ["profile=smoke"]
    with mock() as url, tempfile.TemporaryDirectory() as folder:
        ends = [
            f"endpoint.base_url={url}",
            "endpoint.label=mock",
            "models.memory=mock",
            "models.reader=mock",
            "models.judge=mock",
        ]
        command = [
            sys.executable,
            "-m",
            "scripts",
            "run",
            "memory=bm25",
            *data,
            *ends,
            "network=true",
            f"results={folder}",
        ]
        _, peak = timed(command)
        before = stats(url)["arrivals"]
        warm = min(timed(command)[0] for _ in range(3))
        calls = stats(url)["arrivals"] - before
    where = "full LoCoMo" if len(data) == 2 else "the samples (no real LoCoMo here)"
    return [
        Measured(f"peak memory, bm25 row on {where}", f"{peak / 1024:.0f} MB", "≤ 250 MB", peak <= 250 * 1024),
        Measured("provider calls of a warm rerun", str(calls), "0", calls == 0),
        Measured("seconds of a warm rerun, whole process", f"{warm:.2f} s", "≤ 2 s", warm <= 2.0),
    ]
