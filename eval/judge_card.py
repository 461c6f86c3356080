"""What a judge's verdicts are worth: its errors by kind of probe, its consistency, and scores corrected for its errors.

The corrected score is Rogan and Gladen's (1978): with the share `a` of right answers that the judge accepts and the share `r` of wrong
answers that it rejects, an observed share `p` estimates the true share `(p + r - 1) / (a + r - 1)`. Its interval is a parametric
bootstrap that carries the uncertainty of all three shares: each is drawn from its Jeffreys posterior, with as many trials as independent
answers would need for the same standard error (that of the observed share by case, those of the judge by question).

Both shares are means over kinds of probes, so they depend on which kinds there are; a corrected score is worth what the probes are.
Where a judge is asked several times, its repeats are averaged, as tables do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from eval.agreement import RIGHT, Agreement, agreement
from eval.stats import Estimate, Interval, by_question
from eval.store import RunError, read_lines, write_lines

DRAWS = 4000


@dataclass(frozen=True, slots=True)
class Verdict:
    """A judge's verdicts on one probe."""

    kind: str
    right: bool
    values: tuple[float | None, ...]
    """By repeat; None where the judge gave no verdict."""
    question: tuple[str, str] = ("", "")
    """Case and question that the probe was made from."""
    answer_first: float | None = None
    """The verdict when the answer stands before the reference in the prompt; None where it was not asked or gave none."""

    @property
    def accepts(self) -> list[bool]:
        """Whether each repeat with a verdict accepts."""
        return [value >= RIGHT for value in self.values if value is not None]

    @property
    def error(self) -> float | None:
        """Share of the repeats that are wrong; None without a verdict."""
        accepts = self.accepts
        return None if not accepts else accepts.count(not self.right) / len(accepts)


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
class Share:
    """A mean share with the number of independent trials that would make it as uncertain."""

    mean: float
    trials: float
    n: int

    @property
    def interval(self) -> Interval:
        """95 % of its Jeffreys posterior, open to the side of an extreme mean."""
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

    lines: tuple[Line, ...]
    rejected: Share | None
    """Right answers that it rejects, the mean over kinds; None without such a probe."""
    accepted: Share | None
    """Wrong answers that it accepts, the mean over kinds; None without such a probe."""
    repeats: Agreement | None
    """Of the judge with itself, asked again; None for one repeat."""
    order: Agreement | None
    """Of the judge with itself, when the answer stands before the reference; None where that was not asked."""

    @property
    def discriminates(self) -> bool:
        """Whether it accepts more of the right answers than of the wrong ones."""
        return (
            self.rejected is not None
            and self.accepted is not None
            and 1.0 - self.rejected.mean - self.accepted.mean > 0.0
        )


def card(verdicts: Sequence[Verdict]) -> Card:
    """The card of a judge, kinds in the order in which they first appear."""
    kinds: dict[tuple[str, bool], list[Verdict]] = {}
    for verdict in verdicts:
        kinds.setdefault((verdict.kind, verdict.right), []).append(verdict)
    most = max((len(verdict.values) for verdict in verdicts), default=0)
    repeats = [_given(verdicts, [verdict.values[each : each + 1] for verdict in verdicts]) for each in range(most)]
    usual = _given(verdicts, [verdict.values[:1] for verdict in verdicts])
    turned = _given(verdicts, [(verdict.answer_first,) for verdict in verdicts])
    clusters = {place: verdict.question[0] for place, verdict in enumerate(verdicts)}
    return Card(
        tuple(_line(kind, right, group) for (kind, right), group in kinds.items()),
        _share([group for (_, right), group in kinds.items() if right]),
        _share([group for (_, right), group in kinds.items() if not right]),
        agreement(repeats, clusters) if most > 1 else None,
        agreement([usual, turned], clusters) if turned else None,
    )


def _given(verdicts: Sequence[Verdict], values: Sequence[Sequence[float | None]]) -> dict[int, bool]:
    """Whether the answer was accepted, by number of the probe; probes without a verdict are left out."""
    return {
        place: value >= RIGHT
        for place, own in zip(range(len(verdicts)), values, strict=True)
        for value in own
        if value is not None
    }


def _line(kind: str, right: bool, verdicts: Sequence[Verdict]) -> Line:
    errors = [error for verdict in verdicts if (error := verdict.error) is not None]
    mean = fmean(errors) if errors else 0.0
    return Line(kind, right, len(errors), len(verdicts) - len(errors), mean, by_question(errors) if errors else None)


