"""The reference memory service on this machine: `python -m scripts.mock_memory --port 8095`, with a fault: `--fault "k ignored"`."""

from __future__ import annotations

import sys

from scripts.experiment.exits import guarded
from scripts.mock.memory_service import main

if __name__ == "__main__":
    sys.exit(guarded(main))
