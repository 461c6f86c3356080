"""Coverage of the intervals of variance components, and the true power of the designs that are proposed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from eval.statistics.stats import t_point
from eval.statistics.variance import PARTS, Components, Design, Draws, Tokens, cheapest, components, contributions
from tests.rigs.coverage.rows import Row, covered, repeated

REPETITIONS = 60
VARIANCES = {"history": 0.0025, "question": 0.02, "build": 0.002, "answer": 0.1, "judge": 0.02}
GAPS = {"history": 0.0025, "question": 0.0, "build": 0.001, "answer": 0.15, "judge": 0.02}
COSTS = Tokens(build=50_000, answer=1_000, judge=500)


def rows(share: float = 1.0) -> list[Row]:
    """Simulate all situations.

    Args:
        share: share of the repetitions.
    """
    return [*_components(repeated(3 * REPETITIONS, share)), *_plans(repeated(REPETITIONS, share))]


def _components(times: int) -> Iterator[Row]:
    for histories in (10, 20):
        rng = np.random.default_rng(histories)
        found = [components(pilot(rng, VARIANCES, histories, 12, 3, 2)) for _ in range(times)]
        for part in PARTS:
            value = covered([each.intervals[part] for each in found], VARIANCES[part])
            situation = f"{histories} histories of 12 questions, 3 builds, 2 repeats"
            yield Row("variance of a part", f"{part}, {situation}", "coverage", value, times)


def _plans(times: int) -> Iterator[Row]:
    for histories, wished in ((10, 0.08), (10, 0.1), (20, 0.06), (20, 0.08)):
        rng = np.random.default_rng(histories)
        chosen = [
            cheapest(components(pilot(rng, GAPS, histories, 20, 2, 2)), wished, COSTS, histories, 20)
            for _ in range(times)
        ]
        powers = [power(design, wished) for design in chosen if design is not None]
        situation = f"pilot of {histories} histories, wish {wished}"
        yield Row("cheapest design", situation, "designs proposed", len(powers) / times, times)
        if powers:
            yield Row("cheapest design", situation, "median power", float(np.median(powers)), times)
            low = float(np.mean(np.array(powers) < 0.7))
            yield Row("cheapest design", situation, "power below .7", low, times)


def pilot(
    rng: np.random.Generator, variances: Mapping[str, float], histories: int, questions: int, builds: int, repeats: int
) -> Draws:
    """Scores with normal effects."""
    shapes = {
        "history": (histories, 1, 1, 1),
        "question": (histories, questions, 1, 1),
        "build": (histories, 1, builds, 1),
        "answer": (histories, questions, builds, 1),
        "judge": (histories, questions, builds, repeats),
    }
    scores = sum((rng.normal(0.0, variances[part] ** 0.5, shapes[part]) for part in PARTS), np.zeros(shapes["judge"]))
    return {
        (f"h{place}", f"q{number}"): scores[place, number] for place in range(histories) for number in range(questions)
    }


def power(design: Design, wished: float) -> float:
    """The true power of a design for a difference with the variances `GAPS`."""
    from scipy.special import nctdtr

    truth = Components(design, 0.0, GAPS, dict.fromkeys(PARTS))
    error, freedom = sum(contributions(truth, design).values()) ** 0.5, design.histories - 1
    return 1.0 - float(nctdtr(freedom, wished / error, t_point(freedom)))
