"""Tables about the systems themselves: `python -m scripts.tables calls`, `… systems`, `… pareto [TABLE] [key=value …]`, `… ratings FILE`.

`calls` measures calls per insertion and per query on the LoCoMo sample with the offline engines; where a paper prints a figure, it
stands beside. `systems` writes one row for each memory into `memsys/README.md`. `pareto` sets the quality of every row of a table that has
been run (`segtreemem_t4` unless another is named) against the tokens that it recalls for a question and what a unit costs to write, marks
the rows that no other row beats in both, and draws them; nothing is run or bought for it, settings are those of `scripts.reproduce`.
`ratings` sets the verdicts that a reader exported from the HTML report against those of the judges.
"""

from __future__ import annotations

import sys

from scripts.commands.tables import main
from scripts.experiment.exits import guarded

if __name__ == "__main__":
    sys.exit(guarded(main))
