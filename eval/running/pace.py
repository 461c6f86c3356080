"""How long the chain of dependent calls of a cell still is: estimated from the plan's sample, and from the steps of all its run's cells."""

from __future__ import annotations

import threading

PRIOR = 0.5
"""Weight of the first estimate, as a share of the smallest history."""


class Pace:
    """Dependent calls per unit of a run's sizes, smoothed over what its cells have done so far.

    Args:
        first: the first estimate: of the plan, or 1 for a memory that calls a model and 0 for one that does not.
        smallest: the smallest size.
    """

    def __init__(self, first: float, smallest: float) -> None:
        self._weight = max(PRIOR * smallest, 1e-9)
        self._calls, self._size = first * self._weight, self._weight
        self._lock = threading.Lock()

    def add(self, calls: float, size: float) -> None:
        """Count a step: its dependent calls, and the share of its history's size that it covers."""
        with self._lock:
            self._calls += calls
            self._size += size

    def calls(self, size: float) -> float:
        """Dependent calls that so much of a history takes."""
        return size * self._calls / self._size
