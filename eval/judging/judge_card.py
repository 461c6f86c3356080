"""The reliability of a judge: its errors by kind of probe, its consistency, and scores corrected for its errors.

The corrected score is Rogan and Gladen's (1978): with the share `a` of right answers that the judge accepts and the share `r` of wrong
answers that it rejects, an observed share `p` estimates the true share `(p + r - 1) / (a + r - 1)`. Its interval is a parametric
bootstrap that carries the uncertainty of all three shares: each is drawn from its Jeffreys posterior, with as many trials as independent
answers would need for the same standard error (that of the observed share as in tables, those of the judge by question).

The correction holds if answers err like the probes; nothing in the data can show whether they do. So a corrected score has three parts:
the point under the mix below, its interval under the same mix, and the range of points when each kind of probe stands for all errors.
The mix: each probe counts once, so a kind weighs as much as the data's answers allow. Refusals are not mixed: an answer that refuses an
answerable question is certainly wrong, so it is counted as wrong without correction. Only the other answers are corrected, by the probes
with an answer in them. Probes that give the judge an order are left out, because no memory answers like that.

A corrected point below 0 or above 1 becomes 0 or 1; its interval is clipped there, so it is one-sided. A point that is outside by more than
two standard errors has no correction: no share of right answers gives it, so the answers err in other ways than the probes.

Where a judge is asked several times, its repeats are averaged, as tables do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from eval.files.store import RunError, read_lines, write_lines
from eval.judging.agreement import RIGHT, Agreement, agreement
from eval.statistics.stats import ENOUGH_CLUSTERS, Estimate, Interval, by_question, preferred_interval

DRAWS = 4000
UNSAID = frozenset({"refusal", "empty", "an order to the judge"})
"""Kinds of wrong probes without an answer in them: refusals are known without a judge, and no memory gives orders."""


@dataclass(frozen=True, slots=True)
class ProbeVerdicts:
    """A judge's verdicts on one probe."""

    kind: str
    right: bool
    values: tuple[float | None, ...]
    """Value by repeat; None where the judge gave no verdict."""
    question: tuple[str, str] = ("", "")
    """Case and question that the probe was made from."""
    answer_first: float | None = None
    """The verdict when the answer stands before the reference in the prompt; None if the judge was not asked or gave none."""
    history: str = ""
    """History of the case, over which the agreement is jackknifed; empty: the case is its own."""

    @property
    def accepts(self) -> list[bool]:
        """For each repeat with a verdict, whether it accepts."""
        return [value >= RIGHT for value in self.values if value is not None]

    @property
    def error(self) -> float | None:
        """Share of the repeats whose verdict is wrong; None without a verdict."""
        accepts = self.accepts
        return None if not accepts else accepts.count(not self.right) / len(accepts)


@dataclass(frozen=True, slots=True)
class KindErrors:
    """A judge's errors on one kind of probe."""

    kind: str
    right: bool
    n: int
    """Number of probes with a verdict."""
    unscored: int
    errors: float
    """Share of wrong answers that were accepted, or of right ones that were rejected."""
    interval: Interval | None


@dataclass(frozen=True, slots=True)
class Share:
    """A mean share, with the number of independent trials that would give it the same uncertainty."""

    mean: float
    trials: float
    n: int

    @property
    def interval(self) -> Interval:
        """The 95 % interval of its Jeffreys posterior; at a mean of 0 or 1 it is one-sided."""
        from scipy.special import betaincinv  # imported here: it takes half a second

        right, wrong = self.mean * self.trials + 0.5, (1.0 - self.mean) * self.trials + 0.5
        low, high = (float(betaincinv(right, wrong, each)) for each in (0.025, 0.975))
        return Interval(0.0 if self.mean == 0.0 else low, 1.0 if self.mean == 1.0 else high)

    def drawn(self, rng: np.random.Generator) -> np.ndarray:
        """Draws from its Jeffreys posterior, float64 [DRAWS]."""
        return rng.beta(self.mean * self.trials + 0.5, (1.0 - self.mean) * self.trials + 0.5, DRAWS)


@dataclass(frozen=True, slots=True)
class Card:
    """A judge's errors on all probes."""

    lines: tuple[KindErrors, ...]
    rejected: Share | None
    """Share of right answers that it rejects, the mean over probes; None without such a probe."""
    accepted: Share | None
    """Share of wrong answers that it accepts, the mean over probes with an answer in them; None without a wrong probe."""
    repeats: Agreement | None
    """Agreement of the judge with itself over repeats; None for one repeat."""
    order: Agreement | None
    """Agreement of the judge with itself when the answer stands before the reference; None where that was not asked."""

    @property
    def discriminates(self) -> bool:
        """Whether it accepts a larger share of the right answers than of the wrong ones."""
        return (
            self.rejected is not None
            and self.accepted is not None
            and 1.0 - self.rejected.mean - self.accepted.mean > 0.0
        )


