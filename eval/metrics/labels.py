"""Reads a label from a judge's reply. A label counts only if it is a whole phrase.

"NOT CORRECT" does not state CORRECT, and "INCORRECT" and "yesterday" state no label. A reply that states no label, or two
different labels, gives no verdict: the answer stays unscored and is counted as unscored.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_PIECES = re.compile(r"[,;:\n]|[.!](?=\s|$)|\s[-–—]+\s")
"""Separators of phrases. A question mark does not separate, so "CORRECT? No" states no label."""
_EDGES = " \t\r\n.,:;!\"'`*_()[]{}<>#"


def stated(reply: str, labels: Sequence[str], *, capitals: bool = False) -> str | None:
    """The only label that is a phrase of the reply, spelled as in `labels`; None when there is no such label.

    None also when another phrase is a different label or begins with one ("No, yes it is").

    Args:
        capitals: accept labels only in capitals, so that "correct" in prose is no label; otherwise case is ignored.
    """
    as_compared = str if capitals else str.casefold
    pieces = [as_compared(piece.strip(_EDGES)) for piece in _PIECES.split(reply)]
    whole = [label for label in labels if as_compared(label) in pieces]
    opening = [label for label in labels if any(piece.startswith(f"{as_compared(label)} ") for piece in pieces)]
    return whole[0] if len(whole) == 1 and set(opening) <= set(whole) else None
