"""Which of a judge's labels a reply states. A label counts only where it stands alone, never inside another phrase.

"NOT CORRECT" states nothing, although CORRECT is in it; nor do "INCORRECT" and "yesterday". What states no label, or
two that exclude each other, is no verdict: the answer stays unscored and is counted as such.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_PIECES = re.compile(r"[,;:\n]|[.!](?=\s|$)|\s[-–—]+\s")
"""What separates phrases. A question mark does not: "CORRECT? No" states nothing."""
_EDGES = " \t\r\n.,:;!\"'`*_()[]{}<>#"


def stated(reply: str, labels: Sequence[str], *, capitals: bool = False) -> str | None:
    """The one label that a phrase of the reply consists of, as in `labels`; None where there is none.

    None, too, where other phrases consist of another label or begin with one ("No, yes it is").

    Args:
        capitals: labels are written in capitals, so that "correct" in prose is no label; else case does not matter.
    """
    as_compared = str if capitals else str.casefold
    pieces = [as_compared(piece.strip(_EDGES)) for piece in _PIECES.split(reply)]
    whole = [label for label in labels if as_compared(label) in pieces]
    opening = [label for label in labels if any(piece.startswith(f"{as_compared(label)} ") for piece in pieces)]
    return whole[0] if len(whole) == 1 and set(opening) <= set(whole) else None
