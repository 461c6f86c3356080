"""Check a file of answers before it is submitted: `python -m scripts.check_answers FILE [--dataset LoCoMo]`."""

from __future__ import annotations

import sys

from scripts.commands.check_answers import main
from scripts.experiment.exits import guarded

if __name__ == "__main__":
    sys.exit(guarded(main))
