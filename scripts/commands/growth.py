"""Measure what one more unit costs as a history grows: `python -m scripts growth memory=segtree sizes=[100,200,400] questions=100`.

Builds one memory over the data set's cases in a row and measures cost at each size (SegTreeMem Fig. 5, MemTree Fig. 5);
`eval.analysis.growth` says how. With `questions`, at most so many questions whose evidence is written by then are read at each size and
their evidence recall, bytes, intervals and exponents are added. The CSV is printed and written to `results/growth/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omegaconf import DictConfig

GROUP = "run"
CONFIG = "growth"
WORDS = "memory"


def main(cfg: DictConfig) -> int:
    """Run the job of one configuration; its exit code."""
    from scripts.lab.growth import growth

    return growth(cfg)
