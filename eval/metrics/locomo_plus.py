"""LoCoMo-Plus: the verdict in a judge's reply on a cue and a reply.

The official reading takes the label of a `{label, reason}` object, else of a whole reply that is JSON, else the first of the words correct,
wrong and partial that occurs anywhere. "This is incorrect." and "Wrong, not correct." are thus correct; an unreadable reply scores 0. A
failed call is an error string there, and is read too ("Incorrect API key" scores 1); here it is never a verdict.
"""

from __future__ import annotations

import json
import re

from eval.metrics.labels import in_fields, stated

_VALUES = {"correct": 1.0, "partial": 0.5}
_LABELS = {"correct": 1.0, "wrong": 0.0}
_OBJECT = re.compile(r"""\{\s*["']label["']\s*:\s*["']([^"']*)["']\s*,\s*["']reason["']""")


def official_label(text: str) -> str:
    """The label that the official script finds in a reply; empty for none."""
    if match := _OBJECT.search(text):
        return match[1]
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, dict):
        return str(value.get("label") or "")
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
