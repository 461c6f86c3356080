"""Counts of a data set, and their differences from the published counts.

Some loaders were written from the description of files that this project could not get. Their data sets say so (`untested` in
conf/dataset), and the first run on the real files compares its counts with the counts that the authors published.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from data_loaders.schema import Case

UNTESTED = "data_status: untested on the released files"
"""A text in the caption of every table of such a data set."""


def counts_of(cases: Iterable[Case]) -> Counter[str]:
    """Numbers of histories, sessions, turns and questions; those of each category under its own name."""
    counts: Counter[str] = Counter()
    for case in cases:
        counts["histories"] += 1
        counts["sessions"] += len(case.sessions)
        counts["turns"] += len(case.turns)
        counts["questions"] += len(case.questions)
        counts.update(gold.category for _, gold in case.questions)
    return counts


def compared(published: Mapping[str, int], found: Mapping[str, int]) -> str:
    """A sentence on the published counts: it says that they are the same, or names each count that differs."""
    differing = [
        f"{name} {found.get(name, 0):,} (published {count:,})"
        for name, count in published.items()
        if found.get(name, 0) != count
    ]
    if differing:
        return f"counts differ from the published ones: {', '.join(differing)}"
    return f"counts as published ({', '.join(f'{name} {count:,}' for name, count in published.items())})"
