"""The torture campaign: kills, faults, bad replies, mutated files, full disks and jumping clocks, against the shipped mock endpoint.

`python -m scripts.torture [--share 0.1] [--only kills …] [--seed 0] [--processes 2]` prints what was tried and what did not survive, while
it runs and at its end, writes the table of bad replies to `results/torture/catalogue.md`, and ends with exit code 1 when anything did not.
The whole of it takes up to half an hour on two cores; the tests do a tenth.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import mkdtemp

from scripts.campaign import disks, faults, files, kills, replies
from scripts.campaign.trial import KEY, KEY_ENV, Outcome

Task = Callable[[Path], Outcome]
KILLS, MUTATIONS, DISKS, CLOCKS = 100, 10_000, 50, 10
OF_RUNS = 0.25
"""Of the mutated files: those of a run, each of which takes a run or two; the others are data."""
BATCH = 50
"""Mutated files of a run of one task."""


def _of(count: float, share: float) -> int:
    return max(1, round(count * share))


def kill_tasks(share: float, seed: int) -> Iterator[Task]:
    left = _of(KILLS, share)
    each = min(kills.ROUND, -(-left // 2))  # two at least, for two cores
    for number, memory in enumerate(kills.MEMORIES):
        if (now := min(each, left - number * each)) > 0:
            yield partial(kills.killed_round, memory, now, seed=seed)


def fault_tasks(share: float, seed: int) -> Iterator[Task]:
    for memory in faults.MEMORIES[: _of(len(faults.MEMORIES), share)]:
        yield partial(faults.through_faults, memory, seed=seed)


def reply_tasks(share: float, seed: int) -> Iterator[Task]:
    for memory, numbers in replies.pairs(replies.memories(), share, seed).items():
        yield partial(replies.meet, memory, numbers)


def file_tasks(share: float, seed: int) -> Iterator[Task]:
    of_runs = _of(MUTATIONS * OF_RUNS, share)
    of_data = _of(MUTATIONS, share) - of_runs
    for number, first in enumerate(range(0, of_runs, BATCH)):
        memory, count = disks.MEMORIES[number % len(disks.MEMORIES)], min(BATCH, of_runs - first)
        yield partial(files.mutate_runs, memory, count, seed=seed + number)
    for number, first in enumerate(range(0, of_data, 10 * BATCH)):
        yield partial(files.mutate_data, min(10 * BATCH, of_data - first), seed=seed + number)


def disk_tasks(share: float, seed: int) -> Iterator[Task]:
    points = _of(DISKS, share)
    for number, memory in enumerate(disks.MEMORIES):
        if (now := len(range(number, points, len(disks.MEMORIES)))) > 0:
            yield partial(disks.fill_disks, memory, now, seed=seed)


def clock_tasks(share: float, seed: int) -> Iterator[Task]:
    runs = _of(CLOCKS, share)
    for number, memory in enumerate(disks.MEMORIES):
        if (now := len(range(number, runs, len(disks.MEMORIES)))) > 0:
            yield partial(disks.jump_clocks, memory, now, seed=seed)


PARTS: dict[str, Callable[[float, int], Iterator[Task]]] = {
    "kills": kill_tasks,
    "faults": fault_tasks,
    "replies": reply_tasks,
    "files": file_tasks,
    "disks": disk_tasks,
    "clocks": clock_tasks,
}


def _done(task: Task) -> Outcome:
    """One task in a folder of its own."""
    os.environ[KEY_ENV] = KEY
    folder = Path(mkdtemp(prefix="torture-"))
    try:
        return task(folder)
    except Exception as error:
        return Outcome("the campaign itself", defects=[f"{task}: {error!r}"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _hear_signals() -> None:
    """Let children hear every signal: what a shell starts in the background ignores Ctrl-C, and so would all that it starts."""
    for number in kills.SIGNALS:
        if number != signal.SIGKILL and signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def campaign(
    share: float,
    seed: int = 0,
    parts: Sequence[str] = tuple(PARTS),
    processes: int = 2,
    on_done: Callable[[int, int, Outcome], None] = lambda done, total, outcome: None,
) -> dict[str, Outcome]:
    """Do a share of the campaign; its outcomes by part. `on_done` is told of each task: how many are done, of how many, and its outcome.

    Tasks of all parts share the processes; those of the longest parts come first.
    """
    outcomes: dict[str, Outcome] = {}
    tasks = [task for part in parts for task in PARTS[part](share, seed)]
    # Spawned: a fork would copy event loops and locks of whoever calls.
    with ProcessPoolExecutor(processes, get_context("spawn"), _hear_signals) as pool:
        for done, future in enumerate(as_completed([pool.submit(_done, task) for task in tasks]), 1):
            outcome = future.result()
            outcomes.setdefault(outcome.part, Outcome(outcome.part)).add(outcome)
            on_done(done, len(tasks), outcome)
    return outcomes


def _tried(outcome: Outcome) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(outcome.tried.items()))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="of the whole campaign")
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--table", type=Path, default=Path("results/torture/catalogue.md"))
    given = parser.parse_args()
    began = time.monotonic()

    def told(done: int, total: int, outcome: Outcome) -> None:
        print(f"{time.monotonic() - began:5.0f} s, {done} of {total}: {outcome.part}: {_tried(outcome)}", flush=True)
        for defect in outcome.defects:
            print(f"DID NOT SURVIVE {defect}", flush=True)

    outcomes = campaign(given.share, given.seed, given.only, given.processes, told).values()
    defects = [defect for outcome in outcomes for defect in outcome.defects]
    print()
    for outcome in outcomes:
        survived = "all survived" if not outcome.defects else f"{len(outcome.defects)} defects"
        print(f"{outcome.part}: {_tried(outcome)}: {survived}")
        if outcome.replies:
            given.table.parent.mkdir(parents=True, exist_ok=True)
            given.table.write_text(replies.table(outcome), encoding="utf-8")
            print(f"  the table of replies is in {given.table}")
    for defect in defects:
        print(f"DID NOT SURVIVE {defect}")
    print(f"{len(defects) or 'nothing'} did not survive; seed {given.seed}, {time.monotonic() - began:.0f} s")
    return 1 if defects else 0
