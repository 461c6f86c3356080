"""Batch files by hand: `python -m scripts.batch export FILE | import FILE | status`.

For a GPU without a network: run any command with `endpoint.mode=collect`, which keeps the calls instead of sending them; `export` writes
them as JSONL for `vllm run-batch`; carry the file over, run it, and `import` its output. The same command then goes on from there: answers
first, judgements in the next round. `status` shows what the journal of `endpoint.mode=batch` holds.
"""

from __future__ import annotations

import sys

from scripts.commands.batch import main
from scripts.experiment.exits import guarded

if __name__ == "__main__":
    sys.exit(guarded(main))
