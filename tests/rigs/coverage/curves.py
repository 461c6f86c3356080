"""Coverage of the band around a curve, and of the tokens that a curve needs for a score."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from eval.analysis.budgets import AtBudget, band, curve, tokens_within
from tests.rigs.coverage.rows import Row, homes_of, repeated, shares_by_history

REPETITIONS = 400
SIZES = (1000, 2000, 4000, 8000)


def rows(share: float = 1.0) -> list[Row]:
    """Simulate all situations.

    Args:
        share: share of the repetitions.
    """
    return [*_bands(repeated(REPETITIONS, share)), *_tokens(repeated(REPETITIONS // 4, share))]


def _bands(times: int) -> Iterator[Row]:
    rng = np.random.default_rng(1)
    curves = {"scores .3 to .6": (0.3, 0.4, 0.5, 0.6), "scores .02 to .1": (0.02, 0.04, 0.07, 0.1)}
    for histories in (3, 5, 10, 20):
        for name, heights in curves.items():
            truth, homes, hits = np.array(heights), homes_of([40] * histories), 0
            for _ in range(times):
                luck = np.stack([shares_by_history(rng, histories, each, 0.05) for each in heights], axis=1)[homes]
                found = band((rng.random((homes.size, 1)) < luck).astype(float), homes)  # type: ignore[arg-type]
                hits += found is not None and all(
                    each.low <= value <= each.high for each, value in zip(found, truth, strict=True)
                )
            situation = f"{histories} histories of 40 questions, {name}, ICC 0.05"
            yield Row("band of a curve", situation, "coverage of all four", hits / times, times)


def _tokens(times: int) -> Iterator[Row]:
    rng = np.random.default_rng(2)
    for histories in (5, 10):
        keys = [(str(place), f"{place} {number}") for place in range(histories) for number in range(60)]
        homes, cases = {key: key[0] for key in keys}, homes_of([60] * histories)
        hits = open_ends = 0
        for _ in range(times):
            luck = rng.normal(0.0, 0.08, histories)[cases]
            right = rng.random((len(SIZES) + 1, len(keys))) < np.array([0.3, 0.4, 0.5, 0.6, 0.45])[:, None] + luck
            scores = [dict(zip(keys, map(float, each), strict=True)) for each in right]
            places = [AtBudget(size, dict.fromkeys(keys, size), own) for size, own in zip(SIZES, scores, strict=False)]
            drawn = curve(places, homes)
            needed = None if drawn is None else tokens_within(scores[-1], drawn)
            assert needed is not None, "all questions have scores"
            hits += (needed.low or np.inf) <= 2000 * 2**0.5 <= (needed.high or np.inf)
            open_ends += needed.high is None
        situation = f"{histories} histories of 60 questions, 2,828 tokens in truth"
        yield Row("tokens for a score, break-even at equal score", situation, "coverage", hits / times, times)
        yield Row("tokens for a score, break-even at equal score", situation, "open end", open_ends / times, times)
