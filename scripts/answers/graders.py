"""Several graders of the answers of one claim: stored in a file, and compared by means, kappa and prediction-powered scores.

A grader is a source of verdicts: the file's own judge, people, or a judge of ours (`scripts.lab.rejudging`). Cohen's kappa of two graders
is over the answers that both graded. If people gave the stored verdicts, there is a prediction-powered score for each judge of ours.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from data_loaders.raw import read_json
from data_loaders.schema import DataError
from eval.analysis.losses import shown_estimate
from eval.files.imported import THEIRS
from eval.files.store import RunError, replace_file, safe_name
from eval.judging.agreement import RIGHT, agreement
from eval.report.ratings import prediction_powered, sample_order
from eval.report.rendering import number, span
from eval.statistics.stats import estimate
from scripts.answers.manifest import PEOPLE, Claim

SAMPLED = 200
"""Number of labels that count if people labelled every answer: the first ones of `sample_order`."""
STORED = f"{THEIRS}judge"
"""Name of the grader of the file's own verdicts."""
STAND_IN = " (stand-in)"
"""End of the name of a judge that is an engine without a model."""
COLUMNS = ("grader", "judged", "failed", "mean", "kappa with")
Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Grader:
    """The verdicts of one judge on the answers of a claim."""

    name: str
    values: Mapping[Key, float]
    """Values by case and question, averaged over repeats; answers without a verdict are left out."""
    failed: int
    """Number of answers that should have been judged and have no verdict."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The graders of a claim, the stored one first where the file has verdicts."""

    graders: tuple[Grader, ...]
    sha256: str
    """sha256 of the judged files."""


def compared(
    claim: Claim, graders: Sequence[Grader], clusters: Mapping[Key, str]
) -> tuple[list[tuple[str, ...]], list[str]]:
    """A row per grader in the order of `COLUMNS`, with its mean and its kappa with every other grader; then, if people labelled answers,
    for each judge a prediction-powered score or the reason why there is none.

    Args:
        clusters: conversation of every graded answer.
    """
    titles = [title_of(claim, each) for each in graders]
    rows: list[tuple[str, ...]] = []
    for at, grader in enumerate(graders):
        kappas = (
            f"{title} {_kappa(grader, other, clusters)}"
            for title, other in zip(titles, graders, strict=True)
            if other is not grader
        )
        counts = (str(len(grader.values)), str(grader.failed))
        rows.append((titles[at], *counts, _mean(grader, clusters), "; ".join(kappas) or "–"))
    judges = graders[1:] if titles[:1] == [PEOPLE] else ()
    return rows, [_powered(each, graders[0], clusters) for each in judges]


def title_of(claim: Claim, grader: Grader) -> str:
    """The name of a grader for readers."""
    if grader.name != STORED:
        return grader.name
    return PEOPLE if claim.judge == PEOPLE else "stored verdict"


def _mean(grader: Grader, clusters: Mapping[Key, str]) -> str:
    values = grader.values
    return shown_estimate(estimate(list(values.values()), [clusters[key] for key in values])) if values else "–"


def _kappa(one: Grader, other: Grader, clusters: Mapping[Key, str]) -> str:
    sides = [{key: value >= RIGHT for key, value in each.values.items()} for each in (one, other)]
    both = agreement(sides, clusters)
    if both is None:
        return "– (no common answer)"
    return f"{number(both.kappa)} {span(both.kappa_interval)}".strip() + f" on {both.n}"


def _powered(judge: Grader, people: Grader, clusters: Mapping[Key, str]) -> str:
    """The score that people would give to all answers, from the judge's verdicts and their labels."""
    keys = list(judge.values)
    known = {key: people.values[key] for key in keys if key in people.values}
    if len(known) == len(keys):  # all labels are their own mean; a random part shows the gain from a judge
        known = {key: known[key] for key in sample_order(keys)[:SAMPLED]}
    labels = [known.get(key) for key in keys]
    try:
        score = prediction_powered([judge.values[key] for key in keys], [clusters[key] for key in keys], labels)
    except ValueError as error:
        return f"no prediction-powered score from {judge.name}: {error}"
    return f"prediction-powered by {judge.name}: {shown_estimate(score)} from {score.n} labels and {len(keys)} verdicts"


def keep(results: Path, claim: Claim, judged: Judged) -> None:
    """Write the graders of a claim, for the site; graders of an earlier judging of the claim are replaced."""
    content = {
        "claim": claim.name,
        "sha256": judged.sha256,
        "graders": [
            {"name": each.name, "failed": each.failed, "values": [[*key, value] for key, value in each.values.items()]}
            for each in judged.graders
        ],
    }
    replace_file(_file(results, claim), json.dumps(content) + "\n")


def kept(results: Path, claim: Claim) -> Judged | None:
    """The graders that `keep` has written for a claim; None if it was never judged again.

    Raises:
        RunError: the file is damaged.
    """
    file = _file(results, claim)
    if not file.is_file():
        return None
    try:
        content = read_json(file)
        graders = tuple(
            Grader(
                str(each["name"]),
                {(str(case), str(question)): float(value) for case, question, value in each["values"]},
                int(each["failed"]),
            )
            for each in content["graders"]
        )
        if content["claim"] != claim.name or not all(
            0 <= value <= 1 for each in graders for value in each.values.values()
        ):
            raise ValueError("another claim's verdicts, or verdicts that are not from 0 to 1")
        return Judged(graders, str(content["sha256"]))
    except (DataError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{file}: no verdicts of judges; delete it, or judge the claim again ({error})") from error


def _file(results: Path, claim: Claim) -> Path:
    return results / "claims" / "rejudged" / f"{safe_name(claim.name)}.json"
