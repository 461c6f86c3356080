"""A person's own verdicts, exported from the HTML report: compared with those of the judges, and the score that follows from both.

Each line of the export names the run, the question and the hash of the answer that was rated. A rating of an answer that has changed since
is counted and left out.

The score, from a judge's verdicts on all answers and a person's on a random sample of them, needs no card of the judge. It is
prediction-powered inference (Angelopoulos, Bates, Fannjiang, Jordan and Zrnic 2023, Science 382), tuned as in PPI++ (Angelopoulos, Duchi
and Zrnic 2023, section 6): the mean of the person's verdicts, plus `weight` times the difference between the judge's mean on all answers
and on the sample. The weight minimises the variance, so a judge that errs at random gets a weight near 0.

The standard error by question is that of the sum of the answers' influences. The error by case is the delete-one-history jackknife, never
below the error by question. A sample in which person and judge happen to agree says little about how rarely they differ, so its variance
is never below that of a sample with two more differences (as in Agresti and Coull's interval). Both intervals are Wilson's with Student's
quantile, for the number of rated answers with the same standard error: near 0 and 1 they have better coverage than a symmetric interval.

The sample must be random: `sample_order` gives the order in which to rate answers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from eval.files.run_folder import RunFolder, judge_metric
from eval.files.store import RunError, read_lines
from eval.judging.agreement import RIGHT, kappa
from eval.judging.score_files import score_lines
from eval.report.rendering import grid, number
from eval.statistics.stats import ENOUGH_CLUSTERS, Estimate, Interval, numbered, t_point, wilson_of_share

Key = tuple[str, str]
"""Case and question."""
FEWEST = 20
"""With fewer ratings there is no score."""


def sample_order(keys: Iterable[Key]) -> list[Key]:
    """The questions in the order in which a person should rate them: sorted by a hash, so every prefix is a random sample."""
    return sorted(keys, key=lambda key: hashlib.sha256("\x00".join(key).encode()).digest())


def prediction_powered(verdicts: Sequence[float], clusters: Sequence[str], ratings: Sequence[float | None]) -> Estimate:
    """Estimate the mean verdict that the person would give to all answers, with intervals.

    Args:
        verdicts: the judge's, one per answer, from 0 to 1.
        clusters: history of each answer, same length.
        ratings: the person's, None for an answer that was not rated, same length.

    Raises:
        ValueError: fewer than `FEWEST` ratings, or the lengths differ.
    """
    judged, rated = np.asarray(verdicts, dtype=float), np.asarray(ratings, dtype=float)
    if not judged.size == rated.size == len(clusters):
        raise ValueError(f"{judged.size} verdicts, {rated.size} ratings and {len(clusters)} histories")
    is_rated = ~np.isnan(rated)
    n = int(is_rated.sum())
    if n < FEWEST:
        raise ValueError(f"{n} ratings of the random sample; at least {FEWEST} are needed")
    homes = numbered(clusters)
    weight = _weight(judged, rated, is_rated)
    rest = np.where(is_rated, rated - weight * judged, 0.0)
    mean = weight * float(judged.mean()) + float(rest.sum()) / n
    size = int(homes.max()) + 1
    all_of, rated_of = np.bincount(homes, minlength=size), np.bincount(homes[is_rated], minlength=size)
    influence = weight * (judged - judged.mean()) / judged.size + is_rated * (rest - rest.sum() / n) / n
    differing = float(((rest - rest.sum() / n)[is_rated] ** 2).sum()) + 2.0
    variance = max(float((influence**2).sum()) * n / (n - 1), differing / (n + 4) / n)
    by_case = None
    if size >= ENOUGH_CLUSTERS and (rated_of < n).all():
        judged_of, rest_of = np.bincount(homes, judged, size), np.bincount(homes, rest, size)
        without = weight * (judged.sum() - judged_of) / (judged.size - all_of) + (rest.sum() - rest_of) / (n - rated_of)
        jackknife = float(((without - mean) ** 2).sum()) * (size - 1) / size
        share = all_of / judged.size
        by_case = _interval(mean, max(jackknife, variance), max(1.0, 1.0 / float((share**2).sum()) - 1.0), n)
    by_question = _interval(mean, variance, n - 1.0, n)
    return Estimate(min(max(mean, 0.0), 1.0), n, by_question, by_case, size)


def _weight(judged: np.ndarray, rated: np.ndarray, is_rated: np.ndarray) -> float:
    own, spread = judged[is_rated], float(judged.var())
    if spread == 0.0:
        return 0.0
    together = float(((own - own.mean()) * (rated[is_rated] - rated[is_rated].mean())).mean())
    return float(np.clip(together / spread / (1.0 + own.size / judged.size), 0.0, 1.0))


def _interval(mean: float, variance: float, freedom: float, n: int) -> Interval:
    """Wilson's interval for the number of independent ratings that has this variance.

    Args:
        n: number of ratings.
    """
    inside = min(max(mean, 0.0), 1.0)
    smooth = (inside * n + 2.0) / (n + 4)
    return wilson_of_share(inside, smooth * (1.0 - smooth) / variance, t_point(freedom))


FIELDS = ("run", "case_id", "question_id", "answer", "value", "why")


@dataclass(frozen=True, slots=True)
class RatingAgreement:
    """Ratings compared with the verdicts of one judge on the same answers."""

    judge: str
    n: int
    agreeing: int
    """Number of answers that both call right or both call wrong; a value of at least 0.5 is right."""
    ours: float
    """Mean of the ratings."""
    theirs: float
    """Mean of the judge's verdicts, repeats averaged."""
    kappa: float | None
    """Cohen's kappa; None where both give all answers the same verdict."""