def _share(kinds: Sequence[Sequence[Verdict]]) -> Share | None:
    """The mean error over kinds. Its standard error is clustered by question: one question gives probes of many kinds."""
    errors = [[(each.question, error) for each in kind if (error := each.error) is not None] for kind in kinds]
    errors = [kind for kind in errors if kind]
    if not errors:
        return None
    means = [fmean(error for _, error in kind) for kind in errors]
    mean, size = fmean(means), sum(map(len, errors))
    pull: dict[tuple[str, str], float] = {}
    for own, kind in zip(means, errors, strict=True):
        for question, error in kind:
            pull[question] = pull.get(question, 0.0) + (error - own) / (len(errors) * len(kind))
    questions = len(pull)
    clustered = sum(each**2 for each in pull.values()) * questions / max(questions - 1, 1)
    # A kind without an error, or with errors only, has some all the same: half a probe more on either side.
    smooth = [((own * len(kind) + 0.5) / (len(kind) + 1), len(kind)) for own, kind in zip(means, errors, strict=True)]
    variance = max(clustered, sum(own * (1.0 - own) / n for own, n in smooth) / len(errors) ** 2)
    # At an extreme mean the variance says nothing: as many as the questions, or as probes spread evenly over the kinds.
    known = min(len(errors) ** 2 / sum(1 / len(kind) for kind in errors), float(questions))
    trials = mean * (1.0 - mean) / variance if 0.0 < mean < 1.0 else known
    return Share(mean, min(trials, float(size)), size)


MISFIT = "its card does not fit"
"""End of the reason where a score lies outside what the judge gives to wrong and to right probes."""


@dataclass(frozen=True, slots=True)
class Corrected:
    """A share of right answers, corrected for a judge's errors."""

    mean: float
    interval: Interval


def corrected(observed: Estimate, judge: Card, seed: int = 0) -> Corrected | str:
    """The score that a judge without errors would give, or why there is none.

    Args:
        observed: a mean of verdicts that are 0 or 1.
    """
    if judge.rejected is None or judge.accepted is None or not judge.discriminates:
        return "by its card the judge does not tell right from wrong"
    rng = np.random.default_rng(seed)
    share = Share(observed.mean, _effective(observed), observed.n).drawn(rng)
    keeps, refuses = 1.0 - judge.rejected.drawn(rng), 1.0 - judge.accepted.drawn(rng)
    informed = keeps + refuses - 1.0 > 1e-3
    if not informed.any():
        return "by its card the judge does not tell right from wrong"
    draws = (share + refuses - 1.0)[informed] / (keeps + refuses - 1.0)[informed]
    low, high = np.quantile(draws, (0.025, 0.975))
    rejected, accepted = judge.rejected.mean, judge.accepted.mean
    # No share of right answers gives such a score: these answers are wrong, or right, in other ways than the probes.
    if observed.mean < accepted:
        return f"it accepts fewer of these answers than of the wrong probes, so {MISFIT}"
    if observed.mean > 1.0 - rejected:
        return f"it accepts more of these answers than of the right probes, so {MISFIT}"
    mean = (observed.mean - accepted) / (1.0 - rejected - accepted)
    low, high = (min(max(float(each), 0.0), 1.0) for each in (low, high))
    return Corrected(mean, Interval(low, high))


def _effective(observed: Estimate) -> float:
    """Questions that independent ones would need for as wide an interval as that by case; at most their number."""
    if observed.by_case is None or not 0.0 < observed.mean < 1.0:
        return float(observed.n)
    half = (observed.by_case.high - observed.by_case.low) / 2
    independent = 1.96**2 * observed.mean * (1.0 - observed.mean) / max(half, 1e-6) ** 2
    return float(min(observed.n, max(independent, 1.0)))


@dataclass(frozen=True, slots=True)
class Correction:
    """The card by which the scores of a judge are corrected."""

    card: Card | None
    """None where the judge has none."""
    remedy: str
    """What makes a card, for a judge without one."""

    def of(self, observed: Estimate, values: Iterable[float]) -> Corrected | str:
        """The corrected score, or why there is none.

        Args:
            values: the verdicts behind the observed mean.
        """
        if self.card is None:
            return f"no judge card; {self.remedy}"
        if any(value not in (0.0, 1.0) for value in values):
            return "the judge gives grades between right and wrong, and the correction is for right and wrong only"
        return corrected(observed, self.card)


# --- files ---------------------------------------------------------------------------------------------------------------


def write_card(path: Path, verdicts: Sequence[Verdict]) -> None:
    """Keep a card as the verdicts that it is made of, one line a probe."""
    write_lines(path, [asdict(verdict) for verdict in verdicts])


def read_card(path: Path) -> Card | None:
    """The card in a file; None where there is no such file.

    Raises:
        RunError: a line is damaged.
    """
    if not path.is_file():
        return None
    return card([_verdict(path, line) for line in read_lines(path, fields=("kind", "right", "values", "question"))])


def _verdict(path: Path, line: Mapping[str, Any]) -> Verdict:
    values, question, turned = line["values"], line["question"], line.get("answer_first")
    numbers = [*values, turned] if isinstance(values, list) else [""]
    if not all(value is None or isinstance(value, int | float) for value in numbers) or not isinstance(
        line["right"], bool
    ):
        raise RunError(f"{path}: a damaged verdict: {str(line)[:100]}; make the card again")
    if not isinstance(question, list) or len(question) != 2:
        raise RunError(f"{path}: a verdict without case and question: {str(line)[:100]}; make the card again")
    return Verdict(str(line["kind"]), line["right"], tuple(values), (str(question[0]), str(question[1])), turned)
