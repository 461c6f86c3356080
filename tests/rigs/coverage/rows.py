"""The results of simulations, and the random scores that they use."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from eval.statistics.stats import Interval

LOCOMO = (199, 105, 193, 260, 242, 158, 190, 239, 196, 204)
"""Questions of LoCoMo's histories."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table of simulations."""

    number: str
    """The printed number, by its name in the first table of docs/statistics.md."""
    situation: str
    measure: str
    """`coverage`, `size`, `power`, or another share."""
    value: float
    repetitions: int


def repeated(repetitions: int, share: float) -> int:
    """A share of the repetitions, at least five."""
    return max(5, round(repetitions * share))


def covered(intervals: Iterable[Interval | None], truth: float) -> float:
    """The share of intervals that hold the truth; an interval that is not printed counts as a miss."""
    return float(np.mean([each is not None and each.low <= truth <= each.high for each in intervals]))


def shares_by_history(rng: np.random.Generator, histories: int, mean: float, alike: float) -> np.ndarray:
    """Shares of right answers from a beta distribution, float64 [histories], with an intraclass correlation of the answers."""
    if alike == 0.0:
        return np.full(histories, mean)
    both = (1 - alike) / alike
    return np.asarray(rng.beta(mean * both, (1 - mean) * both, histories))


def homes_of(sizes: Iterable[int]) -> np.ndarray:
    """The history of each question, numbers from 0."""
    counts = tuple(sizes)
    return np.repeat(np.arange(len(counts)), counts)
