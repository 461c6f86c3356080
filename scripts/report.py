"""The HTML report of a results folder, to be opened from the disk: `python -m scripts.report [RESULTS] [--out FOLDER] [--tables NAME …]`.

It shows every table, compares any two runs question by question, and opens single questions and memories. It reads run folders and table
files alone and holds texts of the data sets: mind their licences before you pass a report on.
"""

from __future__ import annotations

import sys

from scripts.experiment.exits import guarded

if __name__ == "__main__":
    from scripts.reporting.command import main

    sys.exit(guarded(main))
