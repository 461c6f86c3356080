"""Fit a tree's threshold to an embedder on one history: `python -m scripts calibrate models.embedder=text-embedding-3-small`.

Builds SegTreeMem with cosine placement at each value of `tau_c` and prints nodes, depth and the share of NONE. The value whose depth is
nearest to the published one is written into a copy of the memory's settings file, below `results/calibrated/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scripts.settings.schema import Calibrate

GROUP = "science"
CONFIG = "calibrate"
WORDS = "memory dataset"


def main(cfg: Calibrate) -> int:
    from scripts.lab.calibration import calibrate

    return calibrate(cfg)