@dataclass(frozen=True, slots=True)
class Ratings:
    """The ratings of a file, compared with all judges."""

    lines: int
    changed: int
    """Number of ratings of answers that have changed since."""
    unknown: int
    """Number of ratings of runs or questions that are not below this results folder."""
    agreements: tuple[RatingAgreement, ...]


def compare(file: Path, results: Path) -> Ratings:
    """Compare the ratings of an exported file with the verdicts in the run folders.

    Raises:
        RunError: the file is missing or damaged.
    """
    lines = _rated(file)
    changed = unknown = 0
    by_judge: dict[str, list[tuple[float, float]]] = {}
    answers: dict[str, dict[str, dict[tuple[str, str], tuple[str, float]]]] = {}
    for line in lines:
        run = str(line["run"])
        if run not in answers:
            answers[run] = _verdicts(results, run)
        key = (line["case_id"], line["question_id"])
        pairs = {judge: own[key] for judge, own in answers[run].items() if key in own}
        unknown += not pairs
        changed += bool(pairs) and all(answer != line["answer"] for answer, _ in pairs.values())
        for judge, (answer, value) in pairs.items():
            if answer == line["answer"]:
                by_judge.setdefault(judge, []).append((float(line["value"]), value))
    agreements = []
    for judge, pairs_of in sorted(by_judge.items()):
        ours, theirs = zip(*pairs_of, strict=True)
        person, machine = ({place: value >= RIGHT for place, value in enumerate(side)} for side in (ours, theirs))
        agreeing = sum(person[place] == machine[place] for place in person)
        kappas = kappa(person, machine)
        agreements.append(RatingAgreement(judge, len(person), agreeing, fmean(ours), fmean(theirs), kappas))
    return Ratings(len(lines), changed, unknown, tuple(agreements))


def _rated(file: Path) -> list[dict[str, Any]]:
    """The lines of an export."""
    if not file.is_file():
        raise RunError(f"no file {file}; the report exports it (page Question, Export)")
    lines = read_lines(file, fields=FIELDS)
    if wrong := next((line for line in lines if line["value"] not in (0, 0.5, 1)), None):
        raise RunError(f"{file}: a rating is 0, 0.5 or 1, found {wrong['value']!r}")
    return lines


def _verdicts(results: Path, run: str) -> dict[str, dict[tuple[str, str], tuple[str, float]]]:
    """By judge and question: the hash of the judged answer and its mean verdict. Empty for a run that is not below the folder."""
    folder = (results / "runs" / run).resolve()
    if not folder.is_relative_to((results / "runs").resolve()):
        return {}
    judges: dict[str, dict[tuple[str, str], tuple[str, float]]] = {}
    for path in RunFolder(folder).score_files(judge_metric("*")):
        values: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for line in score_lines(path, "answer"):
            if line["value"] is not None:
                values.setdefault((line["case_id"], line["question_id"]), []).append(line)
        means = ((key, own[0]["answer"], fmean(each["value"] for each in own)) for key, own in values.items())
        judges[path.stem] = {key: (answer, mean) for key, answer, mean in means}
    return judges


def ratings_of(file: Path, run: Path, score_file: Path) -> dict[tuple[str, str], float]:
    """A person's verdicts on the answers of a run that a score file covers; ratings of answers that have changed are left out.

    Raises:
        RunError: the file is missing or damaged.
    """
    answers = {(line["case_id"], line["question_id"]): line["answer"] for line in score_lines(score_file, "answer")}
    return {
        key: float(line["value"])
        for line in _rated(file)
        if str(line["run"]) == f"{run.parent.name}/{run.name}"
        and answers.get(key := (line["case_id"], line["question_id"])) == line["answer"]
    }


def rated_sample(
    ratings: Mapping[tuple[str, str], float], answers: Iterable[tuple[str, str]]
) -> dict[tuple[str, str], float]:
    """The ratings that are a random sample of the answers: the part of `sample_order` before the first unrated answer.

    Ratings after the first gap are left out: answers that a person chose to rate may differ from the others.
    """
    return {key: ratings[key] for key in takewhile(ratings.__contains__, sample_order(answers))}


def as_markdown(ratings: Ratings) -> str:
    """The agreement with each judge as a table, and the counts of ratings left out."""
    left_out = f"{ratings.changed} of answers that have changed since, {ratings.unknown} of answers no judge has seen"
    rows = []
    for each in ratings.agreements:
        agree, means = f"{each.agreeing / each.n:.1%}", (number(each.ours), number(each.theirs))
        rows.append([each.judge, str(each.n), agree, number(each.kappa, 2), *means])
    header = ["judge", "n", "agree", "kappa", "mean of yours", "mean of the judge"]
    return "\n".join([f"{ratings.lines} ratings; {left_out}.", "", grid(header, rows)])
