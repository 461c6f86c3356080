"""A running experiment, seen from another terminal: `python -m scripts.watch RESULTS [--once] [--all] [--prices FILE]`.

Reads the files of the runs and nothing else: cases done, questions answered, errors, verdicts, tokens and dollars so far, and the age of
the last line. Runs whose last line is older than an hour are left out, unless `--all`. Dollars are list prices; batches may cost less.
"""

from __future__ import annotations

import sys

from scripts.experiment.exits import guarded

if __name__ == "__main__":
    from scripts.commands.watch import main

    sys.exit(guarded(main))
