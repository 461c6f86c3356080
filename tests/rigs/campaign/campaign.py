"""The torture campaign: kills, faults, bad replies, mutated files, full disks, jumping clocks, attacks and lost machines of a Ray cluster.

`python -m scripts torture [--share 0.1] [--only kills …] [--seed 0] [--processes 2]` prints attempts and failures while it runs and at its
end, writes the table of bad replies to `results/torture/catalogue.md`, and ends with exit code 1 if there was a failure. The whole campaign
takes about 40 minutes on two cores; the tests run a twentieth.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from eval.files.store import RunError
from tests.rigs.campaign import replies
from tests.rigs.campaign.tasks import PARTS
from tests.rigs.campaign.trial import ROOT, Outcome, environment


def campaign(
    share: float,
    seed: int = 0,
    parts: Sequence[str] = tuple(PARTS),
    processes: int = 2,
    on_done: Callable[[int, int, Outcome], None] = lambda done, total, outcome: None,
) -> dict[str, Outcome]:
    """Run a share of the campaign; return its outcomes by part.

    `on_done` is called after each task with the number of done tasks, the number of all tasks, and the outcome.

    Tasks are forked from a process that has no threads (`tests.rigs.campaign.forks`); the calling one may have them.

    Raises:
        RunError: that process ended before all tasks were done.
    """
    outcomes: dict[str, Outcome] = {}
    with TemporaryDirectory(prefix="torture-") as folder:
        given = [str(share), str(seed), str(processes), folder, *parts]
        runner = subprocess.Popen(
            [sys.executable, "-m", "tests.rigs.campaign.forks", *given],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            assert runner.stdout is not None
            done, total = 0, int(runner.stdout.readline() or -1)
            for line in runner.stdout:
                outcome = Outcome.from_json(line.decode())
                outcomes.setdefault(outcome.part, Outcome(outcome.part)).add(outcome)
                done += 1
                on_done(done, total, outcome)
            if runner.wait() or done != total:
                raise RunError(
                    f"the runner of the campaign ended with exit code {runner.returncode} after {done} tasks"
                )
        finally:
            with suppress(ProcessLookupError):
                os.killpg(runner.pid, signal.SIGKILL)  # also ends its tasks and their commands
            runner.wait()
    return outcomes


def _tried(outcome: Outcome) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(outcome.tried.items()))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="of the whole campaign")
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--table", type=Path, default=Path("results/torture/catalogue.md"))
    given = parser.parse_args(arguments)
    began = time.monotonic()

    def told(done: int, total: int, outcome: Outcome) -> None:
        print(f"{time.monotonic() - began:5.0f} s, {done} of {total}: {outcome.part}: {_tried(outcome)}", flush=True)
        for defect in outcome.defects:
            print(f"FAILED {defect}", flush=True)

    outcomes = campaign(given.share, given.seed, given.only, given.processes, told).values()
    defects = [defect for outcome in outcomes for defect in outcome.defects]
    print()
    for outcome in outcomes:
        result = "all passed" if not outcome.defects else f"{len(outcome.defects)} defects"
        print(f"{outcome.part}: {_tried(outcome)}: {result}")
        if outcome.replies:
            given.table.parent.mkdir(parents=True, exist_ok=True)
            given.table.write_text(replies.table(outcome), encoding="utf-8")
            print(f"  the table of replies is in {given.table}")
    for defect in defects:
        print(f"FAILED {defect}")
    print(
        f"{f'{len(defects)} failed' if defects else 'everything passed'}; seed {given.seed}, {time.monotonic() - began:.0f} s"
    )
    return 1 if defects else 0
