"""Install a released product into an environment of its own: `python -m scripts.product mem0ai [--list]` (`make product NAME=mem0ai`)."""

from __future__ import annotations

import sys

from scripts.commands.product import main
from scripts.experiment.exits import guarded

if __name__ == "__main__":
    sys.exit(guarded(main))
