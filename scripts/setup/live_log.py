"""Live numbers in W&B while a command works: the numbers of its progress lines, and those of `memsys-bench watch` for its runs."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eval.analysis.watching import Watcher
from eval.files.run_folder import RunFolder
from eval.report.wandb_log import counts_of, logged
from memsys.llm.secrets import redact
from scripts.settings.schema import Settings
from scripts.setup.progress import FOLLOWERS, State

PAUSE = 15.0
"""Seconds between two entries, as between the progress lines of a log file."""
NAMES = (
    "done", "total", "errors", "written", "units", "finished", "retried", "in_flight", "waiting", "batched", "tokens", "dollars",
)  # fmt: skip
"""Logged values of a phase (`State`), as `live/<phase>/<name>`."""


class LiveLog:
    """Logs the state of phases and runs, at most every `PAUSE` seconds and at the end of each phase.

    Args:
        log: takes one entry, numbers by name; raised errors end the log with a note and do not affect the command.
        results: the folder of the logged runs; runs last written before the log began are left out.
        clock: monotonic, in seconds.
    """

    def __init__(
        self, log: Callable[[dict[str, float]], Any], results: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log, self._results, self._clock = log, results, clock
        self._began, self._due = time.time(), 0.0
        self._watcher, self._states = Watcher(), dict[str, State]()
        self._lock = threading.Lock()  # a nested phase has a thread of its own
        self._broken = False

    def follow(self, state: State, last: bool) -> None:
        """Record the state of a phase, and log if an entry is due."""
        with self._lock:
            self._states[state.label] = state
            if not self._broken and (last or self._clock() >= self._due):
                self._due = self._clock() + PAUSE
                try:
                    self._log(self.entry())
                except Exception as error:  # a failing logger must not end a run that costs money
                    self._broken = True
                    print(f"note: W&B gets no more live numbers: {redact(str(error))}", file=sys.stderr)

    def entry(self) -> dict[str, float]:
        """The numbers of all phases so far and of all runs that this command has written to."""
        numbers: dict[str, float] = {}
        for label, state in self._states.items():
            values = asdict(state)
            numbers |= {f"live/{label}/{name}": values[name] for name in NAMES}
        for seen in self._watcher.runs(self._results):
            if seen.last >= self._began:
                numbers |= counts_of(seen, f"live/runs/{RunFolder(seen.folder).key}")
        return numbers


@contextmanager
def live(cfg: Settings, command: str) -> Iterator[None]:
    """Keep a W&B run open while the block works and log live numbers to it. Raises RunError if W&B is not installed, or may not connect."""
    config: Mapping[str, Any] = cfg.plain
    names = (config[key]["name"] for key in ("table", "figure", "sweep", "memory") if key in config)
    with logged(config, next(names, command), command) as run:
        follower = LiveLog(run.log, Path(config["results"])).follow
        FOLLOWERS.append(follower)
        try:
            yield
        finally:
            FOLLOWERS.remove(follower)
        if folder := getattr(run, "dir", ""):
            print(f"W&B: {Path(folder).parent}")
