"""A row against an endpoint with a limit of requests per minute: errors, refusals after settling, and the share of the rate used."""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path

from tests.rigs.benchmarks.histories import bench_run, histories_of_words
from tests.rigs.benchmarks.measured import Measured, mock, stats

SETTLED = 10.0
"""Seconds after which refusals count."""


def limited_rate() -> list[Measured]:
    """300 questions at 1,200 requests a minute: 15 seconds."""
    return limited(1200)


def limited_to_sixty() -> list[Measured]:
    """300 questions at 60 requests a minute: five minutes; only with `--only`."""
    return limited(60)


def limited(rpm: int, questions: int = 300) -> list[Measured]:
    """Answer questions against a mock endpoint with this rate limit, which the client does not know."""
    from eval.files.run_folder import read_predictions
    from eval.running.loop import run_all
    from memsys.systems.controls import Recency

    with mock("--latency", "0.1", "--rpm", str(rpm)) as url, tempfile.TemporaryDirectory() as folder:
        run_all([bench_run(url, Path(folder) / "warm", histories_of_words(1, 1), partial(Recency, k=10))])
        run = bench_run(url, Path(folder), histories_of_words(10, questions // 10), partial(Recency, k=10))
        started = time.perf_counter()
        run_all([run])
        seconds, counts = time.perf_counter() - started, stats(url)
        answers = [line for case in (run.folder / "cases").iterdir() for line in read_predictions(case).values()]
    errors = sum(line.outcome != "answered" for line in answers)
    late = sum(moment > SETTLED * min(1.0, seconds / 30) for moment in counts["refused"])
    share = questions / seconds * 60 / rpm
    return [
        Measured(f"errors, {questions} questions at {rpm} RPM", f"{errors} of {len(answers)}", "0", errors == 0),
        Measured(
            f"refusals after settling, {rpm} RPM",
            f"{late} ({len(counts['refused'])} in all, {counts['arrivals']} requests)",
            "≤ 5 %",
            late <= 0.05 * counts["arrivals"],
        ),
        Measured(f"share of {rpm} RPM that is used", f"{share:.3f} ({seconds:.0f} s)", "≥ 0.95", share >= 0.95),
    ]
