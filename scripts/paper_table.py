"""A table for a paper, in LaTeX: `python -m scripts.paper_table segtreemem_t4 [key=value …]`."""

from __future__ import annotations

import sys

from scripts.commands.paper_table import main
from scripts.experiment.exits import guarded

if __name__ == "__main__":
    sys.exit(guarded(main))
