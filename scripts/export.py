"""Write a run in the form of others: `python -m scripts.export RUN --format eee|hf|mem0 --to FOLDER`."""

from __future__ import annotations

import sys

from scripts.answers.export_command import main
from scripts.experiment.exits import guarded

if __name__ == "__main__":
    sys.exit(guarded(main))
