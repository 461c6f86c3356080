"""Install tab completion of the command: `memsys-bench completion bash|zsh` prints a script; `eval "$(memsys-bench completion bash)"`
loads it."""

from __future__ import annotations

from collections.abc import Sequence

from scripts.command import verbs
from scripts.setup.arguments import verb_parser
from scripts.setup.options import options

GROUP = "develop"

SETTINGS = ("memory", "dataset", "table", "figure", "sweep", "profile", "logger")
"""Settings that name a file of `conf`."""
KINDS = ("memories", "datasets", "judges", "tables", "runs")

BASH = """\
_memsys_bench_names() {{  # of a group of conf: the shipped ones and those of the working folder
  {{
    case "$1" in
{names}
    esac
    find "conf/$1" -maxdepth 1 -name '*.yaml' -exec basename {{}} .yaml \\; 2>/dev/null
  }} | tr ' ' '\\n' | sort -u
}}
_memsys_bench_runs() {{
  find results/runs -mindepth 2 -maxdepth 2 -type d 2>/dev/null
}}
_memsys_bench() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" verb="${{COMP_WORDS[1]}}" group=""
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{verbs}" -- "$word")); return
  fi
  if [ "$word" = "=" ]; then group="$before"; word=""; fi                    # readline splits memory=bm25 at the sign
  if [ "$before" = "=" ]; then group="${{COMP_WORDS[COMP_CWORD-2]}}"; fi
  if [ "$before" = "--dataset" ]; then group="dataset"; fi
  case "$group" in
    {settings_or}) COMPREPLY=($(compgen -W "$(_memsys_bench_names "$group")" -- "$word")); return ;;
  esac
  case "$verb" in
    list) COMPREPLY=($(compgen -W "{kinds}" -- "$word")) ;;
    completion) COMPREPLY=($(compgen -W "bash zsh" -- "$word")) ;;
    compare) COMPREPLY=($(compgen -W "$(_memsys_bench_names memory) --dataset --limit --metric --questions --print" -- "$word")) ;;
    inspect) COMPREPLY=($(compgen -W "$(_memsys_bench_runs) --wrong --prompt --metric --case --data --width" -- "$word")) ;;
    structure|card) COMPREPLY=($(compgen -W "$(_memsys_bench_runs)" -- "$word")) ;;
    {hydra_or}) COMPREPLY=($(compgen -W "{settings}" -- "$word")); compopt -o nospace 2>/dev/null ;;
  esac
}}
complete -o default -F _memsys_bench memsys-bench
"""
ZSH = "autoload -Uz compinit bashcompinit && compinit && bashcompinit\n"
"""zsh code that enables completion functions for bash."""


def script(shell: str) -> str:
    """The script for a shell, `bash` or `zsh`."""
    names = "\n".join(f'      {group}) echo "{" ".join(options(group))}" ;;' for group in SETTINGS)
    bash = BASH.format(
        names=names,
        verbs=" ".join(verbs("GROUP")),
        kinds=" ".join(KINDS),
        settings=" ".join(f"{group}=" for group in SETTINGS),
        settings_or="|".join(SETTINGS),
        hydra_or="|".join(verbs("CONFIG")),
    )
    return bash if shell == "bash" else ZSH + bash


def main(arguments: Sequence[str]) -> int:
    parser = verb_parser("completion", __doc__)
    parser.add_argument("shell", choices=("bash", "zsh"))
    print(script(parser.parse_args(arguments).shell), end="")
    return 0
