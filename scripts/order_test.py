"""Does a memory depend on the order in which it is told? `python -m scripts.order_test bm25 segtree_td --dataset locomo [--orders 3]`.

Builds on the histories as they are and in other orders of their sessions (or turns), and prints paired differences with intervals and p.
"""

from __future__ import annotations

import sys

from scripts.experiment.exits import guarded

if __name__ == "__main__":
    from scripts.commands.order_test import main

    sys.exit(guarded(main))
