"""Canaries through a memory's own door, before any score: `python -m scripts.conformance memory=mem0_http`.

Names each fault that they betray and refuses the memory (exit code 1): dates or speakers lost, a late index, leaks between cases, searches
that change what is stored, deletions that are not done, failures that are reported as success … Further settings are those of
`scripts.run`; without a model, offline engines take its place.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from scripts.experiment.launch import launch

if TYPE_CHECKING:
    from omegaconf import DictConfig


def main(cfg: DictConfig) -> int:
    from scripts.experiment.conformance import conformance

    return conformance(cfg)


if __name__ == "__main__":
    sys.exit(launch(main, "config"))
