"""The numbers that papers print, and the verdict on ours: a test of whether both means over the same questions agree.

`results/published/*.csv` holds one line per published number: its table, its metric and setting, its value and its interval.

The difficulty of the questions cancels, so the error of the gap comes from the runs (build, answer, judge) and from the printed digits:

    SE² = ours / builds + theirs + unit² / 12

- *ours*: the variance of one run's mean. It is measured from several builds (`between_builds`); for a single one `FLIPS` of the scores are
  assumed to change.
- *theirs*: the published standard deviation squared, else ours. A printed interval is about the sampling of questions, which cancels, so
  it is an upper bound of a run's error: it counts where it is narrower than ours.
- *unit*: the unit of the last printed digit; a rounding error is uniform.

The gap is *equivalent* when both one-sided t-tests at 5 % reject that it is as large as the margin (Schuirmann 1987, "A comparison of the
two one-sided tests procedure and the power approach"), and it *differs* when its 95 % interval excludes 0. Both may hold. A shift that all
of our builds share, such as another version of the model, is not part of the error.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, log10
from typing import Any

import numpy as np

from eval.files.provenance import ROOT
from eval.report.counted import counted
from eval.statistics.stats import NORMAL, Interval, effective_number, t_point

MARGIN = 0.02
"""Margin of equivalence of scores: two points."""
COST_MARGIN = 0.05
"""Margin of equivalence of costs, as a share of the published cost."""
FLIPS = 0.08
"""Share of 0/1 scores that differ between two runs of one memory; assumed for a single build, which cannot measure it."""
SHIFTED = 0.1
"""Level of the F test above which the histories of a build are treated as independent."""
MOST_BUILDS = 50
"""Maximum number of builds that is advised: beyond it, the published number's own error dominates."""


@dataclass(frozen=True, slots=True)
class Runs:
    """The variance of a mean from run to run on the same questions."""

    builds: int
    variance: float
    """Variance of the mean of one run, in the unit of the mean squared."""
    freedom: float
    """Degrees of freedom of the variance; infinite where it is assumed."""
    measured: bool
    histories: float = inf
    """Effective number of histories, which are built one by one: the degrees of freedom that each build after the first would give."""

    def plus(self, other: Runs) -> Runs:
        """The runs of a sum or difference of two means from independent runs."""
        variance = self.variance + other.variance
        known = self.variance**2 / self.freedom + other.variance**2 / other.freedom
        freedom = variance**2 / known if known else min(self.freedom, other.freedom)
        both = self.measured and other.measured
        return Runs(min(self.builds, other.builds), variance, freedom, both, min(self.histories, other.histories))


NO_RUNS = Runs(1, 0.0, inf, measured=False)
"""For a count or a cost: its run error is not known, so only the error of the printed digits counts."""


def measured_runs(parts: np.ndarray, least: float = 0.0) -> Runs:
    """Compute the run error of a mean from several builds; `parts`, float64 [histories, builds], and `least` as for `between_builds`."""
    variance, freedom = between_builds(parts, least)
    return Runs(parts.shape[-1], float(variance), float(freedom), measured=True)


def between_builds(parts: np.ndarray, least: Any = 0.0) -> tuple[Any, Any]:
    """Compute the variance of one build's mean and its degrees of freedom, each [...].

    Histories are built one by one, so their variances add up; Satterthwaite's degrees of freedom in the form of Welch (1947), which small
    samples need. Where the builds' means vary more than their histories explain (F test at `SHIFTED`), the histories of a build are not
    independent, and the variance is that of the few means. It is never below that of independent answers: two builds may have the same mean
    by chance, although their answers differ.

    Args:
        parts: contribution of each history to the mean of each build, float64 [..., histories, builds].
        least: variance of a build's mean if its answers are independent, [...].
    """
    from scipy.special import fdtrc

    few = parts.shape[-1] - 1
    own = parts.var(axis=-1, ddof=1)
    total, squares, means = own.sum(axis=-1), (own**2).sum(axis=-1), parts.sum(axis=-2).var(axis=-1, ddof=1)
    moved = total > 0
    freedom = np.where(moved, total**2 * (few + 2) / np.where(moved, squares, 1.0) - 2, few)
    freedom = np.maximum(freedom, few)
    shifted = moved & (fdtrc(few, freedom, means / np.where(moved, total, 1.0)) < SHIFTED)
    return np.maximum(np.where(shifted, means, total), least), np.where(shifted, few, freedom)


def assumed_runs(scores: np.ndarray, weights: np.ndarray, homes: np.ndarray) -> Runs:
    """Compute the run error of a mean when `FLIPS` of the answers change.

    The variance of a 0/1 score from run to run is half of `FLIPS`, since the variance of the difference of two runs is twice as large. For
    other scores it is reduced in proportion to their variance, compared with 0/1 scores of the same mean.

    Args:
        scores: of the questions, [n].
        weights: of the questions in the mean, [n], with mean 1 (`eval.statistics.stats.weights`).
        homes: history of each question, numbers from 0, [n].
    """
    mean = float(scores.mean())
    ratio = float(scores.var()) / (mean * (1 - mean)) if 0.0 < mean < 1.0 else 1.0
    variance = FLIPS / 2 * min(1.0, ratio) * float((weights**2).sum()) / scores.size**2
    return Runs(1, variance, inf, measured=False, histories=effective_number(np.bincount(homes, weights**2)))


