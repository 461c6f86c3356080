"""The torture campaign: kills, faults, bad replies, mutated files, full disks and jumping clocks, against the shipped mock endpoint.

`python -m scripts.torture [--share 0.1] [--only kills …] [--seed 0] [--processes 2]` prints what was tried and what did not survive,
writes the table of bad replies to `results/torture/catalogue.md`, and ends with exit code 1 when anything did not. The whole of it takes
up to half an hour on two cores; the tests do a tenth.
"""

from __future__ import annotations

import argparse
import os
import shutil
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
BATCH = 250
"""Mutated files of one task."""


def _of(count: int, share: float) -> int:
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
    from scripts.experiment.options import options

    met = replies.pairs(options("memory"), share / 10 if share < 1 else 1.0, seed)
    yield from (partial(replies.meet, memory, numbers) for memory, numbers in met.items() if numbers)


def file_tasks(share: float, seed: int) -> Iterator[Task]:
    batches = _of(MUTATIONS // 2, share) // BATCH
    for number in range(batches):
        yield partial(files.mutate_data, BATCH, seed=seed + number)
        yield partial(files.mutate_runs, disks.MEMORIES[number % len(disks.MEMORIES)], BATCH, seed=seed + number)


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


def campaign(
    share: float, seed: int = 0, parts: Sequence[str] = tuple(PARTS), processes: int = 2
) -> tuple[list[Outcome], list[str]]:
    """Do a share of the campaign; its outcomes by part, and a line of time for each.

    Tasks of all parts share the processes; those of the longest parts come first.
    """
    outcomes: dict[str, Outcome] = {}
    tasks = [task for part in parts for task in PARTS[part](share, seed)]
    # Spawned: a fork would copy event loops and locks of whoever calls.
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        for future in as_completed([pool.submit(_done, task) for task in tasks]):
            outcome = future.result()
            outcomes.setdefault(outcome.part, Outcome(outcome.part)).add(outcome)
    return list(outcomes.values()), [defect for outcome in outcomes.values() for defect in outcome.defects]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="of the whole campaign")
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--table", type=Path, default=Path("results/torture/catalogue.md"))
    given = parser.parse_args()
    began = time.monotonic()
    outcomes, defects = campaign(given.share, given.seed, given.only, given.processes)
    for outcome in outcomes:
        tried = ", ".join(f"{name} {count:,}" for name, count in sorted(outcome.tried.items()))
        print(
            f"{outcome.part}: {tried}: {'all survived' if not outcome.defects else f'{len(outcome.defects)} defects'}"
        )
        if outcome.replies:
            given.table.parent.mkdir(parents=True, exist_ok=True)
            given.table.write_text(replies.table(outcome), encoding="utf-8")
            print(f"  the table of replies is in {given.table}")
    for defect in defects:
        print(f"DID NOT SURVIVE {defect}")
    print(
        f"{'nothing' if not defects else len(defects)} did not survive; seed {given.seed}, {time.monotonic() - began:.0f} s"
    )
    return 1 if defects else 0
