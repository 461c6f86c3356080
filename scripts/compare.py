"""Memories against each other on one data set: `python -m scripts.compare mine bm25 segtree --dataset locomo [--limit 100]`.

Builds and asks what is missing, then prints scores, paired differences from the first memory with intervals and Holm's p, wins and losses
by category, and the questions that tell most. Settings of `scripts.run` may follow the names: `profile=subset data.root=~/data`.
"""

from __future__ import annotations

import sys

from scripts.experiment.exits import guarded

if __name__ == "__main__":
    from scripts.commands.compare import main

    sys.exit(guarded(main))
