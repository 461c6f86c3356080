"""Frequencies of the verdicts on a published number, when both labs asked the same questions.

An answer's score is right with a probability of its own (beta-distributed), so that two runs give different scores to `FLIPS` of the
questions. An effect of one build on all questions of a history, and an effect of a run on all questions, may be added.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

import numpy as np

from eval.report.published import FLIPS, MARGIN, between_builds, decided
from tests.rigs.coverage.rows import LOCOMO, Row, repeated

REPETITIONS = 2000
SHIFTS = (0.0, -0.02, -0.03, -0.05, -0.08)
ROUNDED = 0.001**2 / 12


@dataclass(frozen=True, slots=True)
class Situation:
    """A simulated situation."""

    name: str
    sizes: tuple[int, ...]
    """Questions of each history."""
    builds: int = 1
    flips: float = FLIPS
    of_history: float = 0.0
    """Standard deviation of a build's effect on a whole history."""
    of_run: float = 0.0
    """Standard deviation of a run's effect on all questions."""


SITUATIONS = (
    Situation("10 LoCoMo histories, 1 build", LOCOMO),
    Situation("10 LoCoMo histories, 3 builds", LOCOMO, builds=3),
    Situation("10 LoCoMo histories, 3 builds, each history ±.03 a build", LOCOMO, builds=3, of_history=0.03),
    Situation("10 LoCoMo histories, 3 builds, all ±.01 a run", LOCOMO, builds=3, of_run=0.01),
    Situation("10 LoCoMo histories, 1 build, 16 % of answers change", LOCOMO, flips=2 * FLIPS),
    Situation("5 histories of 40, 1 build", (40,) * 5),
    Situation("5 histories of 40, 2 builds", (40,) * 5, builds=2),
    Situation("5 histories of 40, 3 builds", (40,) * 5, builds=3),
    Situation("5 histories of 40, 3 builds, all ±.01 a run", (40,) * 5, builds=3, of_run=0.01),
    Situation("1 history of 500, 2 builds", (500,), builds=2),
    Situation("1 history of 500, 3 builds", (500,), builds=3),
    Situation("5 histories of 40, 3 builds, no answer changes", (40,) * 5, builds=3, flips=0.0),
)


def rows(share: float = 1.0) -> list[Row]:
    """Simulate all situations.

    Args:
        share: share of the repetitions.
    """
    times = repeated(REPETITIONS, share)
    return [row for number, each in enumerate(SITUATIONS) for row in _situation(each, times, number)]


def _situation(situation: Situation, times: int, seed: int) -> Iterator[Row]:
    rng = np.random.default_rng(seed)
    parts, least = runs(situation, times, rng)
    for shift in SHIFTS:
        equivalent, differs = verdicts(parts, least, sum(situation.sizes), shift)
        name = f"{situation.name}, true gap {shift:+.2f}"
        yield Row("verdict", name, "equivalent", float(equivalent.mean()), times)
        yield Row("verdict", name, "differs", float(differs.mean()), times)


def runs(situation: Situation, times: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Contribution of each history to the mean of each run, and the variance of our means if answers are independent.

    Returns:
        float64 [times, histories, builds + 1], the last run is theirs; float64 [times], 0 for one build.
    """
    size = sum(situation.sizes)
    count = situation.builds + 1
    parts, least = np.zeros((times, len(situation.sizes), count)), np.zeros(times)
    whole = rng.normal(0.0, situation.of_run, (times, 1, count))
    parts += whole * np.array(situation.sizes)[:, None] / size
    # Two runs differ where one of them is right: 2 p (1 - p) on average, with p from a symmetric beta distribution of parameter a.
    spread = situation.flips / (1 - 2 * situation.flips)
    for history, questions in enumerate(situation.sizes):
        if spread:
            likely = rng.beta(spread, spread, (times, questions))
        else:
            likely = rng.integers(0, 2, (times, questions)).astype(float)
        often = np.zeros((times, questions))
        for run in range(count):
            right = rng.random((times, questions)) < likely
            often += right * (run < situation.builds)
            parts[:, history, run] += right.sum(axis=1) / size
            parts[:, history, run] += rng.normal(0.0, situation.of_history, times) * questions / size
        share = often / situation.builds
        least += (share * (1 - share)).sum(axis=1) * situation.builds / max(1, situation.builds - 1) / size**2
    return parts, least


def verdicts(parts: np.ndarray, least: np.ndarray, size: int, shift: float) -> tuple[np.ndarray, np.ndarray]:
    """Whether our mean and the published one are equivalent, and whether they differ, by repetition.

    Args:
        parts, least: from `runs`.
        size: number of questions.
        shift: our true mean minus theirs.
    """
    means = parts.sum(axis=1)
    ours, builds = means[:, :-1], parts.shape[-1] - 1
    gap = ours.mean(axis=1) - (means[:, -1] - shift).round(3)
    if builds > 1:
        variance, freedom = between_builds(parts[..., :-1], least)
    else:
        variance, freedom = np.full(len(gap), FLIPS / 2 / size), np.full(len(gap), inf)
    total = variance * (1 / builds + 1) + ROUNDED
    measured = np.maximum(variance * (1 / builds + 1), 1e-15)
    freedom = freedom * (total / measured) ** 2
    return decided(gap, gap, total**0.5, freedom, MARGIN)
