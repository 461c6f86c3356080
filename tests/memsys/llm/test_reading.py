"""The offline engine's word overlap against its formula, term by term."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from memsys.llm.offline.reading import content, similarities

WORDS = ("kayak", "violin", "Lisbon", "lemon", "trees", "plum", "jam", "recipe", "cat", "grey", "the", "of")
TEXTS = st.lists(st.sampled_from(WORDS), max_size=6).map(" ".join)


def by_formula(query: str, texts: Sequence[str]) -> np.ndarray:
    """Every norm written out: the sum of log(1 + texts / texts with the stem) squared."""
    bags = [content(text) for text in texts]
    frequency = Counter(stemmed for bag in bags for stemmed in bag)
    asked = content(query)

    def norm(bag: frozenset[str]) -> float:
        return math.fsum(math.log(1 + len(bags) / frequency.get(stemmed, 1)) ** 2 for stemmed in bag)

    return np.array([norm(asked & bag) / math.sqrt(norm(asked) * norm(bag)) if asked & bag else 0.0 for bag in bags])


@given(TEXTS, st.lists(TEXTS, max_size=8), TEXTS)
def test_similarities_are_the_formula_to_the_last_bit_also_when_the_texts_are_asked_about_again(
    query: str, texts: list[str], another: str
) -> None:
    for asked in (query, another, query):
        assert similarities(asked, texts).tolist() == by_formula(asked, texts).tolist()
