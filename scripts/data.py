"""What a data set holds, counted: `python -m scripts.data <set> [--data ROOT] [--sample] [--unpinned]`."""

from __future__ import annotations

import sys

from scripts.commands.data import main
from scripts.experiment.exits import guarded

if __name__ == "__main__":
    sys.exit(guarded(main))
