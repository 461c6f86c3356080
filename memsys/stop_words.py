"""The stop words of English.

A module of its own, because a run depends on the versions of what its modules import (`eval.files.provenance`), and few runs on `bm25s`.
"""

from __future__ import annotations

from functools import cache

from memsys.lean import hide_modules


@cache
def stop_words() -> frozenset[str]:
    """NLTK's English stop words, as shipped with `bm25s`."""
    with hide_modules("numba"):
        from bm25s.stopwords import STOPWORDS_EN_PLUS
    return frozenset(STOPWORDS_EN_PLUS)
