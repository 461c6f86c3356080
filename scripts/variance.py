"""Where the spread of scores comes from: `python -m scripts.variance RUN… --scores METRIC [--detect .03]`."""

from __future__ import annotations

import sys

from scripts.commands.variance import main
from scripts.experiment.exits import guarded

if __name__ == "__main__":
    sys.exit(guarded(main))
