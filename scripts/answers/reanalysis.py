"""A second analysis of many published files: judge against F1 at equal length, leniency, spread of a product."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from eval.statistics.stats import Interval, t_point
from scripts.answers.manifest import PEOPLE
from scripts.answers.scoring import ScoredClaim

LEAST = 20
"""Minimum number of answers for which a share is shown."""


@dataclass(frozen=True, slots=True)
class Effect:
    """One coefficient of the regression, in points of the verdict."""

    name: str
    points: float
    interval: Interval
    """Interval by jackknife over conversations with Student's t."""


@dataclass(frozen=True, slots=True)
class Regression:
    """Verdict on F1, words, category and system."""

    effects: tuple[Effect, ...]
    questions: int
    systems: int
    histories: int


def judged(scored: ScoredClaim) -> np.ndarray:
    """Bool [n]: answers to answerable questions with a verdict and an F1."""
    return scored.where("verdict", scored.where("f1", scored.answerable))


def usable(all_scored: Sequence[ScoredClaim], *, people: bool = False) -> list[ScoredClaim]:
    """Claims on LoCoMo whose verdicts, by judges or people, are not all the same."""
    return [
        scored
        for scored in all_scored
        if scored.claim.dataset == "LoCoMo"
        and (scored.claim.judge == PEOPLE) == people
        and len(np.unique(scored.measures["verdict"][judged(scored)])) > 1
    ]


def regressions(all_scored: Sequence[ScoredClaim]) -> dict[str, Regression]:
    """The regression on the verdicts of judges, and that on the verdicts of people, where there are enough conversations."""
    by_whom = {"judges": usable(all_scored), "people": usable(all_scored, people=True)}
    fitted = {who: regression(own) for who, own in by_whom.items()}
    return {who: each for who, each in fitted.items() if each is not None}


def regression(all_scored: Sequence[ScoredClaim]) -> Regression | None:
    """Fit the verdict by least squares on F1, words (in hundreds), category and system, with one row per answer.

    System and category are dummies, so F1 and words are compared within both. The error is the delete-one-conversation jackknife, because
    the same questions recur under every system. None for fewer than five conversations.
    """
    rows, targets, homes = [], [], []
    systems = {scored.claim.name: place for place, scored in enumerate(all_scored)}
    categories = sorted({each.category for scored in all_scored for each in scored.asked})
    for scored in all_scored:
        for at in np.flatnonzero(judged(scored)):
            asked = scored.asked[at]
            row = np.zeros(2 + len(systems) + len(categories))
            row[:2] = scored.measures["f1"][at], scored.measures["words"][at] / 100
            row[2 + systems[scored.claim.name]] = 1.0
            row[2 + len(systems) + categories.index(asked.category)] = 1.0
            rows.append(row)
            targets.append(scored.measures["verdict"][at])
            homes.append(asked.case_id)
    names, codes = np.unique(np.asarray(homes), return_inverse=True)
    if names.size < 5:
        return None
    design, target = np.asarray(rows), np.asarray(targets)
    squares = np.stack([design[codes == each].T @ design[codes == each] for each in range(names.size)])
    products = np.stack([design[codes == each].T @ target[codes == each] for each in range(names.size)])
    whole = _solved(squares.sum(axis=0), products.sum(axis=0))
    left = np.stack(
        [
            _solved(squares.sum(axis=0) - one, products.sum(axis=0) - two)
            for one, two in zip(squares, products, strict=True)
        ]
    )
    error = np.sqrt((names.size - 1) / names.size * ((left - whole) ** 2).sum(axis=0))
    half = t_point(names.size - 1) * error
    effects = [
        Effect(
            name, 100 * float(whole[at]), Interval(100 * float(whole[at] - half[at]), 100 * float(whole[at] + half[at]))
        )
        for at, name in enumerate(("F1 from 0 to 1", "a hundred words more"))
    ]
    return Regression(tuple(effects), target.size, len(systems), names.size)


def _solved(squares: np.ndarray, products: np.ndarray) -> np.ndarray:
    # The dummies of system and category add up to the same column; the minimum-norm solution does not affect F1 and words.
    solution: np.ndarray = np.linalg.lstsq(squares, products, rcond=None)[0]
    return solution


