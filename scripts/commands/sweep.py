"""Run a sweep of a paper: `python -m scripts sweep sweep=segtree_propagation profile=smoke|subset|paper [data.size=20]`.

Hydra runs one job for each combination of `hydra.sweeper.params` (`scripts.tables.sweep` describes a job). Every job adds its
lines to `results/sweeps/<name>-<profile>.csv`; the same command run again resumes.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scripts.settings.schema import Sweeps

GROUP = "run"
CONFIG = "sweep"
WORDS = "sweep"
KEEP_RECORD = True
PURSES: list[Any] = []
"""The purse of each job of this process, which is one command; `max_usd` caps the sum over its jobs."""


def main(cfg: Sweeps) -> int:
    """Run one job of the sweep; return its exit code. A code above 1, or a reached cap, ends the command: no later job could do more."""
    from scripts.tables.sweep import sweep, swept_settings

    code = sweep(cfg, swept_settings(), PURSES)
    if code > 1 or PURSES[-1].stop:
        sys.exit(code)
    return code
