"""Scores with and without known errors of the gold answers: `python -m scripts.ceilings RUN… --scores METRIC --errata locomo|FILE.csv`."""

from __future__ import annotations

import sys

from scripts.commands.ceilings import main
from scripts.experiment.exits import guarded

if __name__ == "__main__":
    sys.exit(guarded(main))
