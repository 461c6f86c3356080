"""Score files: one line per score, in `scores/<metric>-<hash of its settings>.jsonl` of a run folder.

A line names the answer that it scored by a hash, and stays valid as long as the answer is the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from data_loaders.schema import Case, Gold, Question
from eval.files.fields import EVIDENCE
from eval.files.provenance import identity
from eval.files.records import Prediction, Score
from eval.files.run_folder import PREDICTIONS, RunFolder, metric_of, read_items, read_predictions
from eval.files.store import AGAIN, RunError, read_lines, replace_file, write_lines
from eval.running.run import Run


@dataclass(frozen=True, slots=True)
class Scored:
    """One line of a score file."""

    case_id: str
    question_id: str
    repeat: int
    value: float | None
    why: str
    detail: Mapping[str, Any]
    answer: str
    """Hash of the scored text: the answer, or the recalled items."""


AnswerKey = tuple[str, str, str, int]
"""Case id, question id, hash of the scored text, and repeat."""
Items = Mapping[str, Mapping[str, Any]]
"""Recalled items of a case by their hash."""
ScoreLines = Mapping[tuple[str, str], Sequence[Mapping[str, Any]]]
"""Lines of a score file by case and question id, repeats in order."""


def answers_of(
    run: Run, *scored_texts: Callable[[Prediction, Items], str], repeats: int = 1, recalls: bool = False
) -> list[set[AnswerKey]]:
    """The keys of every prediction that can be scored, for each kind of scored text.

    Args:
        scored_texts: the text of a prediction that is scored, given the items of its case.
        recalls: whether one needs the items, which are then read.
    """
    keys: list[set[AnswerKey]] = [set() for _ in scored_texts]
    for path in RunFolder(run.folder).written(PREDICTIONS):
        items = read_items(path.parent) if recalls else {}
        for prediction in read_predictions(path.parent).values():
            for scored_text, own in zip(scored_texts, keys, strict=True) if prediction.outcome != "error" else ():
                scored = prediction.case_id, prediction.question_id, hash_of(scored_text(prediction, items))
                own |= {(*scored, repeat) for repeat in range(repeats)}
    return keys


def answer_key(line: Mapping[str, Any]) -> AnswerKey:
    """The answer that a line of a score file, or a line of its costs, belongs to."""
    return line["case_id"], line["question_id"], line["answer"], line["repeat"]


def save_grades(run: Run, name: str, settings: Mapping[str, Any], grades: Iterable[tuple[Prediction, Score]]) -> Path:
    """Write grades from another source, named by `settings`, as a score file of the run (`score_file`); returns the file."""
    path = score_file(run, name, settings)
    write_lines(path, [scored_line(each, score, each.answer) for each, score in grades])
    return path


def graded_files(run_folder: Path) -> list[Path]:
    """Score files of a run that grade answers: all but the evidence files."""
    return [path for path in RunFolder(run_folder).score_files() if not path.name.startswith("evidence@")]


def only_score_file(run_folder: Path, name: str) -> Path:
    """The score file of a run by a metric or judge.

    Raises:
        RunError: there is no such file, or there are several with different settings.
    """
    files = RunFolder(run_folder).score_files(name)
    if len(files) != 1:
        known = ", ".join(sorted({metric_of(path) for path in RunFolder(run_folder).score_files()}))
        raise RunError(f"{run_folder}: expected one file of scores by {name}, found {len(files)}; there are: {known}")
    return files[0]


def answered(run: Run, *, recalls: bool) -> Iterator[tuple[Case, Question, Gold, Prediction, Items]]:
    """Every question that can be scored, in the order of the data; the items of its case are empty unless `recalls`."""
    for case in run.cases:
        folder = run.case_folder(case.id)
        predictions, items = read_predictions(folder), read_items(folder) if recalls else {}
        for question, gold in case.questions:
            prediction = predictions.get(question.id)
            if prediction is not None and prediction.outcome != "error":
                yield case, question, gold, prediction, items


def read_scores(path: Path) -> ScoreLines:
    """Score lines by (case, question), repeats in order.

    Raises:
        RunError: there is no such file, a line is damaged, or two lines are the same repeat of one question.
    """
    if not path.is_file():
        raise RunError(f"{path} does not exist: run the experiment again to score it")
    by_question: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for record in score_lines(path, "repeat"):
        by_question.setdefault((record["case_id"], record["question_id"]), []).append(record)
    for key, own in by_question.items():
        if len(own) > 1 and len({line["repeat"] for line in own}) < len(own):
            raise RunError(f"{path}: two lines are the same repeat of question {'/'.join(key)}; {AGAIN}")
    return by_question


def mean_values(path: Path) -> dict[tuple[str, str], float]:
    """`means_of` of a file. Raises RunError where there is no such file, or a line is damaged."""
    return means_of(read_scores(path))


def means_of(scores: ScoreLines) -> dict[tuple[str, str], float]:
    """The mean over repeats of each question that has a score."""
    given = {key: [line["value"] for line in lines if line["value"] is not None] for key, lines in scores.items()}
    return {key: fmean(values) for key, values in given.items() if values}


def read_evidence(path: Path) -> list[Mapping[str, Any]]:
    """The lines of an evidence score file that have a value, each with its whole detail.

    Raises:
        RunError: there is no such file, or a line is damaged.
    """
    scored = [line for lines in read_scores(path).values() for line in lines if line["value"] is not None]
    for line in scored:
        detail = line.get("detail", {})
        for name, kind in EVIDENCE.items():
            if name not in detail or not kind.holds(detail[name]):
                where = f"the line of {line['case_id']}/{line['question_id']}"
                raise RunError(f"{path}: {where} holds no {name}, but {str(detail.get(name))[:40]!r}; {AGAIN}")
    return scored


def score_lines(path: Path, *more: str) -> list[dict[str, Any]]:
    """The lines of a score file.

    Args:
        more: fields that every line must have, in addition to the ids and the value.

    Raises:
        RunError: a line is damaged or lacks a field.
    """
    return read_lines(path, fields=("case_id", "question_id", "value", *more))


def score_file(run: Run, name: str, settings: Mapping[str, Any], facts: Mapping[str, Any] | None = None) -> Path:
    """The score file for these settings; they are saved next to it as JSON, with `facts`, which are not part of its identity."""
    path = place_of(run, name, settings)
    if not (beside := path.with_suffix(".json")).is_file():
        replace_file(beside, json.dumps({**settings, **(facts or {})}, indent=1, sort_keys=True, default=str))
    return path


def place_of(run: Run, name: str, settings: Mapping[str, Any]) -> Path:
    """The score file for these settings, whether or not it exists."""
    return RunFolder(run.folder).scores(f"{name}-{identity(settings)}")


def scored_line(prediction: Prediction, score: Score, scored: str) -> Scored:
    """A line of a score file, given the text that was scored."""
    value = None if score.value is None else round(float(score.value), 6)
    own = prediction.case_id, prediction.question_id
    return Scored(*own, score.repeat, value, score.why, score.detail, hash_of(scored))


def hash_of(answer: str) -> str:
    return hashlib.sha256(answer.encode(errors="replace")).hexdigest()[:12]
