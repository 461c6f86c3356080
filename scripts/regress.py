"""Rerun a small offline subset and compare every number with `results/regression/` exactly: `python -m scripts.regress [--update]`.

A change that moves a score is accepted with `--update` and named in CHANGELOG with both numbers.
"""

from __future__ import annotations

import sys

from scripts.commands.regress import main
from scripts.experiment.exits import guarded

if __name__ == "__main__":
    sys.exit(guarded(main))
