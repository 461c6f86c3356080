"""Fit a tree's threshold to an embedder on one history: `python -m scripts.calibrate models.embedder=text-embedding-3-small`.

Builds SegTreeMem with cosine placement at each value of `tau_c` and prints nodes, depth and the share of NONE. The value whose depth is
nearest to the published one is written into a copy of the memory's settings file, below `results/calibrated/`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from scripts.experiment.launch import launch

if TYPE_CHECKING:
    from omegaconf import DictConfig


def main(cfg: DictConfig) -> int:
    from scripts.experiment.calibration import calibrate

    return calibrate(cfg)


if __name__ == "__main__":
    sys.exit(launch(main, "calibrate"))
