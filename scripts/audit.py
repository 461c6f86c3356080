"""What does not add up in the published tables, or in a table of yours: `python -m scripts.audit [TABLE.csv --counts 282,321,96,841]`

Without a file: every table of results/published, from the numbers there and the question counts below. With one: a CSV with a header
and, in each line, the row's name, one cell per category in the order of `--counts`, and the total. The exit code is 0, with `--strict`
1 when anything is found, and 2 for a file that cannot be read.

The five history lengths of MemTree Table 2 are left out: how many questions each holds is not printed.
"""

from __future__ import annotations

import sys

from scripts.commands.audit import main
from scripts.experiment.exits import guarded

if __name__ == "__main__":
    sys.exit(guarded(main))
