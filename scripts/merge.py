"""Merge the results of shards: `python -m scripts.merge A B … INTO`; all are results folders, and INTO may be new.

Shards are made by the setting `shard=i/n`, one command a machine, each with a results folder of its own. Afterwards the same command
without `shard`, with `results=INTO`, prints the table: it finds every answer there. Nothing is written when two folders contradict
each other; the message names what does.
"""

from __future__ import annotations

import sys

from scripts.commands.merge import main
from scripts.experiment.exits import guarded

if __name__ == "__main__":
    sys.exit(guarded(main))
