"""LoCoMo-Plus: the verdict in a judge's reply on a cue and a reply.

The official reading takes the label of a `{label, reason}` object with its names in double quotes, else of a whole reply that is JSON, else
the first of the words correct, wrong and partial that occurs anywhere. "This is incorrect.", "Wrong, not correct." and a Python dict
`{'label': 'wrong', 'reason': 'not correct'}` are thus correct; an unreadable reply scores 0. A failed call is an error string there, and is
read too ("Incorrect API key" scores 1); here it is never a verdict.
"""

from __future__ import annotations

import json
import re

from eval.metrics.labels import in_fields, stated

_VALUES = {"correct": 1.0, "partial": 0.5}
_LABELS = {"correct": 1.0, "wrong": 0.0}
_LABEL = re.compile(r""""label"\s*:\s*["']([^"']+)["']""")
_REASON = re.compile(r""""reason"\s*:\s*["'][^"']*["']""")


def official_label(text: str) -> str:
    """The label that the official script finds in a reply; empty for none."""
    for fields in re.findall(r"\{([^{}]*)", text):
        last = max((match.start() for match in _REASON.finditer(fields)), default=0)
        if labels := _LABEL.findall(fields[:last]):
            return str(labels[-1])
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    found = [value.get(name) or "" for name in ("label", "reason")] if isinstance(value, dict) else [None]
    if all(isinstance(each, str) for each in found):
        return str(found[0])
    folded = text.lower()
    return next((word for word in ("correct", "wrong", "partial") if word in folded), "")


def official_score(text: str) -> float:
    """1 for correct, .5 for partial, else 0, as the official script scores a reply."""
    return _VALUES.get(official_label(text).strip().lower(), 0.0)


def verdict(text: str) -> float | None:
    """1 for correct and 0 for wrong; None for a reply that states neither or both."""
    labels = {label.lower() for label in in_fields(text)}
    if not labels and (label := stated(text, tuple(_LABELS))):
        labels = {label}
    return _LABELS.get(labels.pop()) if len(labels) == 1 else None
