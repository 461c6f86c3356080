"""The run folders on this disk: `python -m scripts.runs list`, `… rm RUN…` and `… gc`; all take `--results FOLDER`.

`list` shows memory, data set, when a run was last started, its state, and what it takes of the disk. A file that several runs share
counts once. `rm` removes the runs that are named. `gc` removes, and says why for each:

- an unfinished run that other code or other prompts began: no command can finish it, because today's makes another folder;
- a finished run that another one has superseded: the same memory and settings on the same data, made by today's code and prompts,
  and finished too. Without such a successor a finished run stays, whatever made it;
- a folder without a `run.json`: a start that ended before anything was written;
- a draft of a file (`*.draft`) whose process is gone.

Both list what they would remove and ask; `--yes` answers. Nothing that another process is writing is touched. The cache stays: what
was bought is bought once.
"""

from __future__ import annotations

import sys

from scripts.commands.runs import main
from scripts.experiment.exits import guarded

if __name__ == "__main__":
    sys.exit(guarded(main))
