"""The gateway: `python -m scripts.gateway --help`; `scripts.commands.gateway` documents it."""

from __future__ import annotations

import sys

from scripts.commands.gateway import main
from scripts.experiment.exits import guarded

if __name__ == "__main__":
    sys.exit(guarded(main))
