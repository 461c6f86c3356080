"""What there is to name: `python -m scripts.list memories|datasets|judges|tables|runs`."""

from __future__ import annotations

import sys

from scripts.experiment.exits import guarded

if __name__ == "__main__":
    from scripts.commands.list import main

    sys.exit(guarded(main))
