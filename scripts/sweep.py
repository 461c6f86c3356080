"""A sweep of a paper: `python -m scripts.sweep sweep=segtree_propagation profile=smoke|subset|paper [data.size=20]`.

Hydra runs one job for each combination of `hydra.sweeper.params`; `scripts.experiment.sweep` says what a job does. Every job adds its
lines to `results/sweeps/<name>-<profile>.csv`; the same command run again resumes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from scripts.experiment.launch import launch

if TYPE_CHECKING:
    from omegaconf import DictConfig


def jobs() -> Callable[[DictConfig], int]:
    """The job of the command; `max_usd` caps what all its jobs spend together."""
    spent: list[float] = []

    def job(cfg: DictConfig) -> int:
        from scripts.experiment.sweep import sweep, swept_settings

        code = sweep(cfg, swept_settings(), spent)
        if code > 1:  # the jobs that follow would fail for the same reason
            sys.exit(code)
        return code

    return job


if __name__ == "__main__":
    sys.exit(launch(jobs(), "sweep", keep_record=True))
