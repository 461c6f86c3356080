"""Tab completion of the command: `memsys-bench completion bash|zsh` prints a script; `eval "$(memsys-bench completion bash)"` loads it."""

from __future__ import annotations

import sys

from scripts.experiment.exits import guarded

if __name__ == "__main__":
    from scripts.commands.completion import main

    sys.exit(guarded(main))
