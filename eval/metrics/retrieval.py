"""How much of the evidence a recall brings back, and in what form: the retrieval metrics of this harness.

Items of different memories are not alike: a raw turn has one source, a root summary has every turn as a source. So
three numbers stand side by side and none is read alone:

- `covered_at_k`: evidence turns among the sources of the top items (a root summary has all of them),
- `verbatim_at_k`: evidence turns whose own words stand in a top item (a root summary has hardly any),
- `sources_per_item`: how many turns an item stands for (the price of coverage, in place of a precision).

The benchmarks' own retrieval metrics live in their files: `eval.metrics.longmemeval`, `eval.metrics.realmem`, `eval.metrics.multihop_rag`,
`eval.metrics.locomo`, `eval.metrics.perltqa`. No deviation to name: these are ours.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import TypeVar

T = TypeVar("T")


def covered_at_k(items_sources: Sequence[Collection[str]], evidence: Collection[str], k: int) -> float | None:
    """The share of the evidence turns among the sources of the first `k` items, in [0, 1].

    Arguments: the source turn ids of each recalled item, best first, and the evidence turn ids. None when there is no
    evidence to find. Raises ValueError when `k` is below 1.
    """
    wanted = set(evidence)
    reached = {source for sources in _top(items_sources, k) for source in sources}
    return len(wanted & reached) / len(wanted) if wanted else None


def verbatim_at_k(item_texts: Sequence[str], evidence_texts: Sequence[str], k: int) -> float | None:
    """The share of the evidence turns whose own words occur literally in one of the first `k` items, in [0, 1].

    White space is folded on both sides; a turn cut in two by a chunk border does not count, nor does "no" in "nothing".
    Turns without words are left out; None when that leaves none. Raises ValueError when `k` is below 1.
    """
    texts = [_folded(text) for text in _top(item_texts, k)]
    wanted = [words for text in evidence_texts if (words := _folded(text))]
    found = [any(_occurs(words, text) for text in texts) for words in wanted]
    return sum(found) / len(found) if found else None


def ndcg_at_k(items_sources: Sequence[Collection[str]], evidence: Collection[str], k: int) -> float | None:
    """How early the first `k` items bring evidence that was not there yet, in [0, 1] (nDCG, discount log2(rank + 1)).

    An item gains 1 when it has at least one new evidence turn among its sources, however many: the ideal recall has one
    evidence turn per item, so that one summary of everything is far from ideal. None when there is no evidence to find.
    Raises ValueError when `k` is below 1.
    """
    missing = set(evidence)
    if not missing:
        return None
    ideal = sum(_discount(rank) for rank in range(1, min(k, len(missing)) + 1))
    gain = 0.0
    for rank, sources in enumerate(_top(items_sources, k), start=1):
        if not missing.isdisjoint(sources):
            gain += _discount(rank)
            missing.difference_update(sources)
    return gain / ideal


def sources_per_item(items_sources: Sequence[Collection[str]], k: int) -> float | None:
    """The mean number of turns that one of the first `k` items stands for; None when nothing was recalled.

    Raises ValueError when `k` is below 1.
    """
    counts = [len(set(sources)) for sources in _top(items_sources, k)]
    return sum(counts) / len(counts) if counts else None


def _top(items: Sequence[T], k: int) -> Sequence[T]:
    if k < 1:
        raise ValueError(f"k must be at least 1, found {k}")
    return items[:k]


def _discount(rank: int) -> float:
    return 1 / math.log2(rank + 1)


def _folded(text: str) -> str:
    return " ".join(text.split())


def _occurs(words: str, text: str) -> bool:
    """Whether the words stand in the text as whole words."""
    at = text.find(words)
    while at >= 0:
        before, after = text[at - 1 : at], text[at + len(words) : at + len(words) + 1]
        if not (before.isalnum() and words[0].isalnum()) and not (after.isalnum() and words[-1].isalnum()):
            return True
        at = text.find(words, at + 1)
    return False