@dataclass(frozen=True, slots=True)
class Agreement:
    """Rank correlation of mean verdict and mean F1 over claims."""

    claims: int
    plain: float
    given_words: float
    """Partial correlation at equal mean length of answers."""


def rank_agreement(all_scored: Sequence[ScoredClaim]) -> Agreement | None:
    """Spearman's correlation over usable claims that answer at least a thousand questions; None for fewer than five of them."""
    rows = []
    for scored in usable(all_scored):
        mask = judged(scored)
        if mask.sum() >= 1000:
            rows.append([float(scored.measures[name][mask].mean()) for name in ("verdict", "f1", "words")])
    if len(rows) < 5:
        return None
    ranks = np.apply_along_axis(_ranks, 0, np.asarray(rows))
    table = np.corrcoef(ranks.T)
    verdict_f1, verdict_words, f1_words = table[0, 1], table[0, 2], table[1, 2]
    partial = (verdict_f1 - verdict_words * f1_words) / np.sqrt((1 - verdict_words**2) * (1 - f1_words**2))
    return Agreement(len(rows), float(verdict_f1), float(partial))


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1, ties with their mean rank."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: np.ndarray = (np.cumsum(counts) - (counts - 1) / 2)[places]
    return ranks


@dataclass(frozen=True, slots=True)
class Lenience:
    """Shares of two kinds of answers that count as right; None for fewer than `LEAST` answers of a kind."""

    name: str
    judge: str
    unlike: float | None
    """Share of right answers among those that share no word stem with the gold and do not say "I do not know"."""
    unlike_n: int
    unknowing: float | None
    """Share of right answers among "I do not know" answers to answerable questions."""
    unknowing_n: int

    @property
    def shown(self) -> list[str]:
        """Both shares with their numbers of answers, as texts."""
        shares = ((self.unlike, self.unlike_n), (self.unknowing, self.unknowing_n))
        return ["–" if share is None else f"{share:.0%} of {n}" for share, n in shares]


def lenience(scored: ScoredClaim) -> Lenience | None:
    """The leniency of a claim's verdicts; None if it has no verdicts."""
    verdict, knows = scored.measures["verdict"], scored.measures["abstains"] == 0.0
    if not scored.where("verdict").any():
        return None
    text = scored.measures["blank"] == 0.0
    unlike = judged(scored) & knows & text & (scored.measures["f1"] == 0.0)
    unknowing = judged(scored) & ~knows

    def share(mask: np.ndarray) -> float | None:
        return float(verdict[mask].mean()) if mask.sum() >= LEAST else None

    return Lenience(
        scored.claim.name, scored.claim.judge or "not stated", share(unlike), int(unlike.sum()),
        share(unknowing), int(unknowing.sum()),
    )  # fmt: skip


def lenient(all_scored: Sequence[ScoredClaim]) -> list[Lenience]:
    """The leniency of every claim that has a share of it."""
    known = (each for scored in all_scored if (each := lenience(scored)) is not None)
    return [each for each in known if each.unlike is not None or each.unknowing is not None]


@dataclass(frozen=True, slots=True)
class Spread:
    """One product over several files."""

    product: str
    dataset: str
    claims: tuple[str, ...]
    verdict: tuple[float, float] | None
    """Lowest and highest mean verdict on answerable questions."""
    f1: tuple[float, float]


def spreads(all_scored: Sequence[ScoredClaim]) -> list[Spread]:
    """Products with at least two files on a data set, by the spread of their mean verdicts, the widest first."""
    groups: dict[tuple[str, str], list[ScoredClaim]] = defaultdict(list)
    for scored in all_scored:
        if scored.where("f1", scored.answerable).any():
            groups[scored.claim.product, scored.claim.dataset].append(scored)
    found = []
    for (product, dataset), own in groups.items():
        if len(own) < 2:
            continue
        f1 = [float(each.measures["f1"][each.where("f1")].mean()) for each in own]
        graded = ((each.measures["verdict"], each.where("verdict", each.answerable)) for each in own)
        means = [float(verdicts[mask].mean()) for verdicts, mask in graded if mask.any()]
        verdict = (min(means), max(means)) if len(means) > 1 else None
        found.append(Spread(product, dataset, tuple(each.claim.name for each in own), verdict, (min(f1), max(f1))))
    return sorted(found, key=lambda each: (each.verdict[0] - each.verdict[1] if each.verdict else 1.0, each.product))
