"""What a judge's verdicts are worth: its errors by kind of probe, and scores corrected for them.

The corrected score is Rogan and Gladen's (1978): with the share `a` of right answers that the judge accepts and the share `r` of wrong
answers that it rejects, an observed share `p` estimates the true share `(p + r - 1) / (a + r - 1)`. Its interval carries the
uncertainty of all three shares: each is drawn from its Jeffreys posterior, the observed one with the effective number of questions
that its interval by case implies.

Both shares are means over kinds of probes, so they depend on which kinds there are; a corrected score is worth what the probes are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from eval.stats import Estimate, Interval, by_question

DRAWS = 4000


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judge's verdicts on one probe."""

    kind: str
    right: bool
    values: tuple[float | None, ...]
    """By repeat; None where the judge gave no verdict."""

    @property
    def accepted(self) -> bool | None:
        """Whether most repeats accept; None without a verdict."""
        given = [value for value in self.values if value is not None]
        return None if not given else 2 * sum(value >= 0.5 for value in given) > len(given)


@dataclass(frozen=True, slots=True)
class Line:
    """A judge's errors on one kind of probe."""

    kind: str
    right: bool
    n: int
    """Probes with a verdict."""
    unscored: int
    errors: float
    """Share of wrong answers that were accepted, or of right ones that were rejected."""
    interval: Interval | None


@dataclass(frozen=True, slots=True)
class Card:
    """A judge's errors on all probes."""

    lines: tuple[Line, ...]
    consistency: float | None
    """Share of probes on which all repeats agree; None for one repeat."""

    def errors(self, right: bool) -> float | None:
        """Mean error over the kinds of right, or of wrong, probes; None without such a probe."""
        shares = [line.errors for line in self.lines if line.right == right and line.n]
        return float(np.mean(shares)) if shares else None

    def count(self, right: bool) -> int:
        """Probes with a verdict."""
        return sum(line.n for line in self.lines if line.right == right)


def card(verdicts: Sequence[Verdict]) -> Card:
    """The card of a judge, kinds in the order in which they first appear."""
    kinds: dict[tuple[str, bool], list[Verdict]] = {}
    for verdict in verdicts:
        kinds.setdefault((verdict.kind, verdict.right), []).append(verdict)
    repeated = [verdict for verdict in verdicts if len(verdict.values) > 1]
    agreeing = [len({None if value is None else value >= 0.5 for value in verdict.values}) == 1 for verdict in repeated]
    return Card(
        tuple(_line(kind, right, group) for (kind, right), group in kinds.items()),
        float(np.mean(agreeing)) if agreeing else None,
    )


def _line(kind: str, right: bool, verdicts: Sequence[Verdict]) -> Line:
    errors = [float(verdict.accepted != right) for verdict in verdicts if verdict.accepted is not None]
    mean = float(np.mean(errors)) if errors else 0.0
    return Line(kind, right, len(errors), len(verdicts) - len(errors), mean, by_question(errors) if errors else None)


@dataclass(frozen=True, slots=True)
class Corrected:
    """A share of right answers, corrected for a judge's errors."""

    mean: float
    interval: Interval


def corrected(observed: Estimate, judge: Card, seed: int = 0) -> Corrected | None:
    """The score that a judge without errors would give; None when the judge does not tell right from wrong, or was not probed.

    Args:
        observed: a mean of verdicts that are 0 or 1.
    """
    rejected, accepted = judge.errors(True), judge.errors(False)
    if rejected is None or accepted is None or 1.0 - rejected - accepted <= 0.0:
        return None
    rng = np.random.default_rng(seed)
    share = _drawn(rng, observed.mean, _effective(observed))
    keeps = _drawn(rng, 1.0 - rejected, judge.count(True))
    refuses = _drawn(rng, 1.0 - accepted, judge.count(False))
    informed = keeps + refuses - 1.0 > 1e-3
    if not informed.any():
        return None
    draws = np.clip((share + refuses - 1.0)[informed] / (keeps + refuses - 1.0)[informed], 0.0, 1.0)
    mean = (observed.mean - accepted) / (1.0 - rejected - accepted)
    low, high = np.quantile(draws, (0.025, 0.975))
    return Corrected(float(np.clip(mean, 0.0, 1.0)), Interval(float(low), float(high)))


def _drawn(rng: np.random.Generator, share: float, n: float) -> np.ndarray:
    """Draws of a share from its Jeffreys posterior, float64 [DRAWS]."""
    return rng.beta(share * n + 0.5, (1.0 - share) * n + 0.5, DRAWS)


def _effective(observed: Estimate) -> float:
    """Questions that independent ones would need for as wide an interval as that by case; at most their number."""
    if observed.by_case is None or not 0.0 < observed.mean < 1.0:
        return float(observed.n)
    half = (observed.by_case.high - observed.by_case.low) / 2
    independent = 1.96**2 * observed.mean * (1.0 - observed.mean) / max(half, 1e-6) ** 2
    return float(min(observed.n, max(independent, 1.0)))


def kappa(first: Mapping[object, bool], second: Mapping[object, bool]) -> float | None:
    """Cohen's kappa of two graders over what both graded; None without common verdicts, or where chance alone explains all agreement."""
    common = sorted(first.keys() & second.keys(), key=repr)
    if not common:
        return None
    a = np.array([first[key] for key in common])
    b = np.array([second[key] for key in common])
    by_chance = a.mean() * b.mean() + (1 - a.mean()) * (1 - b.mean())
    return None if by_chance == 1.0 else float(((a == b).mean() - by_chance) / (1.0 - by_chance))
