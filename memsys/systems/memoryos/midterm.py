"""The mid-term memory of MemoryOS: segments of pages about one subject, and their heat (Eq. 3 and 4); and the three sets of settings, the
paper's, its evaluation code's and the package's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np

from data_loaders.schema import Role, Unit
from memsys.vectors import Vectors


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


@dataclass(slots=True)
class Page:
    """A unit on its way through the memory; its number is its row in the matrix of page vectors."""

    number: int
    unit: Unit
    chain: int = -1
    """Number of the run of continuous pages it belongs to, once it has left the queue."""
    segments: list[int] = field(default_factory=list)
    analysed: bool = False

    def text_of(self, *roles: Role) -> str:
        """The text of the turns that have one of the roles."""
        return "\n".join(turn.text for turn in self.unit.turns if turn.role in roles).strip()


@dataclass(slots=True)
class Segment:
    """Pages about one subject."""

    number: int
    row: int
    """Row in the matrix of segment vectors; the row of an evicted segment is used again."""
    summary: str
    keywords: frozenset[str]
    last: datetime | None
    """Time at which the segment was last visited, or last got a page."""
    pages: list[Page] = field(default_factory=list)
    visits: int = 0
    length: int = 0
    """Pages since the last analysis; 1 more for each page that came nearest to it and got a segment of its own (evaluation code)."""
    accessed: int = 0
    """Visits in all: never reset."""


@dataclass(frozen=True, slots=True)
class Theme:
    """A subject of a page."""

    summary: str
    keywords: frozenset[str]


class MidTerm:
    """The segments and the pages filed in them.

    Args:
        release: weights of the heat, eviction, and the rule of similarity.
        capacity: maximum number of segments.
    """

    def __init__(self, release: Release, capacity: int) -> None:
        self._release, self._capacity = release, capacity
        self.segments: dict[int, Segment] = {}
        """The segments by number, the oldest first."""
        self.pages: dict[int, Page] = {}
        """Pages that are in at least one segment, by number."""
        self._vectors = Vectors()
        self._free_rows: list[int] = []
        self._created = 0

    def vector(self, segment: Segment) -> np.ndarray:
        """A copy of the segment's vector, float32 [d]."""
        vector: np.ndarray = self._vectors.matrix[segment.row].copy()
        return vector

    def similarities(self, vector: np.ndarray, keywords: frozenset[str]) -> np.ndarray:
        """Similarity of each segment to a vector and keywords, float [segments], the oldest segment first.

        It is cosine + Jaccard of the keywords (Eq. 3), and in the evaluation code the cosine alone.
        """
        segments = list(self.segments.values())
        scores: np.ndarray = self._vectors.similarities(vector)[[segment.row for segment in segments]]
        if not self._release.evaluation:
            scores = scores + np.array([jaccard(keywords, segment.keywords) for segment in segments])
        return scores

    def nearest(self, theme: Theme, vector: np.ndarray) -> tuple[Segment | None, float]:
        """The segment most similar to a theme and how well it fits; (None, 0) where there is no segment."""
        if not self.segments:
            return None, 0.0
        scores = self.similarities(vector, theme.keywords)
        place = int(np.argmax(scores))
        segment = list(self.segments.values())[place]
        overlap = mean_overlap(theme.keywords, segment.keywords) if self._release.evaluation else 0.0
        return segment, float(scores[place]) + overlap

    def create(self, theme: Theme, vector: np.ndarray, now: datetime | None) -> Segment:
        """A new segment without pages."""
        segment = Segment(self._created, self._row(vector), theme.summary, theme.keywords, now)
        self._created += 1
        self.segments[segment.number] = segment
        return segment

    def file(self, page: Page, segment: Segment, now: datetime | None) -> None:
        """Put the page into the segment, unless it is there already."""
        segment.last = now
        if segment.number not in page.segments:
            segment.pages.append(page)
            segment.length += 1
            page.segments.append(segment.number)
            self.pages[page.number] = page

    def evict(self, now: datetime | None) -> bool:
        """Remove a segment if there are more than the capacity; return whether a segment was removed."""
        if len(self.segments) <= self._capacity:
            return False

        def worth(segment: Segment) -> float:
            return self.heat(segment, now) if self._release.coldest_goes else segment.accessed

        evicted = min(self.segments.values(), key=worth)
        del self.segments[evicted.number]
        self._free_rows.append(evicted.row)
        for page in evicted.pages:
            page.segments.remove(evicted.number)
            if not page.segments:
                del self.pages[page.number]
        return True

    def heat(self, segment: Segment, now: datetime | None) -> float:
        """The heat of a segment at the time `now`; recency is 1 where a time is unknown."""
        elapsed = (now - segment.last).total_seconds() if now and segment.last else 0.0
        return heat(segment.visits, segment.length, recency(elapsed, self._release.decay), self._release.weights)

    def hottest(self, threshold: float, now: datetime | None) -> Segment | None:
        """The segment with the most heat, if that is at least `threshold`."""
        # Recency is at most 1, so the exact heat matters only for segments that reach the threshold with recency 1.
        candidates = [
            segment
            for segment in self.segments.values()
            if heat(segment.visits, segment.length, 1.0, self._release.weights) >= threshold
        ]
        hottest = max(candidates, key=lambda segment: self.heat(segment, now), default=None)
        return hottest if hottest is not None and self.heat(hottest, now) >= threshold else None

    def _row(self, vector: np.ndarray) -> int:
        if not self._free_rows:
            return self._vectors.add(vector)
        row = self._free_rows.pop()
        self._vectors.matrix[row] = vector
        return row


def heat(visits: int, length: int, recency: float, weights: tuple[float, float, float]) -> float:
    """alpha · N_visit + beta · L_interaction + gamma · R_recency (Eq. 4)."""
    return weights[0] * visits + weights[1] * length + weights[2] * recency


def recency(seconds: float, decay: float) -> float:
    """exp(-seconds / decay), in [0, 1]; 1 for an infinite decay and for a negative time."""
    return math.exp(-max(0.0, seconds) / decay)


def jaccard(first: frozenset[str], second: frozenset[str]) -> float:
    """Shared keywords over all keywords, in [0, 1]; 0 where either set is empty."""
    return len(first & second) / len(first | second) if first and second else 0.0


def mean_overlap(first: frozenset[str], second: frozenset[str]) -> float:
    """The share of shared keywords in each set, averaged over the two; in [0, 1], 0 where either set is empty."""
    shared = len(first & second)
    return (shared / len(first) + shared / len(second)) / 2 if shared else 0.0
