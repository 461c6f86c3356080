"""Draw a figure of a paper: `python -m scripts figures figure=segtreemem_f6 profile=smoke|subset|paper [backbone=qwen] [projection=umap]`.

Runs what is missing and writes a PDF, a PNG and the CSV of the points to `results/figures/<name>-<profile>`. Figures share the run
folders of tables, sweeps and growth curves, so runs of those cost nothing here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scripts.settings.schema import Figures

GROUP = "run"
CONFIG = "figures"
WORDS = "figure"


def main(cfg: Figures) -> int:
    """Make the figure; return 3 if the plan is declined."""
    from scripts.tables.figures import make_figure

    return make_figure(cfg).code
