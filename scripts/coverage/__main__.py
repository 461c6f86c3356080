"""Simulate what tables print and write the results into docs/statistics.md: `python -m scripts.coverage` (ten minutes on two cores)."""

from __future__ import annotations

import sys

from scripts.commands.coverage import main
from scripts.experiment.exits import guarded

if __name__ == "__main__":
    sys.exit(guarded(main))
