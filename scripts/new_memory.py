"""Start a memory of your own: `python -m scripts.new_memory mine` writes its module, its settings and its prompt.

In a checkout the files go where the other memories stand. In any other folder they go to `mine.py`, `conf/memory/mine.yaml` and
`prompts/mine/`, where `memsys-bench run memory=mine` finds them.
"""

from __future__ import annotations

import sys

from scripts.commands.new_memory import main
from scripts.experiment.exits import guarded

if __name__ == "__main__":
    sys.exit(guarded(main))
