"""A table of a paper: `python -m scripts.reproduce table=segtreemem_t4 profile=smoke|subset|paper [backbone=qwen]`.

Every row and column of the table is printed, beside the published number and a verdict; files land in `results/tables/`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import hydra

from scripts.experiment.launch import ended, launch

if TYPE_CHECKING:
    from omegaconf import DictConfig


@hydra.main(version_base="1.3", config_path="../conf", config_name="reproduce")
def main(cfg: DictConfig) -> None:
    from scripts.experiment.table import reproduce

    ended(reproduce(cfg))


if __name__ == "__main__":
    sys.exit(launch(main))
