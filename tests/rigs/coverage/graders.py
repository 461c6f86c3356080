"""Coverage of the intervals of kappa and alpha."""

from __future__ import annotations

import numpy as np

from eval.judging.agreement import agreement
from tests.rigs.coverage.rows import Row, covered, homes_of, repeated, shares_by_history

REPETITIONS = 400
CELLS = [
    (histories, size, skill, alike)
    for histories, size in ((1, 100), (5, 40), (10, 30), (35, 20))
    for skill, alike in ((0.7, 0.0), (0.95, 0.0), (0.7, 0.1), (0.95, 0.1))
    if histories > 1 or alike == 0.0
]


def rows(share: float = 1.0) -> list[Row]:
    """Simulate two graders: the first sees the truth; the second sees it with a probability (kappa), and guesses otherwise.

    Args:
        share: share of the repetitions.
    """
    rng, times, found = np.random.default_rng(1), repeated(REPETITIONS, share), []
    for histories, size, skill, alike in CELLS:
        homes = homes_of([size] * histories)
        clusters = dict(enumerate(homes.astype(str).tolist()))
        results = []
        for _ in range(times):
            truth = rng.random(homes.size) < 0.6
            sees = rng.random(homes.size) < shares_by_history(rng, histories, skill, alike)[homes]
            other = np.where(sees, truth, rng.random(homes.size) < 0.6)
            result = agreement([dict(enumerate(truth.tolist())), dict(enumerate(other.tolist()))], clusters)
            assert result is not None, "both graded every answer"
            results.append(result)
        situation = f"{histories} histories of {size} answers, kappa {skill}, ICC {alike}"
        for name, intervals in {
            "kappa": [each.kappa_interval for each in results],
            "alpha": [each.alpha_interval for each in results],
        }.items():
            found.append(Row(name, situation, "coverage", covered(intervals, skill), times))
    return found
