"""Coverage of means of group means by case and of their differences, of paired quantities (`fidelity`); size of Holm's p (`order-test`)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from eval.statistics.stats import difference, estimate, holm
from tests.rigs.coverage.rows import LOCOMO, Row, covered, homes_of, repeated, shares_by_history

REPETITIONS = 2000
UNEVEN = (10, 20, 30, 40, 50, 60, 80, 100, 150, 200)
"""Questions of ten histories that weigh the same."""
HISTORIES, ABILITIES, EACH = 20, 10, 2
"""As BEAM: so many histories, and so many questions of each of so many categories that weigh the same."""


def rows(share: float = 1.0) -> list[Row]:
    """Simulate all situations with a share of the repetitions."""
    times = repeated(REPETITIONS, share)
    return [*_histories(times), *_categories(times), *_quantities(times), *_orders(times)]


def _histories(times: int) -> Iterator[Row]:
    rng, homes = np.random.default_rng(21), homes_of(UNEVEN)
    for alike in (0.02, 0.1, 0.3):
        luck = [shares_by_history(rng, len(UNEVEN), 0.5, alike)[homes] for _ in range(2 * times)]
        draws = [(rng.random(homes.size) < own).astype(float) for own in luck]
        situation = f"mean of ten histories' means, 10 to 200 questions each, ICC {alike}"
        yield from _compared(situation, draws, homes, homes, 0.5)


def _categories(times: int) -> Iterator[Row]:
    rng = np.random.default_rng(22)
    homes, means = np.repeat(np.arange(HISTORIES), ABILITIES * EACH), np.linspace(0.25, 0.75, ABILITIES)
    groups = np.tile(np.repeat(np.arange(ABILITIES), EACH), HISTORIES)
    for spread in (0.0, 0.1):
        luck = (rng.uniform(-1, 1, HISTORIES)[homes] * 3**0.5 * spread for _ in range(2 * times))
        draws = [(rng.random(homes.size) < means[groups] + own).astype(float) for own in luck]
        situation = (
            f"mean of {ABILITIES} categories' means, {HISTORIES} histories, deviation {spread} between histories"
        )
        yield from _compared(situation, draws, homes, groups, 0.5)


def _compared(
    situation: str, draws: list[np.ndarray], homes: np.ndarray, groups: np.ndarray, mean: float
) -> Iterator[Row]:
    """The mean of the first half of the draws, and the differences from the second half."""
    times = len(draws) // 2
    found = [estimate(own, homes, groups=groups).by_case for own in draws[:times]]  # type: ignore[arg-type]
    yield Row("mean, by case", situation, "coverage", covered(found, mean), times)
    pairs = zip(draws[:times], draws[times:], strict=True)
    gaps = [difference(*pair, homes, test=False, groups=groups) for pair in pairs]
    yield Row("paired difference, by case", situation, "coverage", covered([gap.by_case for gap in gaps], 0.0), times)
    if situation.endswith("deviation 0.0 between histories"):  # by question the questions are independent
        spans = [gap.by_question for gap in gaps]
        yield Row("paired difference, by question", situation, "coverage", covered(spans, 0.0), times)
    significant = np.mean([gap.p_by_case is not None and gap.p_by_case < 0.05 for gap in gaps])
    yield Row("paired difference, by case", situation, "size at 5 %", float(significant), times)


def _quantities(times: int) -> Iterator[Row]:
    """Tokens of two memories by unit: independent units, and units of ten histories that share a tenth of the variance."""
    rng = np.random.default_rng(23)
    for count in (24, 120, 600):
        for shared in (0.0, 0.1):
            homes = np.arange(count) % 10
            deviation = (1 - shared) ** 0.5, shared**0.5
            found = []
            for _ in range(times):
                own = rng.normal(0, deviation[0], (2, count)) + rng.normal(0, deviation[1], (2, 10))[:, homes]
                ours, theirs = np.exp(0.7 * own)
                found.append(difference(ours, theirs, homes, test=False, scores=False).by_question)
            situation = f"log-normal quantities of {count} units, ICC {shared} in ten histories"
            yield Row("paired difference, by question", situation, "coverage", covered(found, 0.0), times)


def _orders(times: int) -> Iterator[Row]:
    """Five memories that no order changes: the probability that any adjusted p is below .05."""
    rng = np.random.default_rng(24)
    for histories in (5, 10):
        homes = homes_of(LOCOMO[:histories])
        false = 0
        for _ in range(times):
            each = rng.normal(0, 0.05, (5, histories))[:, homes] + rng.normal(0, 0.4, (5, homes.size))
            ps = holm([difference(own, 0 * own, homes, test=False, scores=False).p_by_case for own in each])
            false += any(p is not None and p < 0.05 for p in ps)
        situation = f"Holm over five memories (order-test), {histories} LoCoMo histories"
        yield Row("adjusted p", situation, "size, any pair", false / times, times)
