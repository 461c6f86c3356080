"""Coverage of scores that are corrected for a judge's errors, and of scores from a rated sample, by kinds of wrong answers.

A simulated run has 1,540 questions in ten histories of LoCoMo's sizes; the judge's card has 60 probes of each of six wrong kinds and of
two right ones. Each mixture defines the answers of the run, and so whether the card applies to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from eval.judging.judge_card import Card, Corrected, KindErrors, Share, corrected
from eval.report.ratings import prediction_powered
from eval.statistics.stats import Interval, estimate, preferred_interval
from tests.rigs.coverage.rows import Row, homes_of, repeated

SIZES = (154, 82, 154, 201, 182, 124, 150, 192, 156, 145)
"""Answerable questions of the ten histories, 1,540 together."""
WRONG = {"strong": (0.05, 0.10, 0.15, 0.25, 0.35, 0.48), "weak": (0.40, 0.45, 0.48, 0.52, 0.55, 0.60)}
"""Shares of wrong answers that a judge accepts, by kind of probe."""
RIGHT = {"strong": (0.98, 0.92), "weak": (0.85, 0.75)}
"""Shares of right answers that it accepts, by kind."""
PROBES, RATED = 60, 100
ICC = 0.005
"""Correlation of the truth within a history."""


@dataclass(frozen=True, slots=True)
class Mixture:
    """The answers of a run, and the judge's shares of accepted ones; None where these equal the shares for the probes."""

    name: str
    truth: float
    judge: str = "strong"
    accepts_wrong: float | None = None
    accepts_right: float | None = None
    refusals: float = 0.0
    """Share of the wrong answers that are refusals; the judge accepts one in a hundred."""


MIXTURES = (
    Mixture("like the probes", 0.5),
    Mixture("like the probes", 0.02),
    Mixture("like the probes", 0.98),
    Mixture("like the probes", 0.02, "weak"),
    Mixture("wrong answers mostly refusals", 0.3, refusals=0.8),
    Mixture("wrong answers mostly refusals", 0.6, refusals=0.8),
    Mixture("wrong answers mostly near misses", 0.3, accepts_wrong=0.45),
    Mixture("wrong answers mostly near misses", 0.6, accepts_wrong=0.45),
    Mixture("right answers in other words", 0.6, accepts_right=0.80),
)


@dataclass(frozen=True, slots=True)
class _Run:
    right: np.ndarray
    refused: np.ndarray
    accepted: np.ndarray


REPETITIONS = 1000


Spans = list[tuple[float, float, float]]
"""Point, low and high of each round."""


def rows(share: float = 1.0) -> list[Row]:
    """Coverage, mean width and bias of each kind of score in each mixture, and the share that was not corrected.

    Args:
        share: share of the repetitions.
    """
    rng, rounds = np.random.default_rng(1), repeated(REPETITIONS, share)
    return [row for mixture in MIXTURES for row in _rows(mixture, rounds, rng)]


def _rows(mixture: Mixture, rounds: int, rng: np.random.Generator) -> Iterator[Row]:
    spans: dict[str, Spans] = {"raw score": [], "corrected score": [], "range over kinds": [], "score from ratings": []}
    for _ in range(rounds):
        for name, span in _scores(mixture, rng).items():
            spans[name].append(span)
    situation = f"{mixture.name}, {mixture.judge} judge, truth {mixture.truth}"
    for name, own in spans.items():
        point, low, high = np.array(own).reshape(-1, 3).T
        covered = float(((low <= mixture.truth) & (mixture.truth <= high)).sum()) / max(len(own), 1)
        number, of = ("corrected score", " of the raw score") if name == "raw score" else (name, "")
        yield Row(number, situation, f"coverage{of}", covered, len(own))
        yield Row(number, situation, f"mean width{of}", float((high - low).mean()), len(own))
        if name != "range over kinds":
            yield Row(number, situation, f"bias{of}", float(point.mean()) - mixture.truth, len(own))
    missing = 1.0 - len(spans["corrected score"]) / rounds
    yield Row("corrected score", situation, "not corrected", missing, rounds)


def _scores(mixture: Mixture, rng: np.random.Generator) -> dict[str, tuple[float, float, float]]:
    """Point, low and high of every kind of score in one round; without those that are not printed."""
    clusters = homes_of(SIZES).astype(str).tolist()
    run, judge = _run(mixture, rng), _card(mixture, rng)
    observed, chosen = estimate(run.accepted.tolist(), clusters), rng.choice(run.right.size, RATED, replace=False)
    ratings = np.full(run.right.size, np.nan)
    ratings[chosen] = run.right[chosen]
    powered = prediction_powered(run.accepted.tolist(), clusters, ratings.tolist())
    spans: dict[str, tuple[float, Interval | None]] = {
        "raw score": (observed.mean, preferred_interval(observed)),
        "score from ratings": (powered.mean, preferred_interval(powered)),
    }
    fixed = corrected(observed, judge, float(run.refused.mean()), float((run.refused * run.accepted).mean()))
    if isinstance(fixed, Corrected):
        spans |= {"corrected score": (fixed.mean, fixed.interval), "range over kinds": (fixed.mean, fixed.by_kind)}
    return {name: (mean, own.low, own.high) for name, (mean, own) in spans.items() if own is not None}


def _run(mixture: Mixture, rng: np.random.Generator) -> _Run:
    scale = 1.0 / ICC - 1.0
    shares = rng.beta(mixture.truth * scale, (1.0 - mixture.truth) * scale, len(SIZES))
    right = rng.random(sum(SIZES)) < np.repeat(shares, SIZES)
    refused = ~right & (rng.random(right.size) < mixture.refusals)
    wrong = float(np.mean(WRONG[mixture.judge])) if mixture.accepts_wrong is None else mixture.accepts_wrong
    fair = float(np.mean(RIGHT[mixture.judge])) if mixture.accepts_right is None else mixture.accepts_right
    accepted = rng.random(right.size) < np.where(right, fair, np.where(refused, 0.01, wrong))
    return _Run(right.astype(float), refused, accepted.astype(float))


def _card(mixture: Mixture, rng: np.random.Generator) -> Card:
    accepts, keeps = (rng.binomial(PROBES, shares[mixture.judge]) / PROBES for shares in (WRONG, RIGHT))
    lines = [KindErrors(f"wrong {place}", False, PROBES, 0, float(share), None) for place, share in enumerate(accepts)]
    lines += [
        KindErrors(f"right {place}", True, PROBES, 0, 1.0 - float(share), None) for place, share in enumerate(keeps)
    ]
    rejected, accepted = (
        Share(float(errors.mean()), float(errors.size * PROBES), errors.size * PROBES)
        for errors in (1.0 - keeps, accepts)
    )
    return Card(tuple(lines), rejected, accepted, None, None)
