"""A table of a paper: `python -m scripts.reproduce table=segtreemem_t4 profile=smoke|subset|paper [backbone=qwen]`.

Runs what is missing and prints every row and column beside the published number with a verdict; files are written to `results/tables/`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from scripts.experiment.launch import launch

if TYPE_CHECKING:
    from omegaconf import DictConfig


def main(cfg: DictConfig) -> int:
    from scripts.experiment.table import reproduce

    return reproduce(cfg)


if __name__ == "__main__":
    sys.exit(launch(main, "reproduce"))
