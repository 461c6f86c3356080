"""Run, score, show: the steps that every entry point shares."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock

from eval.run import run_all
from eval.score import Judging, Metric, score_evidence, score_judge, score_lexical
from eval.tables import Table
from eval.work import Progress, Run
from memsys.llm.pricing import SpendingCapReached


class Meter:
    """Questions done, their outcomes and the time to go, on standard error; silent for the first two seconds.

    A terminal shows a line that is written over; anything else gets a line every fifteen seconds.
    """

    def __init__(self, label: str, total: int) -> None:
        self.label, self.total, self.done = label, total, 0
        self.outcomes: Counter[str] = Counter()
        self._started = self._shown = time.monotonic()
        self._lock = Lock()
        self._used = False

    def step(self, outcome: str = "") -> None:
        """One more is done."""
        with self._lock:
            self.done += 1
            if outcome:
                self.outcomes[outcome] += 1
            now = time.monotonic()
            pause = 0.5 if sys.stderr.isatty() else 15.0
            if now - self._started > 2.0 and now - self._shown > pause:
                self._shown = now
                self._show(now)

    def leave(self, count: int) -> None:
        """So many need not be done."""
        with self._lock:
            self.total -= count

    def _show(self, now: float) -> None:
        self._used = True
        left = (now - self._started) / self.done * max(0, self.total - self.done)
        failed = f", {self.outcomes['error']} errors" if self.outcomes["error"] else ""
        text = f"{self.label}: {self.done}/{self.total}{failed}, {_clock(left)} to go"
        sys.stderr.write(f"\r{text:<79}" if sys.stderr.isatty() else text + "\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Leave the line."""
        if self._used and sys.stderr.isatty():
            sys.stderr.write("\r" + " " * 79 + "\r")


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


@contextmanager
def meter(label: str, total: int) -> Iterator[Meter]:
    """A progress line for a loop of known length."""
    shown = Meter(label, total)
    try:
        yield shown
    finally:
        shown.end()


def execute(runs: Sequence[Run], questions: int, threads: int, label: str = "answering") -> None:
    """Answer every question of every run that has no answer yet."""
    with meter(label, questions) as line:

        def told(progress: Progress) -> None:
            if progress.question_id:
                line.step(progress.outcome)
            line.leave(progress.kept)

        run_all(runs, threads=threads, told=told)


def execute_capped(runs: Sequence[Run], questions: int, threads: int) -> str:
    """`execute` as far as the spending cap allows; why it stopped, for the caption, or nothing."""
    try:
        execute(runs, questions, threads)
    except SpendingCapReached as error:
        return f"Stopped: {error}."
    return ""


def score(
    run: Run, metrics: Sequence[Metric], judges: Mapping[str, Judging], k_evidence: int, questions: int
) -> dict[str, Path]:
    """Score files of a run by metric: lexical, evidence and judges."""
    files = score_lexical(run, metrics)
    files[f"evidence@{k_evidence}"] = score_evidence(run, k_evidence)
    for name, judging in judges.items():
        with meter(f"judging {run.name}", questions * judging.repeats) as line:
            files[f"judge_{name}"] = score_judge(run, judging, line.step)
    return files


def complain(table: Table, limit: float) -> int:
    """1, and a line that says so, when a larger share of a cell's questions than `limit` is not scored; else 0."""
    if table.missing_share <= limit:
        return 0
    print(
        f"error: {table.missing_share:.1%} of the questions of a cell are not scored (limit {limit:.1%})",
        file=sys.stderr,
    )
    return 1
