"""Where a memory loses its points: `python -m scripts.losses RUN --evidence GOLD_EVIDENCE_RUN --scores METRIC`."""

from __future__ import annotations

import sys

from scripts.commands.losses import main
from scripts.experiment.exits import guarded

if __name__ == "__main__":
    sys.exit(guarded(main))
