"""Reads a label from a judge's reply. A label counts only if it is a whole phrase.

"NOT CORRECT" does not state CORRECT, and "INCORRECT" and "yesterday" state no label. A reply that states no label, or two
different labels, gives no verdict: the answer stays unscored and is counted as unscored.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

FIELD = r'(?i:"label")\s*:\s*"[^"]*"(?!\s*(?:or\b|[|/]))'
"""The JSON field `label`, but not one that repeats the prompt's choice: `"label": "CORRECT" or "WRONG"`."""
_PIECES = re.compile(r"[,;:\n]|[.!](?=\s|$)|\s[-–—]+\s")
"""Separators of phrases. A question mark does not separate, so "CORRECT? No" states no label."""
_EDGES = " \t\r\n.,:;!\"'`*_()[]{}<>#"


def in_fields(reply: str) -> set[str]:
    """The values of the JSON fields `label` of a reply."""
    return {field.split('"')[3] for field in re.findall(FIELD, reply)}


def label_of(reply: str, labels: Sequence[str]) -> str | None:
    """The label in the JSON field, in any case, else the one that is a phrase of the reply, in capitals; None for none, and for several."""
    found: set[str | None] = {value.strip().upper() for value in in_fields(reply)}
    if not found and len(set(re.findall(rf"\b(?:{'|'.join(labels)})\b", reply))) == 1:
        found = {stated(reply, labels, capitals=True)}
    label = found.pop() if len(found) == 1 else None
    return label if label in labels else None


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


def says_yes(reply: str, *, official: bool) -> bool | None:
    """Whether a reply says yes; None when it states neither yes nor no, or both.

    The official scripts of BEAM (whether a line and an event are the same) and LongMemEval (evaluate_qa.py) look for "yes" anywhere, in
    any case; without it the reply says no.
    """
    if official:
        return "yes" in reply.lower()
    label = stated(reply, ("yes", "no"))
    return None if label is None else label == "yes"
