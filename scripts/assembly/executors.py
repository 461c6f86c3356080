"""Choose which cells are worked on, and where: `shard=`, `executor=`, `workers=`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from data_loaders.lazy import as_lazy
from eval.executors.cluster import in_ray
from eval.executors.processes import in_processes
from eval.executors.service_host import runs_anywhere
from eval.files.store import RunError
from eval.running.cells import WORKING
from eval.running.run import Run, needs
from eval.running.work import Executor
from memsys.lean import cores
from scripts.assembly.models import Models
from scripts.assembly.steps import execute_capped
from scripts.setup.replays import workable

if TYPE_CHECKING:
    from scripts.settings.schema import Settings

ENOUGH = 8
"""Cells of real data from which on worker processes, which need two seconds to start, are worth it."""


def executor_of(cfg: Settings, runs: Sequence[Run]) -> Executor | None:
    """The executor that the configuration names; None for the threads of this process.

    `auto` takes processes for offline runs on real data with at least `ENOUGH` cells, on a machine with several cores: while calls are
    under way one process is enough, and the cells of samples are small.

    Raises:
        RunError: workers are asked for, and a run needs the gateway, or a tracer is told of everything, which only this process has.
    """
    if any("gateway" in needs(run.build) for run in runs):
        if cfg.executor in ("processes", "ray"):
            raise RunError("released products have processes of their own: run them with executor=threads")
        return None
    if cfg.logger.name == "otel":
        if cfg.executor in ("processes", "ray"):
            raise RunError("logger=otel traces this process alone: run with executor=threads")
        return None
    if cfg.executor == "ray":
        return in_ray(cfg.ray.address, cfg.workers, cfg.threads or WORKING)
    workers = cfg.workers or cores()
    if cfg.executor == "processes" and cfg.threads is None and not _offline(runs):
        print(
            f"note: executor=processes builds {WORKING} histories at once, fewer than the endpoint may answer; "
            "executor=threads builds as many as keep it busy, and threads=N sets how many processes build",
            file=sys.stderr,
        )
    if cfg.executor == "processes" or (cfg.executor == "auto" and workers > 1 and _worth_it(cfg, runs)):
        return in_processes(workers, cfg.threads or WORKING)
    return None


def _worth_it(cfg: Settings, runs: Sequence[Run]) -> bool:
    builds = {run.shared or str(run.folder): len(run.sizes) for run in runs}
    return _offline(runs) and cfg.data.source == "real" and sum(builds.values()) >= ENOUGH


def _offline(runs: Sequence[Run]) -> bool:
    return all(runs_anywhere(run.services) for run in runs)


def answer_all(cfg: Settings, models: Models, runs: Sequence[Run], questions: int) -> str:
    """Answer every question of the runs, or of this command's shard, that has no answer yet.

    Args:
        questions: their number over all runs, for the progress line.

    Returns:
        A caption line when not all of them were asked, because of a spending cap or a shard; else an empty string.

    Raises:
        RunError: a replay needs a service's run that is not finished.
    """
    if cfg.shard is None:
        runs = workable(cfg, runs)
        execute_capped(runs, questions, cfg.threads, models.traffic, models.ahead, executor_of(cfg, runs))
        return models.purse.stop
    number, shards = map(int, cfg.shard.split("/"))
    chosen = workable(cfg, [in_shard(run, number, shards) for run in runs])
    execute_capped(chosen, questions // shards, cfg.threads, models.traffic, models.ahead, executor_of(cfg, chosen))
    return f"Shard {cfg.shard} of the histories; merge all with python -m scripts merge. {models.purse.stop}".strip()


def in_shard(run: Run, number: int, shards: int) -> Run:
    """The run with the cases of one shard, numbered from 1: by size, back and forth, so that shards are about equally large."""
    order = sorted(range(len(run.sizes)), key=lambda index: (-run.sizes[index], index))
    mine = sorted(index for place, index in enumerate(order) if _shard_of(place, shards) == number)
    cases = as_lazy(run.cases).select(mine)
    return replace(run, cases=cases, sizes=tuple(run.sizes[index] for index in mine))


def _shard_of(place: int, shards: int) -> int:
    round_number, slot = divmod(place, shards)
    return 1 + (slot if round_number % 2 == 0 else shards - 1 - slot)
