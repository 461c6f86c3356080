"""One question of a run, from what was recalled to the verdicts: `python -m scripts.inspect RUN QUESTION [--case CASE] [--data ROOT]`.

`--prompt` adds the prompt as it was sent. `inspect RUN --wrong [--metric NAME]` lists the questions that were answered wrong.
`inspect RUN --worked NAME` shows a question that a paper works through (`conf/worked.yaml`; without NAME: their list).
`inspect RUN --ask TEXT` shows what its memory recalls for any text.
`inspect RUN --design OTHER` compares the trees of two runs (SegTreeMem Table 9).

The layout is that of MemTree Tables A.5-A.9: index, score, depth, ancestors, content. The score is the memory's own, which is not always a
similarity, and items stand as the memory returned them. Question and gold are not in the run folder: they are read from the data set
that `run.json` names, and where that cannot be done, the reason is printed in their place.
"""

from __future__ import annotations

import sys

from scripts.commands.inspect import main
from scripts.experiment.exits import guarded

if __name__ == "__main__":
    sys.exit(guarded(main))
