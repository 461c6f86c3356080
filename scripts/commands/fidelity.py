"""Compare two memories side by side, such as ours and the released product: `python -m scripts fidelity mem0_v3 released_mem0
dataset=locomo`.

Both get the same units and models. The table compares calls, tokens and stored texts per unit, and recalls and answers per question, each
difference with its interval. Further settings are those of `memsys-bench run`. The table is printed and written to `results/fidelity/`.
"""

from __future__ import annotations

from collections.abc import Sequence

GROUP = "science"


def main(arguments: Sequence[str]) -> int:
    """Compare two memories; return 2 unless exactly two are named."""
    from scripts.lab.fidelity import fidelity
    from scripts.setup.arguments import verb_parser

    parser = verb_parser("fidelity", __doc__)
    parser.add_argument("words", nargs="+", metavar="MEMORY", help="two files of conf/memory; then settings, key=value")
    words = parser.parse_args(arguments).words
    names = [word for word in words if "=" not in word]
    if len(names) != 2:
        parser.error(f"give two memories, such as mem0_v3 released_mem0; found {len(names)}")
    return fidelity(names[0], names[1], [word for word in words if "=" in word])
