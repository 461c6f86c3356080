"""Install tab completion of the command: `memsys-bench completion bash|zsh` prints a script; `eval "$(memsys-bench completion bash)"`
loads it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from scripts.command import verbs
from scripts.setup.arguments import verb_parser
from scripts.setup.options import options

GROUP = "develop"

SETTINGS = ("memory", "dataset", "table", "figure", "sweep", "profile", "logger")
"""Settings that name a file of `conf`."""
KINDS = ("memories", "datasets", "judges", "tables", "runs")

ZSH = "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n"
"""zsh code that enables completion functions for bash."""


def script(shell: str) -> str:
    """The script for a shell, `bash` or `zsh`."""
    names = "\n".join(f'      {group}) echo "{" ".join(options(group))}" ;;' for group in SETTINGS)
    fields = {
        "names": names,
        "verbs": " ".join(verbs("GROUP")),
        "kinds": " ".join(KINDS),
        "settings": " ".join(f"{group}=" for group in SETTINGS),
        "settings_or": "|".join(SETTINGS),
        "hydra_or": "|".join(verbs("CONFIG")),
    }
    bash = (Path(__file__).parents[1] / "templates" / "completion.bash.txt").read_text(encoding="utf-8")
    bash = re.sub(r"@(\w+)@", lambda field: fields[field[1]], bash)
    return bash if shell == "bash" else ZSH + bash


def main(arguments: Sequence[str]) -> int:
    parser = verb_parser("completion", __doc__)
    parser.add_argument("shell", choices=("bash", "zsh"))
    print(script(parser.parse_args(arguments).shell), end="")
    return 0
