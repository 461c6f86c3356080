"""The three sets of settings of MemoryOS: the paper's, its evaluation code's and the package's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Release:
    """The settings in which the paper, its evaluation code and the package differ."""

    short_term: int
    """Maximum number of pages in the queue."""
    mid_term: int
    """Maximum number of segments."""
    long_term: int | None
    """Maximum number of facts about each side, the oldest dropped first; None for no limit."""
    k: int
    """Mid-term pages recalled."""
    knowledge_k: int
    """Facts about the user recalled."""
    traits_k: int | None
    """Facts about the assistant recalled; None for all."""
    weights: tuple[float, float, float]
    """Weights of visits, length and recency in the heat."""
    decay: float
    """Seconds after which recency is 1/e."""
    thresholds: tuple[float, float, float]
    """Minimum similarity of segments, pages and facts to the question."""
    coldest_goes: bool
    """Which segment is evicted: the segment with the least heat, or the least visited segment."""
    resets_all: bool
    """Whether an analysis resets visits and recency as well as the length."""
    question_keywords: bool
    """Whether the keywords of a question count in the choice of segments."""
    evaluation: bool
    """Whether to reproduce the behaviour of the evaluation code (see `memsys.systems.memoryos`)."""


RELEASES: Mapping[str, Release] = {
    "paper": Release(7, 200, 100, 10, 10, 10, (1, 1, 1), 1e7, (-1, -1, -1), True, False, True, False),
    "code": Release(
        1, 2000, None, 10, 10, None, (0.8, 0.8, 0.0001), math.inf, (0.1, 0.1, 0.1), False, True, True, True
    ),
    "library": Release(10, 2000, 100, 7, 20, 20, (1, 1, 1), 86_400, (0.1, 0.1, 0.01), False, True, False, False),
}
