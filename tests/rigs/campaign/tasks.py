"""The tasks of the torture campaign, by part: each runs in its own process and folder, and returns its outcome."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from tests.rigs.campaign import attacks, disks, faults, files, kills, on_ray, replies
from tests.rigs.campaign.clusters import CORES
from tests.rigs.campaign.trial import Outcome

Task = Callable[[Path], Outcome]
KILLS, MUTATIONS, DISKS, CLOCKS = 100, 10_000, 50, 10
ON_RAY = 20
"""Number of kills of workers of a Ray cluster, and of drivers."""
MACHINES = 2
"""Number of kills of machines that an autoscaling cluster has added."""
REAL_KILLS = 5
"""Number of kills of the command line in its own interpreter; the other kills are of forked processes."""
OF_RUNS = 0.25
"""Share of mutated files that belong to a run, each of which needs one or two runs; the others are data."""
BATCH = 125
"""Number of mutated files of a run per task."""


def _of(count: float, share: float) -> int:
    return max(1, round(count * share))


def kill_tasks(share: float, seed: int) -> Iterator[Task]:
    left = _of(KILLS, share)
    each = min(kills.ROUND, -(-left // 2))  # at least two, for two cores
    for number, memory in enumerate(kills.MEMORIES):
        if (now := min(each, left - number * each)) > 0:
            yield partial(kills.killed_round, memory, now, number < _of(REAL_KILLS, share), seed=seed)


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
    for number, first in enumerate(range(0, of_data, 4 * BATCH)):
        yield partial(files.mutate_data, min(4 * BATCH, of_data - first), seed=seed + number)


def disk_tasks(share: float, seed: int) -> Iterator[Task]:
    points = range(_of(DISKS, share))
    for number, memory in enumerate(disks.MEMORIES):
        if now := points[number :: len(disks.MEMORIES)]:
            yield partial(disks.fill_disks, memory, now, seed=seed)


def clock_tasks(share: float, seed: int) -> Iterator[Task]:
    runs = _of(CLOCKS, share)
    for number, memory in enumerate(disks.MEMORIES):
        if (now := len(range(number, runs, len(disks.MEMORIES)))) > 0:
            yield partial(disks.jump_clocks, memory, now, seed=seed)


def attack_tasks(share: float, seed: int) -> Iterator[Task]:
    for attack in attacks.ATTACKS:
        yield partial(attacks.attacked, attack, share)


def ray_tasks(share: float, seed: int) -> Iterator[Task]:
    if find_spec("ray") is None:
        yield _without_ray
        return
    kills, machines = _of(ON_RAY, share), _of(MACHINES, share)
    workers = [on_ray.WORKER] * kills
    runs = [workers[first : first + on_ray.MOST_OF_A_LIFE] for first in range(0, kills, on_ray.MOST_OF_A_LIFE)]
    yield partial(on_ray.kill_on_ray, [*runs, [on_ray.DRIVER] * kills], seed=seed)
    yield partial(on_ray.kill_on_ray, [[on_ray.MACHINE]] * machines, added=CORES, seed=seed)


def _without_ray(folder: Path) -> Outcome:
    return Outcome("ray, not tried: it is not installed (extra `ray`)")


PARTS: dict[str, Callable[[float, int], Iterator[Task]]] = {
    "kills": kill_tasks,
    "faults": fault_tasks,
    "replies": reply_tasks,
    "files": file_tasks,
    "disks": disk_tasks,
    "clocks": clock_tasks,
    "attacks": attack_tasks,
    "ray": ray_tasks,
}
