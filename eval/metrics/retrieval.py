"""The retrieval metrics of this project: the share of the evidence that a recall contains, and the form in which it does.

Items of different memories are not comparable: a raw turn has one source, a root summary has every turn as a source.
Therefore three numbers are reported together, and none is meaningful alone:

- `covered_share`: share of evidence turns among the sources of the top items (a root summary covers all),
- `verbatim_share`: share of evidence turns whose own words occur in a top item (a root summary has hardly any),
- `sources_per_item`: number of turns that an item stands for (the price of coverage, instead of a precision).

All but `ndcg_at_k` get the top items alone, best first.

The official retrieval recalls of LoCoMo and PerLTQA are not implemented: no published table that we reproduce prints them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence


def covered_share(items_sources: Sequence[Collection[str]], evidence: Collection[str]) -> float | None:
    """The share of the evidence turns that are sources of the items, in [0, 1]; None without evidence.

    Args:
        items_sources: source turn ids of each recalled item.
        evidence: ids of the evidence turns.
    """
    wanted = set(evidence)
    reached = {source for sources in items_sources for source in sources}
    return len(wanted & reached) / len(wanted) if wanted else None


def verbatim_share(item_texts: Sequence[str], evidence_texts: Sequence[str]) -> float | None:
    """The share of the evidence turns whose text occurs literally in one of the items, in [0, 1].

    White space is normalised on both sides. Only whole words match ("no" is not in "nothing"), and a turn that is split
    between two items does not count. Turns without words are left out; None when no turn remains.
    """
    texts, wanted = ([" ".join(text.split()) for text in own] for own in (item_texts, evidence_texts))
    occurs = [any(_occurs(words, text) for text in texts) for words in wanted if words]
    return sum(occurs) / len(occurs) if occurs else None


def ndcg_at_k(items_sources: Sequence[Collection[str]], evidence: Collection[str], k: int) -> float | None:
    """nDCG of the first `k` items with discount log2(rank + 1), in [0, 1]; None without evidence.

    An item gains 1 when its sources include at least one evidence turn that no earlier item had. The ideal recall has one
    evidence turn per item, so a single summary of everything scores low.
    """
    missing = set(evidence)
    if not missing:
        return None
    discounts = [1 / math.log2(rank + 1) for rank in range(1, k + 1)]
    ideal = sum(discounts[: len(missing)])
    gain = 0.0
    for discount, sources in zip(discounts, items_sources, strict=False):
        if not missing.isdisjoint(sources):
            gain += discount
            missing.difference_update(sources)
    return gain / ideal


def sources_per_item(items_sources: Sequence[Collection[str]]) -> float | None:
    """The mean number of source turns of the items; None when nothing was recalled."""
    counts = [len(set(sources)) for sources in items_sources]
    return sum(counts) / len(counts) if counts else None


def _occurs(words: str, text: str) -> bool:
    """Whether the text contains the words as whole words."""
    at = text.find(words)
    while at >= 0:
        before, after = text[at - 1 : at], text[at + len(words) : at + len(words) + 1]
        if not (before.isalnum() and words[0].isalnum()) and not (after.isalnum() and words[-1].isalnum()):
            return True
        at = text.find(words, at + 1)
    return False
