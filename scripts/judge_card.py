"""How often a judge is wrong: `python -m scripts.judge_card --judge mem0 --dataset locomo [--limit N] [key=value …]`."""

from __future__ import annotations

import sys

from scripts.commands.judge_card import main
from scripts.experiment.exits import guarded

if __name__ == "__main__":
    sys.exit(guarded(main))
