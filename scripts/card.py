"""A results card with everything that a reviewer asks: `python -m scripts.card RUN|TABLE [key=value …]`."""

from __future__ import annotations

import sys

from scripts.commands.card import main
from scripts.experiment.exits import guarded

if __name__ == "__main__":
    sys.exit(guarded(main))
