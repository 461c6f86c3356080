"""Memories at equal token budgets: score against recalled tokens with a band, the area under it, and when a build pays for itself.

- The band is simultaneous: with 95 % probability the true curve lies within it at all budgets. At each budget it is the interval that
  verdicts use (`eval.statistics.stats.preferred_interval`), at the level of Bonferroni's inequality.
- The area is the mean height of the curve on a logarithmic token axis, by the trapezoid rule: a weighted mean of the scores at the budgets,
  so it is a score itself, and its intervals and paired differences are those of every mean (`eval.statistics.stats`).
- A memory that cannot fill a budget is `short`: it shows the reader over 2 % fewer tokens than the budget. It is drawn at the tokens
  that it shows, and has no area.
- The tokens that the reference needs for a score come with the budgets at which a paired comparison cannot tell the two apart
  (the inversion of a test, as Fieller's interval of a ratio is).
- A build pays for itself at the first number of questions about one history where building and asking cost no more than the alternative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, log2

import numpy as np

from eval.statistics.stats import LEVEL, Difference, Estimate, Interval, difference, estimate, preferred_interval

TOLERANCE = 0.02
"""A budget is filled when the recalled tokens are at most this share below it."""
LEAST_SAVING = 0.01
STEPS = 40
"""Points between two budgets at which a score is compared."""
Key = tuple[str, str]
"""Case id and question id."""


@dataclass(frozen=True, slots=True)
class AtBudget:
    """Scores of a memory at one budget."""

    budget: int
    tokens: Mapping[Key, int]
    """Recalled tokens that the reader was shown, by question."""
    scores: Mapping[Key, float]

    @property
    def mean_tokens(self) -> float:
        """Mean over the questions; 0 without any."""
        return float(np.mean(list(self.tokens.values()))) if self.tokens else 0.0

    @property
    def short(self) -> bool:
        """Whether the budget was not filled."""
        return self.mean_tokens < (1 - TOLERANCE) * self.budget

    @property
    def filled(self) -> float:
        """Share of the questions that filled the budget; 0 without any."""
        least = (1 - TOLERANCE) * self.budget
        return float(np.mean([tokens >= least for tokens in self.tokens.values()])) if self.tokens else 0.0


@dataclass(frozen=True, slots=True)
class Curve:
    """Score against tokens of one memory, over the questions that are scored at every budget."""

    places: tuple[AtBudget, ...]
    """Scores by ascending budget."""
    questions: tuple[Key, ...]
    means: tuple[float, ...]
    band: tuple[Interval, ...] | None
    """One interval for each budget; None for fewer than two questions."""
    by_question: np.ndarray
    """Scores [questions, budgets]."""
    clusters: tuple[str, ...]
    """History of each question."""
    groups: tuple[str, ...] | None
    """Group of each question where the column's mean weighs groups equally; None where it weighs questions equally."""

    @property
    def short(self) -> bool:
        """Whether the memory cannot fill every budget."""
        return any(place.short for place in self.places)

    @property
    def heights(self) -> np.ndarray:
        """The area under each question's own curve."""
        return np.asarray(self.by_question @ weights([place.budget for place in self.places]))

    def area(self) -> Estimate:
        """The mean height of the curve."""
        return estimate(self.heights.tolist(), self.clusters, groups=self.groups)


def curve(
    places: Sequence[AtBudget], clusters: Mapping[Key, str], groups: Mapping[Key, str] | None = None
) -> Curve | None:
    """The curve through the budgets; None when no question is scored at all of them.

    `clusters` has the history of each question, in the order in which questions are taken; `groups` has the group that the mean weighs
    equally, and is None for a mean of questions.
    """
    places = sorted(places, key=lambda place: place.budget)
    keys = [key for key in clusters if all(key in place.scores for place in places)]
    if not keys or not places:
        return None
    scores = np.array([[place.scores[key] for place in places] for key in keys])
    homes = tuple(clusters[key] for key in keys)
    own = tuple(groups[key] for key in keys) if groups and len(set(groups.values())) > 1 else None
    means = tuple(estimate(column.tolist(), homes, groups=own).mean for column in scores.T)
    return Curve(tuple(places), tuple(keys), means, band(scores, homes, own), scores, homes, own)


def band(
    scores: np.ndarray, clusters: Sequence[str], groups: Sequence[str] | None = None
) -> tuple[Interval, ...] | None:
    """A simultaneous 95 % band for the column means of scores [questions, budgets]; None for fewer than two questions."""
    level = 1 - (1 - LEVEL) / scores.shape[1]
    estimates = (estimate(column.tolist(), clusters, level=level, groups=groups) for column in scores.T)
    intervals = list(map(preferred_interval, estimates))
    known = tuple(interval for interval in intervals if interval is not None)
    return known if len(known) == len(intervals) else None