def decided(low: Any, high: Any, error: Any, freedom: Any, margin: float) -> tuple[Any, Any]:
    """Decide whether gaps are equivalent, and whether they differ; arguments are numbers or arrays that broadcast.

    Args:
        low, high: the smallest and the largest gap that the missing answers allow; equal where none is missing.
        error: standard error of the gap.
    """
    from scipy.special import stdtrit

    once, twice = stdtrit(freedom, 0.95) * error, stdtrit(freedom, 0.975) * error
    return (low - once > -margin) & (high + once < margin), (low - twice > 0) | (high + twice < 0)


def gap_error(runs: Runs, theirs: float | None, rounding: float, builds: int = 0) -> tuple[float, float]:
    """Compute the standard error of a gap, and its degrees of freedom.

    Args:
        theirs: variance of the published mean; None takes ours.
        rounding: variance of the printed digits.
        builds: number of our builds; 0 takes the number of `runs`, another value is a planned number.
    """
    share = runs.variance * (1 / (builds or runs.builds) + (theirs is None))
    total = share + (theirs or 0.0) + rounding
    freedom = runs.freedom
    if builds > 1 and runs.measured:
        freedom *= max(1.0, (builds - 1) / (runs.builds - 1))
    elif builds > 1:  # an assumed variance would be measured
        freedom = runs.histories * (builds - 1)
    return total**0.5, freedom * (total / share) ** 2 if share else inf


def builds_needed(
    gap: float, span: Interval, runs: Runs, theirs: float | None, rounding: float, margin: float
) -> int | None:
    """Number of builds that would settle an open gap of this size; 0 if the missing answers would settle it, None if nothing would."""
    if any(decided(gap, gap, *gap_error(runs, theirs, rounding), margin)):
        return 0
    for builds in range(runs.builds + 1, MOST_BUILDS + 1):
        if any(decided(span.low, span.high, *gap_error(runs, theirs, rounding, builds), margin)):
            return builds
    return None


def open_gaps(runs: Runs, builds: int) -> tuple[float, float] | None:
    """The range of gaps that would stay open with this number of builds; None where there is none."""
    error, freedom = gap_error(runs, None, 0.0, builds)
    low, high = MARGIN - t_point(freedom, 0.95) * error, t_point(freedom) * error
    return (max(0.0, low), high) if low < high else None


def left_open(sizes: Sequence[int], most: int) -> str:
    """For a plan: the gaps between 0/1 scores and published numbers that would stay open with one build, two, up to `most`.

    Args:
        sizes: number of questions by history.
    """
    histories = effective_number(np.array(sizes, dtype=float))
    runs = Runs(1, FLIPS / 2 / sum(sizes), inf, measured=False, histories=histories)
    parts = []
    for builds in range(1, most + 1):
        gaps = open_gaps(runs, builds)
        text = "none" if gaps is None else f"{100 * gaps[0]:.1f} to {100 * gaps[1]:.1f} points"
        parts.append(f"{text} with {counted(builds, 'build')}")
    return f"gaps from published numbers that stay open if {FLIPS:.0%} of scores change from run to run: {', '.join(parts)}"


# --- numbers and verdicts -----------------------------------------------------------------------------------------------

ROUNDING = 1e-9
"""Tolerance for binary fractions: 0.55 - 0.50 must count as 0.05."""
FOLDER = ROOT / "results" / "published"


@dataclass(frozen=True, slots=True)
class Published:
    """One published number, in the unit in which the paper prints it or (`divided`) in ours, and how a table compares ours with it."""

    paper: str
    table: str
    dataset: str
    backbone: str
    method: str
    variant: str
    category: str
    metric: str
    value: float
    low: float | None
    high: float | None
    std: float | None
    note: str
    printed: str
    """The value with all digits that the paper prints."""
    why_not: str = ""
    """The reason why ours is not comparable with it, such as other questions; empty when it is."""
    qualifier: str = ""
    """Further differences from ours, such as `prompts ours`; they follow a comparison."""

    def divided(self, scale: float) -> Published:
        """The number in our unit, with all its digits: 46.18 divided by 100, for percentages, is 0.4618."""
        if scale == 1.0:
            return self
        value, digits = self.value / scale, len(self.printed.partition(".")[2]) + round(log10(scale))
        low, high, std = (None if each is None else each / scale for each in (self.low, self.high, self.std))
        return replace(self, value=value, low=low, high=high, std=std, printed=f"{value:.{max(0, digits)}f}")


