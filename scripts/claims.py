"""Audit published claims from their own answers: `python -m scripts.claims [NAME …] [--data ROOT]`."""

from __future__ import annotations

import sys

from scripts.commands.claims import main
from scripts.experiment.exits import guarded

if __name__ == "__main__":
    sys.exit(guarded(main))