def weights(budgets: Sequence[int]) -> np.ndarray:
    """Return the weights of the trapezoid rule on a logarithmic axis; they add up to 1.

    Raises:
        ValueError: the budgets do not ascend.
    """
    if any(first >= second for first, second in pairwise(budgets)):
        raise ValueError(f"budgets must ascend, found {list(budgets)}")
    if len(budgets) == 1:
        return np.ones(1)
    steps = np.diff(np.log2(budgets))
    both = np.concatenate([[0.0], steps]) + np.concatenate([steps, [0.0]])
    return np.asarray(both / both.sum())


def area_gap(first: Curve, second: Curve) -> Difference | None:
    """The paired difference of two areas over the questions that both curves have; None when there are none, or the budgets differ."""
    if [place.budget for place in first.places] != [place.budget for place in second.places]:
        return None
    ours, theirs = (dict(zip(each.questions, each.heights.tolist(), strict=True)) for each in (first, second))
    places = [place for place, key in enumerate(first.questions) if key in theirs]
    if not places:
        return None
    shared = [first.questions[place] for place in places]
    pairs = [ours[key] for key in shared], [theirs[key] for key in shared]
    own = first.groups and [first.groups[place] for place in places]
    return difference(*pairs, [first.clusters[place] for place in places], groups=own)


# --- the cost of a build, and when it pays for itself ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Expense:
    """US dollars for one history."""

    build: float
    first: float
    """The first question."""
    later: float
    """Every further question; less than the first where a provider caches what the prompts share."""

    def of(self, questions: int) -> float:
        """Return the dollars for the build and this number of questions (at least one)."""
        return self.build + self.first + (questions - 1) * self.later


def break_even(ours: Expense, other: Expense) -> int | None:
    """The fewest questions about one history for which ours costs no more than the other; None where it never does.

    A saving below `LEAST_SAVING` of a question's price counts as none: prices differ by as much because answers differ in length.
    """
    if ours.of(1) <= other.of(1):
        return 1
    saved = other.later - ours.later
    if saved <= LEAST_SAVING * other.later:
        return None
    return 1 + ceil((ours.of(1) - other.of(1)) / saved * (1 - 1e-12))


def tokens_for(score: float, budgets: Sequence[float], means: Sequence[float]) -> float | None:
    """The fewest tokens at which a curve reaches a score, interpolated on the logarithmic axis; None where it never does."""
    points = list(zip(budgets, means, strict=True))
    if points[0][1] >= score:
        return float(points[0][0])
    for (left, low), (right, high) in pairwise(points):
        if high >= score:
            share = (score - low) / (high - low)
            return float(2 ** (log2(left) + share * (log2(right) - log2(left))))
    return None


@dataclass(frozen=True, slots=True)
class Needed:
    """The tokens that a curve may need for a score."""

    low: float | None
    """None where the curve does not reach the score at any budget."""
    high: float | None
    """None where it is not certain that the curve reaches the score."""


def tokens_within(scores: Mapping[Key, float], other: Curve) -> Needed | None:
    """The 95 % interval of the tokens at which a curve reaches the mean of some scores; None without two shared questions.

    It begins where a paired comparison no longer puts the curve below the scores, and ends where it puts the curve above them. The
    comparison uses the interval by case where there is one.
    """
    rows = [place for place, key in enumerate(other.questions) if key in scores]
    if len(rows) < 2:
        return None
    ours, heights = [scores[other.questions[row]] for row in rows], other.by_question[rows]
    homes, own = [other.clusters[row] for row in rows], other.groups and [other.groups[row] for row in rows]
    sizes = [log2(place.mean_tokens) for place in other.places]
    low: float | None = None
    last = len(sizes) - 1
    for place in np.linspace(0.0, last, STEPS * last + 1):
        # Weights of the budgets to the left and right of `place`.
        weights_here = np.maximum(0.0, 1.0 - np.abs(np.arange(len(sizes)) - place))
        gap = difference((heights @ weights_here).tolist(), ours, homes, test=False, groups=own)
        interval = gap.by_case or gap.by_question
        assert interval is not None, "scores have an interval from two questions on"
        tokens = float(2 ** (weights_here @ sizes))
        if low is None and interval.high >= 0.0:
            low = tokens
        if interval.low > 0.0:
            return Needed(low, tokens)
    return Needed(low, None)
