"""The progress line: what is done, what is on its way, and what is being waited for since when.

It is shown from its own thread, so that it goes on telling when nothing happens: a server that accepts a call and never answers, a
clustering that takes minutes. A terminal shows a line that is written over; anything else gets a line every fifteen seconds.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from eval.run import Progress
from memsys.llm.traffic import Traffic

SILENT, TERMINAL_PAUSE, FILE_PAUSE = 2.0, 0.5, 15.0
"""Seconds: of silence at the beginning, and between lines on a terminal and in a file."""
LONG = 10.0
"""Seconds after which what is waited for is named."""


@dataclass
class _Build:
    """A history that a memory is living through."""

    units: int
    written: int
    moved: float
    """When its last unit was written, or its last question answered."""


class ProgressLine:
    """Questions done, units written, calls and tokens, the time to go, and what is waited for; on standard error.

    Args:
        total: questions, or whatever `step` counts.
        histories: builds that are expected; 0 where nothing is built.
        traffic: what is on its way, by endpoint.
        clock: seconds, never going back.
    """

    def __init__(
        self,
        label: str,
        total: int,
        *,
        histories: int = 0,
        traffic: Callable[[], Sequence[Traffic]] = lambda: (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.label, self.total, self.histories, self.done = label, total, histories, 0
        self.outcomes: Counter[str] = Counter()
        self._traffic, self._clock = traffic, clock
        self._started = self._shown = clock()
        self._first_answer: float | None = None
        self._begun = self._units = self._written = 0
        self._open: dict[tuple[str, str], _Build] = {}
        self._before = _sums(traffic())
        self._lock = threading.Lock()
        self._used = False
        self._ended = threading.Event()
        self._beating = threading.Thread(target=self._beat_on, name="progress", daemon=True)

    def start(self) -> None:
        """Show the line from now on, whether or not something happens."""
        self._beating.start()

    def step(self, outcome: str = "") -> None:
        """One more is done."""
        with self._lock:
            self._first_answer = self._first_answer or self._clock()
            self.done += 1
            if outcome:
                self.outcomes[outcome] += 1

    def on_progress(self, event: Progress) -> None:
        """Take in what the run loop reports."""
        if event.question_id:
            self.step(event.outcome)
        with self._lock:
            key = (event.run, event.case_id)
            self.total -= event.kept
            if event.outcome == "begun":
                self._begun += 1
                self._units += event.units
                self._open[key] = _Build(event.units, 0, self._clock())
            elif event.outcome == "complete":
                if (ended := self._open.pop(key, None)) is not None:
                    self._units -= ended.units - ended.written  # a build that failed writes no more
            elif (build := self._open.get(key)) is not None:
                build.moved = self._clock()
                if event.outcome == "written":
                    build.written += 1
                    self._written += 1

    def line(self) -> str:
        """The line as it would be shown now."""
        with self._lock:
            now, traffic = self._clock(), self._traffic()
            parts = [f"{self.label}: {self.done}/{self.total}", *self._counts(), *self._calls(now, traffic)]
            if (left := self._seconds_left(now)) is not None:
                parts.append(f"{_duration(left)} to go")
            waited = self._waited(now, traffic)
        return ", ".join(parts) + (f" · {waited}" if waited else "")

    def beat(self) -> None:
        """Show the line if it is time to."""
        now, terminal = self._clock(), sys.stderr.isatty()
        if now - self._started <= SILENT or now - self._shown < (TERMINAL_PAUSE if terminal else FILE_PAUSE):
            return
        self._shown, self._used = now, True
        text = self.line()
        width = shutil.get_terminal_size().columns - 1
        sys.stderr.write(f"\r{text[:width]:<{width}}" if terminal else text + "\n")
        sys.stderr.flush()

    def end(self) -> None:
        """Leave the line."""
        self._ended.set()
        if self._beating.is_alive():
            self._beating.join()
        if self._used and sys.stderr.isatty():
            sys.stderr.write("\r" + " " * (shutil.get_terminal_size().columns - 1) + "\r")

    def _beat_on(self) -> None:
        while not self._ended.wait(TERMINAL_PAUSE):
            self.beat()

    def _counts(self) -> Iterator[str]:
        if self.outcomes["error"]:
            yield f"{self.outcomes['error']} errors"
        if self._units:
            more = "" if self._begun >= self.histories else f" of {self._begun}/{self.histories} histories"
            yield f"{self._written}/{self._units} units written{more}"

    def _calls(self, now: float, traffic: Sequence[Traffic]) -> Iterator[str]:
        finished, tokens, retried = (a - b for a, b in zip(_sums(traffic), self._before, strict=True))
        under_way, waiting = sum(one.in_flight for one in traffic), sum(one.waiting for one in traffic)
        if finished or under_way or waiting:
            again = f" ({retried} again)" if retried else ""
            queued = f", {waiting} queued" if waiting else ""
            yield f"{finished} calls made{again}, {under_way} under way{queued}"
        if tokens:
            yield f"{tokens / max(now - self._started, 0.1):.0f} tokens/s"

    def _seconds_left(self, now: float) -> float | None:
        """The longer of the building and the answering that is left, each at its rate so far; None before anything is known."""
        estimates = []
        if self._written:
            units = self._units / self._begun * max(self._begun, self.histories)
            if units > self._written or self.done:  # all is built and nothing answered: nobody knows how long
                estimates.append((now - self._started) / self._written * (units - self._written))
        if self._first_answer is not None and self.done:
            # While histories are built, answers come only where questions are due: their rate says little then.
            since = self._started if self._written < self._units or not self._units else self._first_answer
            estimates.append((now - since) / self.done * max(0, self.total - self.done))
        return max(estimates, default=None)

    def _waited(self, now: float, traffic: Sequence[Traffic]) -> str:
        for one in traffic:
            if one.paused_since is not None:
                return f"paused since {_time_of_day(time.time() - one.paused_since)}: {one.paused_why}"
        oldest = max(traffic, key=lambda one: one.oldest_seconds, default=None)
        if oldest is not None and oldest.in_flight and oldest.oldest_seconds >= LONG:
            return f"waiting for {oldest.in_flight} calls, the oldest sent at {_time_of_day(oldest.oldest_seconds)}"
        if self._open and not any(one.in_flight for one in traffic):
            (run, case), build = min(self._open.items(), key=lambda item: item[1].moved)
            if now - build.moved >= LONG:
                since = f"since {_time_of_day(now - build.moved)}"
                place = f"unit {build.written + 1} of {build.units}" if build.written < build.units else "its questions"
                return f"{run} is at work on {case}, {place}, {since}"
        return ""


def _sums(traffic: Sequence[Traffic]) -> tuple[int, int, int]:
    """Calls finished, tokens, retries."""
    return (
        sum(one.finished for one in traffic),
        sum(one.tokens_in + one.tokens_out for one in traffic),
        sum(one.retried for one in traffic),
    )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _time_of_day(ago: float) -> str:
    """When that was, with how long it is ago."""
    return f"{time.strftime('%H:%M:%S', time.localtime(time.time() - ago))} ({_duration(ago)} ago)"


@contextmanager
def progress_line(
    label: str, total: int, *, histories: int = 0, traffic: Callable[[], Sequence[Traffic]] = lambda: ()
) -> Iterator[ProgressLine]:
    """A progress line for as long as the block runs."""
    line = ProgressLine(label, total, histories=histories, traffic=traffic)
    line.start()
    try:
        yield line
    finally:
        line.end()