def card(verdicts: Sequence[ProbeVerdicts]) -> Card:
    """The card of a judge, kinds in the order in which they first appear."""
    kinds: dict[tuple[str, bool], list[ProbeVerdicts]] = {}
    for verdict in verdicts:
        kinds.setdefault((verdict.kind, verdict.right), []).append(verdict)
    most = max((len(verdict.values) for verdict in verdicts), default=0)
    turned = _given((verdict.answer_first,) for verdict in verdicts)
    clusters = clusters_of(verdicts)
    said = [verdict for verdict in verdicts if not verdict.right and verdict.kind not in UNSAID]
    repeats = [_given(each.values[at : at + 1] for each in verdicts) for at in range(max(most, 1))]
    return Card(
        tuple(_line(kind, right, group) for (kind, right), group in kinds.items()),
        _share([verdict for verdict in verdicts if verdict.right]),
        _share(said or [verdict for verdict in verdicts if not verdict.right]),
        agreement(repeats, clusters) if most > 1 else None,
        agreement([repeats[0], turned], clusters) if turned else None,
    )


def clusters_of(verdicts: Sequence[ProbeVerdicts]) -> dict[int, str]:
    """The history of each probe, by its number; below five histories its question, because the probes of one question are alike."""
    histories = {place: verdict.history or verdict.question[0] for place, verdict in enumerate(verdicts)}
    if len({*histories.values()}) >= ENOUGH_CLUSTERS:
        return histories
    return {place: " ".join(verdict.question) for place, verdict in enumerate(verdicts)}


def _given(values: Iterable[Sequence[float | None]]) -> dict[int, bool]:
    """Whether each probe's answer was accepted, by number of the probe; probes without a verdict are left out."""
    return {place: value >= RIGHT for place, own in enumerate(values) for value in own if value is not None}


def _line(kind: str, right: bool, verdicts: Sequence[ProbeVerdicts]) -> KindErrors:
    errors = [error for verdict in verdicts if (error := verdict.error) is not None]
    mean, interval = (fmean(errors), by_question(errors)) if errors else (0.0, None)
    return KindErrors(kind, right, len(errors), len(verdicts) - len(errors), mean, interval)


def _share(verdicts: Sequence[ProbeVerdicts]) -> Share | None:
    """The mean error over probes. Its standard error is clustered by question: one question gives probes of many kinds."""
    errors = [(verdict.question, error) for verdict in verdicts if (error := verdict.error) is not None]
    if not errors:
        return None
    mean, size = fmean(error for _, error in errors), len(errors)
    pull: dict[tuple[str, str], float] = {}
    for question, error in errors:
        pull[question] = pull.get(question, 0.0) + (error - mean) / size
    questions = len(pull)
    clustered = sum(each**2 for each in pull.values()) * questions / max(questions - 1, 1)
    smooth = (mean * size + 0.5) / (size + 1)  # a share of exactly 0 or 1 may be luck: add half a probe on either side
    variance = max(clustered, smooth * (1.0 - smooth) / size)
    # At a mean of 0 or 1 the variance is uninformative: then every question counts as a trial.
    trials = mean * (1.0 - mean) / variance if 0.0 < mean < 1.0 else float(questions)
    return Share(mean, min(trials, float(size)), size)


MISFIT = "its card does not fit"
"""End of the reason for a score outside the range between the judge's scores of wrong and of right probes."""
CLEAR = 2.0
"""Number of standard errors from which such a score is no longer luck."""


@dataclass(frozen=True, slots=True)
class Corrected:
    """A share of right answers, corrected for a judge's errors; valid if the answers err like the probes."""

    mean: float
    interval: Interval
    by_kind: Interval
    """Not a confidence interval: the smallest and the largest point if all errors were like those of one kind of probe."""


def corrected(observed: Estimate, judge: Card, refused: float = 0.0, accepted_refusals: float = 0.0) -> Corrected | str:
    """Estimate the score of a judge without errors, if answers err like the probes; or return the reason why there is none.

    Args:
        observed: a mean of verdicts that are 0 or 1.
        refused: share of the answers that refuse a question with an answer, with the weights of the mean.
        accepted_refusals: share of all answers that are such refusals and were accepted, likewise.
    """
    nothing = "by its card the judge does not tell right from wrong"
    if judge.rejected is None or judge.accepted is None or not judge.discriminates:
        return nothing
    rest = 1.0 - refused
    if rest < 1e-9:  # weights of groups add up to 1 but for rounding errors
        return "all answers are refusals, which need no judge"
    rng = np.random.default_rng(0)
    given = min(max((observed.mean - accepted_refusals) / rest, 0.0), 1.0)
    share = Share(given, _trials(observed, given, rest), observed.n)
    draws = share.drawn(rng), judge.rejected.drawn(rng), judge.accepted.drawn(rng)
    informed = 1.0 - draws[1] - draws[2] > 1e-3
    if not informed.any():
        return nothing
    rejected, accepted = judge.rejected.mean, judge.accepted.mean
    below, above = accepted - given, given - (1.0 - rejected)
    if below > CLEAR * float(np.std(draws[0] - draws[2])):
        return f"it accepts fewer of these answers than of the wrong probes, so {MISFIT}"
    if above > CLEAR * float(np.std(draws[0] + draws[1])):
        return f"it accepts more of these answers than of the right probes, so {MISFIT}"
    point = _true_share(given, rejected, accepted)
    every = np.clip((draws[0] - draws[2])[informed] / (1.0 - draws[1] - draws[2])[informed], 0.0, 1.0)
    low, high = (rest * float(each) for each in np.quantile(every, (0.025, 0.975)))
    return Corrected(rest * point, Interval(low, high), _over_kinds(judge, given, rest, rest * point))


