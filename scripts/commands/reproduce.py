"""Reproduce a table of a paper: `python -m scripts reproduce table=segtreemem_t4 profile=smoke|subset|paper [backbone=qwen]`.

Runs what is missing and prints every row and column beside the published number with a verdict; files are written to `results/tables/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scripts.settings.schema import Reproduce

GROUP = "run"
CONFIG = "reproduce"
WORDS = "table"


def main(cfg: Reproduce) -> int:
    """Run the job of one configuration; its exit code."""
    from scripts.tables.table import reproduce

    return reproduce(cfg)
