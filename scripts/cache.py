"""The cache's file looked after: `python -m scripts.cache check|repair|stats [--cache FILE]`.

`check` reads every row and says what is wrong (exit 1) or that nothing is; `repair` copies what can be read into a new file and keeps
the damaged one beside it; `stats` counts what is held. A cache that is lost costs calls, never results: nothing that is in the run
folders depends on it.
"""

from __future__ import annotations

import sys

from scripts.commands.cache import main
from scripts.experiment.exits import guarded

if __name__ == "__main__":
    sys.exit(guarded(main))
