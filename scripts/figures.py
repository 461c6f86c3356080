"""A figure of a paper: `python -m scripts.figures figure=segtreemem_f6 profile=smoke|subset|paper [backbone=qwen] [projection=umap]`.

Runs what is missing and writes a PDF, a PNG and the CSV of the points to `results/figures/<name>-<profile>`. Figures share the run
folders of tables, sweeps and growth curves, so what one of them has run costs nothing here.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from scripts.experiment.launch import launch

if TYPE_CHECKING:
    from omegaconf import DictConfig


def main(cfg: DictConfig) -> int:
    from scripts.experiment.figures import figure

    return figure(cfg)


if __name__ == "__main__":
    sys.exit(launch(main, "figures"))