def read_published(*names: str) -> tuple[Published, ...]:
    """All numbers of the tables of these names, e.g. `segtreemem_t4`.

    Raises:
        ValueError: a field that must be a number is not one.
    """
    rows: list[dict[str, str]] = []
    for name in names:
        with (FOLDER / f"{name}.csv").open(encoding="utf-8", newline="") as handle:
            rows += csv.DictReader(handle)
    numbers = []
    for row in rows:
        low, high, std = (float(row[name]) if row[name].strip() else None for name in ("ci_low", "ci_high", "std"))
        names = ("paper", "table", "dataset", "backbone", "method", "variant", "category", "metric", "note")
        own: dict[str, Any] = {name: row[name] for name in names}
        own |= {"value": float(row["value"]), "printed": row["value"]}
        numbers.append(Published(**own, low=low, high=high, std=std))
    return tuple(numbers)


def find(numbers: Sequence[Published], wanted: Mapping[str, str]) -> Published | None:
    """The only number whose fields equal `wanted`; None when no number matches.

    Raises:
        ValueError: several numbers match, so the reference is ambiguous.
    """
    fitting = [number for number in numbers if all(getattr(number, name) == value for name, value in wanted.items())]
    if len(fitting) > 1:
        named = [(number.method, number.variant, number.metric) for number in fitting]
        raise ValueError(f"{len(fitting)} published numbers fit {dict(wanted)}: {named}")
    return fitting[0] if fitting else None


def verdict(
    ours: float | None,
    published: Published | None,
    *,
    margin: float | None = MARGIN,
    runs: Runs = NO_RUNS,
    span: Interval | None = None,
) -> str:
    """Meaning of the gap between our number and the published one.

    `equivalent`: the gap is significantly smaller than the margin. `differs by -3.1 [-4.2, -2.0]`: it is significantly different from 0
    (in points; costs in %). Both are given if both hold. `cannot tell: …`: neither holds; the text says what would settle it.

    Args:
        ours: our mean; None where there is none.
        margin: in our unit; None is 5 % of the published value.
        runs: change of our mean from run to run.
        span: range of our mean over all questions, whatever the missing scores are; None where each question has a score.
    """
    if published is None:
        return "not published"
    if published.why_not:
        return f"{NOT_COMPARABLE}{published.why_not}"
    if ours is None:
        return "missing"
    theirs = published.value
    unit = 100.0 if margin is not None or not theirs else 100.0 / abs(theirs)
    near = COST_MARGIN * abs(theirs) if margin is None else margin
    reach = span or Interval(ours, ours)
    # The published value is rounded to this step.
    digit = 10.0 ** -len(published.printed.partition(".")[2])
    errors = runs, _their_variance(published, runs), float(digit**2 / 12)
    gaps = Interval(reach.low - theirs, reach.high - theirs)
    compared = _compared(ours - theirs, gaps, errors, near + ROUNDING, unit, " %" if margin is None else "")
    return f"{compared}, {published.qualifier}" if published.qualifier else compared


NOT_COMPARABLE, NOT_COMPARED = "not comparable: ", "n/c"
"""The beginning of the verdict on numbers that are not comparable, in full and short."""
EQUIVALENT, DIFFERS, OPEN = "equivalent", "differs", "cannot tell"


def brief(verdict: str) -> str:
    """The first word or words of a verdict, without numbers and reasons; any other text is returned whole."""
    return next((word for word in (EQUIVALENT, DIFFERS, OPEN, NOT_COMPARED) if verdict.startswith(word)), verdict)


def _compared(
    gap: float, span: Interval, errors: tuple[Runs, float | None, float], margin: float, unit: float, sign: str
) -> str:
    """Compare a gap, ours minus theirs, with 0 and with the margin; it is printed in this unit, with a sign after it.

    Args:
        span: the gaps that the missing answers allow; both ends are the gap where none is missing.
        errors: as for `gap_error`.
    """
    error, freedom = gap_error(*errors)
    half = t_point(freedom) * error if error else 0.0
    equivalent, differs = map(bool, decided(span.low, span.high, error, freedom, margin))
    ends = f"{(span.low - half) * unit:+.1f}, {(span.high + half) * unit:+.1f}"
    numbers = f"{gap * unit:+.1f}{sign} [{ends}]"
    if differs:
        return f"{EQUIVALENT}, " * equivalent + f"{DIFFERS} by {numbers}"
    if equivalent:
        return EQUIVALENT
    builds = builds_needed(gap, span, *errors, margin)
    if builds is None:
        return f"{OPEN}: {numbers}, however many builds"
    return f"{OPEN}: {numbers}, would need {f'{builds} builds if the gap stays' if builds else 'the missing answers'}"


def _their_variance(published: Published, runs: Runs) -> float | None:
    """The variance of the published mean over runs; None where no better value than our own is known."""
    if published.std is not None:
        return published.std**2
    if published.low is None or published.high is None or runs is NO_RUNS:
        return None
    bound = ((published.high - published.low) / 2 / NORMAL) ** 2
    return bound if bound < runs.variance else None
