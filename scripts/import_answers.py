"""Score answers of others: `python -m scripts.import_answers FILE dataset=locomo as=memobase [key=value …]`."""

from __future__ import annotations

import sys

from scripts.answers.command import main
from scripts.experiment.exits import guarded

if __name__ == "__main__":
    sys.exit(guarded(main))
