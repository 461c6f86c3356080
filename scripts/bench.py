"""Speed against the shipped mock endpoint, as ratios of one run: `python -m scripts.bench [--only NAME …]`.

Each line is a measurement, its bound, and whether it holds. Absolute times depend on the machine; what is promised are ratios,
calls and memory.
`kill` kills a run twenty times at random moments and lets the mock's own counter tell what was asked twice.
"""

from __future__ import annotations

import sys

from scripts.benchmarks.command import main
from scripts.experiment.exits import guarded

if __name__ == "__main__":
    sys.exit(guarded(main))
