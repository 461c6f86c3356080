"""Run one memory on one data set: `python -m scripts run memory=segtree dataset=locomo profile=smoke`.

Prints a table of scores and costs. Answers, scores and costs are written to `results/runs/<dataset>/<memory>-<identity>/`; the same
command run again resumes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scripts.settings.schema import Single

GROUP = "run"
CONFIG = "config"
WORDS = "memory dataset"


def main(cfg: Single) -> int:
    """Run the job of one configuration; its exit code."""
    from scripts.lab.single import run_single

    return run_single(cfg)
