"""One memory on one data set: `python -m scripts.run memory=segtree dataset=locomo profile=smoke`.

Prints a table of scores and costs. Answers, scores and costs are written to `results/runs/<dataset>/<memory>-<identity>/`; the same
command run again resumes.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from scripts.experiment.launch import launch

if TYPE_CHECKING:
    from omegaconf import DictConfig


def main(cfg: DictConfig) -> int:
    from scripts.experiment.single import run_single

    return run_single(cfg)


if __name__ == "__main__":
    sys.exit(launch(main, "config"))
