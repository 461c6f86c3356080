"""Reproduce a table of a paper: `python -m scripts reproduce table=segtreemem_t4 profile=smoke|subset|paper [backbone=qwen]`.

Runs what is missing and prints every row and column with the published number and a verdict; files are written to `results/tables/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scripts.settings.schema import Reproduce

GROUP = "run"
CONFIG = "reproduce"
WORDS = "table"


def main(cfg: Reproduce) -> int:
    """Make the table, and with `report=true` the HTML report; return 1 if too much is not scored, 3 if the plan is declined."""
    from pathlib import Path

    from scripts.tables.table import make_table

    made = make_table(cfg)
    if cfg.report and made.file is not None:
        from scripts.assembly.run_folders import write_report

        print(f"open in a browser: {write_report(Path(cfg.results), roots=[cfg.data.folder])}")
    return made.code
