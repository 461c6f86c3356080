"""What memories built, from their run folders and without rebuilding: `python -m scripts.structure RUN [RUN …] [--revenue] …`

Prints the shape of the trees beside the published one where the memory's configuration is a paper's; further parts on request.
`--triplets N` asks the judge's model (MemTree A.3.8): name it with `--with models.judge=gpt-4o-mini network=true`.
"""

from __future__ import annotations

import sys

from scripts.commands.structure import main
from scripts.experiment.exits import guarded

if __name__ == "__main__":
    sys.exit(guarded(main))
