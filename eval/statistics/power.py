"""The smallest paired difference between two memories that is detected with 80 % power.

It is computed from the observed spread of a comparison or, before any run, from an assumption that is printed with it. The test
is the two-sided t-test by case: at 5 % for two memories alone, and for a pair of a table at its level after adjustment for the family.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

from eval.statistics.stats import ALIKE, ENOUGH_CLUSTERS, Sampling, t_point

POWER = 0.8
STEPS = 6
"""Maximum number of steps of the solver; four reach the last digit."""
DISAGREEING = 0.3
"""Assumed share of questions that exactly one of two memories answers right."""
ASSUMED = f"assumed: the two differ on {DISAGREEING:.0%} of the questions"


def detectable(sampling: Sampling, alpha: float = 0.05) -> float:
    """The true difference that a two-sided test at level `alpha` detects with 80 % probability, in the unit of the mean."""
    from scipy.special import nctdtr, nctdtrinc

    freedom, limit = sampling.freedom, t_point(sampling.freedom, 1 - alpha / 2)

    def missed(shift: float) -> float:
        """The probability that a difference of `shift` standard errors is not significant, minus the allowed probability."""
        wrong_side = float(nctdtr(freedom, shift, -limit))
        # NaN: below 1e-300.
        return float(nctdtr(freedom, shift, limit)) - (0.0 if isnan(wrong_side) else wrong_side) - (1 - POWER)

    shift = float(nctdtrinc(freedom, 1 - POWER, limit))  # accurate to 1e-6; it ignores the other tail
    following = shift + 1e-4
    for _ in range(STEPS):  # secant method
        slope = (missed(following) - missed(shift)) / (following - shift) if following != shift else 0.0
        if slope == 0.0:
            break
        shift, following = following, following - missed(following) / slope
    return following * sampling.error


def planned(sizes: Sequence[int], alpha: float = 0.05) -> tuple[float, str] | None:
    """Compute the detectable difference of 0/1 scores and a sentence about the assumption; None for fewer than two questions.

    From five histories on it is by case, with Kish's design effect for unequal sizes; otherwise by question.

    Args:
        sizes: number of questions by history.
        alpha: two-sided level of the test.
    """
    sizes = [size for size in sizes if size]
    questions = sum(sizes)
    if questions < 2:
        return None
    error = (DISAGREEING / questions) ** 0.5
    if len(sizes) < ENOUGH_CLUSTERS:
        return detectable(Sampling(error, questions - 1), alpha), f"{ASSUMED}; by question"
    squares = sum(size**2 for size in sizes)
    inflation = 1 + (squares / questions - 1) * ALIKE
    sampling = Sampling(error * inflation**0.5, max(1.0, questions**2 / squares - 1))
    return detectable(sampling, alpha), f"{ASSUMED}, intraclass correlation {ALIKE}; by case"


def shown(difference: float) -> str:
    """A detectable difference of shares as text; `none` above 1, because no difference is that large."""
    return f"{difference:.3f}" if difference <= 1 else "none"
