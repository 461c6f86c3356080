"""Draw the packages and who imports whom, from the imports: `python -m scripts.architecture` writes the drawing into ARCHITECTURE.md."""

from __future__ import annotations

import sys

from scripts.commands.architecture import main
from scripts.experiment.exits import guarded

if __name__ == "__main__":
    sys.exit(guarded(main))
