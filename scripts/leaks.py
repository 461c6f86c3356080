"""Does an answer key reach a memory? `python -m scripts.leaks memory=mine dataset=locomo [key=value …]`."""

from __future__ import annotations

import sys

from scripts.experiment.exits import guarded

if __name__ == "__main__":
    from scripts.commands.leaks import main

    sys.exit(guarded(main))
