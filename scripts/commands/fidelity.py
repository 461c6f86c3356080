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

    names = [word for word in arguments if "=" not in word and not word.startswith("-")]
    settings = [word for word in arguments if "=" in word]
    if len(names) != 2 or "--help" in arguments:
        print(__doc__)
        return 0 if "--help" in arguments else 2
    return fidelity(names[0], names[1], settings)