def _true_share(given: float, rejected: float, accepted: float) -> float:
    """Rogan and Gladen's estimate within [0, 1]; 0 or 1 where the judge accepts as many wrong answers as right ones."""
    gap = 1.0 - rejected - accepted
    if gap <= 0.0:
        return 0.0 if given <= accepted else 1.0
    return min(max((given - accepted) / gap, 0.0), 1.0)


def _over_kinds(judge: Card, given: float, rest: float, point: float) -> Interval:
    right = [line.errors for line in judge.lines if line.right and line.n]
    wrong = [line.errors for line in judge.lines if not line.right and line.n and line.kind not in UNSAID]
    points = [point, *(rest * _true_share(given, miss, accept) for miss in right for accept in wrong)]
    return Interval(min(points), max(points))


def _trials(observed: Estimate, given: float, rest: float) -> float:
    """Trials that give the share among non-refusing answers the same uncertainty as the observed share among all answers."""
    most, spread = observed.n * rest, observed.mean * (1.0 - observed.mean)
    if spread == 0.0 or not 0.0 < given < 1.0:
        return max(most, 1.0)
    effective = float(observed.n)
    if (interval := preferred_interval(observed)) is not None and 0.0 < observed.mean < 1.0:
        # The number of independent questions whose interval is as wide as the one that verdicts use.
        independent = 1.96**2 * spread / max((interval.high - interval.low) / 2, 1e-6) ** 2
        effective = min(effective, max(independent, 1.0))
    return max(min(most, given * (1.0 - given) * rest**2 * effective / spread), 1.0)


@dataclass(frozen=True, slots=True)
class Correction:
    """The card that corrects the scores of a judge."""

    card: Card | None
    """None where the judge has none."""
    remedy: str
    """The command that makes a card, for a judge without one."""

    def of(
        self,
        observed: Estimate,
        values: Iterable[float],
        refusals: Sequence[float] = (),
        weights: Sequence[float] | None = None,
    ) -> Corrected | str:
        """Return the corrected score, or the reason why there is none.

        Args:
            values: the verdicts behind the observed mean.
            refusals: the mean verdict on each answer that refuses a question with an answer.
            weights: of these answers in the observed mean, whose weights have mean 1; None where all answers weigh the same.
        """
        if self.card is None:
            return f"no judge card; {self.remedy}"
        if any(value not in (0.0, 1.0) for value in values):
            return "the judge gives grades between right and wrong, and the correction is for right and wrong only"
        weights = [1.0] * len(refusals) if weights is None else weights
        accepted = sum(weight * value for weight, value in zip(weights, refusals, strict=True))
        return corrected(observed, self.card, sum(weights) / observed.n, accepted / observed.n)


# --- files ---------------------------------------------------------------------------------------------------------------


def write_card(path: Path, verdicts: Sequence[ProbeVerdicts]) -> None:
    """Save a card as its verdicts, one line per probe."""
    write_lines(path, [asdict(verdict) for verdict in verdicts])


def read_card(path: Path) -> Card | None:
    """The card in a file; None where there is no such file.

    Raises:
        RunError: a line is damaged.
    """
    if not path.is_file():
        return None
    return card([_verdict(path, line) for line in read_lines(path, fields=("kind", "right", "values", "question"))])


def _verdict(path: Path, line: Mapping[str, Any]) -> ProbeVerdicts:
    values, question, turned = line["values"], line["question"], line.get("answer_first")
    numbers = [*values, turned] if isinstance(values, list) else [""]
    if not (isinstance(line["right"], bool) and all(isinstance(value, int | float | None) for value in numbers)):
        raise RunError(f"{path}: a damaged verdict: {str(line)[:100]}; make the card again")
    if not isinstance(question, list) or len(question) != 2:
        raise RunError(f"{path}: a verdict without case and question: {str(line)[:100]}; make the card again")
    key, history = (str(question[0]), str(question[1])), str(line.get("history", ""))
    return ProbeVerdicts(str(line["kind"]), line["right"], tuple(values), key, turned, history)
