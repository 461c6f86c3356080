"""One memory on one data set: `python -m scripts.run memory=segtree dataset=locomo profile=smoke`.

Answers, scores and costs land in `results/runs/<dataset>/<memory>-<identity>/`; the table is printed. Run again to resume.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import hydra

from scripts.experiment.launch import ended, launch

if TYPE_CHECKING:
    from omegaconf import DictConfig


@hydra.main(version_base="1.3", config_path="../conf", config_name="config")
def main(cfg: DictConfig) -> None:
    from scripts.experiment.single import run_single

    ended(run_single(cfg))


if __name__ == "__main__":
    sys.exit(launch(main))
