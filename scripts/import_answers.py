"""Score answers of others: `python -m scripts.import_answers FILE dataset=locomo as=memobase [key=value …]`.

Reads Mem0's evaluation format and its forks (Memobase), Zep's grades, OmniMemEval's LoCoMo files, our own predictions and run folders.
The answers are joined with the data set by conversation and question, and become a run like any other: every lexical metric at once,
their own grades beside ours, intervals, `scripts.runs`, `scripts.inspect`. What cannot be joined is listed, and the exit code is then 1.

`as=` names the run. `format=`, `title=`, `by=`, `licence=` and `source=` say what the file does not. Real data are the default;
`protocol.judges=[mem0]` asks a judge; other settings are those of `scripts.run`.
"""

from __future__ import annotations

import sys

from scripts.answers.command import main
from scripts.experiment.exits import guarded

if __name__ == "__main__":
    sys.exit(guarded(main))
