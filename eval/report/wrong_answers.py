"""The questions of a run that were answered wrong, and those that have no score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from eval.files.records import Prediction
from eval.files.run_folder import RunFolder, judged_by, metric_of, read_predictions
from eval.files.store import RunError
from eval.judging.agreement import RIGHT
from eval.judging.score_files import graded_files, read_scores


@dataclass(frozen=True, slots=True)
class WrongAnswer:
    """A question that has no score, or one below `RIGHT`."""

    prediction: Prediction
    score: float | None
    """The mean over the judge's repeats; None where there is no verdict."""


def score_file(run_folder: Path, metric: str | None) -> Path:
    """The newest score file of a metric; of None, of a judge, else of the first metric by name.

    Raises:
        RunError: there is none.
    """
    files = graded_files(run_folder)
    names = sorted({metric_of(path) for path in files}, key=lambda name: (judged_by(name) is None, name))
    wanted = metric or (names[0] if names else "a metric")
    fitting = [path for path in files if metric_of(path) == wanted]
    if not fitting:
        raise RunError(f"{run_folder} has no scores of {wanted}; there are: {', '.join(names) or 'none'}")
    return max(fitting, key=lambda path: path.stat().st_mtime)


def wrong_answers(run_folder: Path, scores: Path) -> list[WrongAnswer]:
    """In the order of the cases' folders and of the answers in them."""
    by_question = read_scores(scores)
    wrong = []
    for folder in RunFolder(run_folder).cases():
        for prediction in read_predictions(folder).values():
            values = [line["value"] for line in by_question.get((prediction.case_id, prediction.question_id), ())]
            score = _mean(values)
            if score is None or score < RIGHT:
                wrong.append(WrongAnswer(prediction, score))
    return wrong


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None
