"""The exponent of a quantity that grows as a power of a size: the slope of least squares on log-log scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eval.statistics.intervals import Interval, Sampling, around


@dataclass(frozen=True, slots=True)
class Exponent:
    """`b` in `y = a n^b`: 1 where y grows in proportion to n, 0 where it does not change."""

    value: float
    interval: Interval | None
    """Student's, with two degrees of freedom fewer than sizes; None for two sizes, and for values on the line, which show no error."""


def exponent(sizes: Sequence[float], values: Sequence[float]) -> Exponent | None:
    """Fit the exponent; None for fewer than two different sizes, and where a value is not above 0 (it has no logarithm).

    The interval assumes that deviations from the line are independent and of equal variance on the log scale. It says how well a power law
    fits the measured sizes, and nothing about larger ones. Totals that contain those of smaller sizes do not fulfil this: for these it
    covers .60 to .79 (simulated), and is not printed. Neither do means over questions that sizes share: .81 to .97 for shares of evidence,
    .60 to .93 for recalled bytes, the less the more histories differ.
    """
    if len(set(sizes)) < 2 or min(*sizes, *values) <= 0:
        return None
    x, y = np.log(np.asarray(sizes, dtype=float)), np.log(np.asarray(values, dtype=float))
    x, y = x - x.mean(), y - y.mean()
    spread = float(x @ x)
    slope = float(x @ y) / spread
    freedom = len(x) - 2
    error = float(np.sum((y - slope * x) ** 2) / max(freedom, 1) / spread) ** 0.5
    # Smaller errors are rounding errors.
    return Exponent(slope, around(slope, Sampling(error, freedom)) if freedom > 0 and error > 1e-9 else None)
