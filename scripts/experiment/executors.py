"""Choose where cells are worked on: `executor=`, `workers=`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from eval.executors.cells import Executor
from eval.executors.desk import runs_anywhere
from eval.executors.processes import cores, in_processes
from eval.run import Run

if TYPE_CHECKING:
    from omegaconf import DictConfig

ENOUGH = 8
"""Cells of real data from which on worker processes, which need two seconds to start, are worth it."""


def executor_of(cfg: DictConfig, runs: Sequence[Run]) -> Executor | None:
    """The executor that the configuration names; None for the threads of this process.

    `auto` takes processes for offline runs on real data with at least `ENOUGH` cells, on a machine with several cores: while calls are
    under way one process is enough, and the cells of samples are small.
    """
    workers = cfg.workers or cores()
    if cfg.executor == "processes" or (cfg.executor == "auto" and workers > 1 and _worth_it(cfg, runs)):
        return in_processes(workers, cfg.threads)
    return None


def _worth_it(cfg: DictConfig, runs: Sequence[Run]) -> bool:
    builds = {run.shared or str(run.folder): len(run.sizes) for run in runs}
    offline = all(runs_anywhere(run.services) for run in runs)
    return offline and cfg.data.source == "real" and sum(builds.values()) >= ENOUGH
