"""Make a run folder of published answers, so that everything that reads a run reads it: scores, tables, differences, inspection.

The folder's name holds the answers' identity: sha256 and format of the file, and the data. Importing again writes the same bytes.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from data_loaders.schema import Case
from eval.imported import RECORDABLE, RECORDED, THEIRS
from eval.provenance import identity, surroundings
from eval.records import Prediction, Score
from eval.run import Run
from eval.score_files import save_grades
from eval.store import RunError, locked, replace_file, write_lines
from scripts.answers.formats import AnswerFile, read_answers
from scripts.answers.joining import Joined, Pair, join
from scripts.experiment.datasets import Data, data
from scripts.experiment.models import Models
from scripts.experiment.runs import reader
from scripts.settings.types import PLAIN_NAME

if TYPE_CHECKING:
    from omegaconf import DictConfig


@dataclass(frozen=True, slots=True)
class Origin:
    """What a user says about a file of answers; the file itself says nothing of it."""

    name: str
    """Name of the run and of its row."""
    title: str = ""
    by: str = ""
    licence: str = ""
    source: str = ""
    """Where the file can be had."""


def import_run(
    cfg: DictConfig, models: Models, dataset: Data, path: Path, origin: Origin, wanted: str | None = None
) -> Run:
    """Read a file of answers, join it with a data set and write its run folder; returns the run.

    Args:
        cfg: sets where the data are.
        dataset: loaded and cut; answers to questions that the cut leaves out are counted and left out.
        wanted: the file's format; None finds out.

    Raises:
        DataError: the file is damaged.
        RunError: there is no such file, its format is unknown, the name is none, or not one answer fits the data.
    """
    if not re.match(PLAIN_NAME, origin.name):
        raise RunError(f"as={origin.name}: must be a plain name (letters, digits, `.`, `_`, `-`)")
    file = read_answers(path, wanted)
    whole = data(_uncut(cfg), dataset.config).cases
    joined = join(file.answers, [whole[index] for index in range(len(whole))])
    if not joined.pairs:
        first = f"; the first: {joined.mismatches[0]}" if joined.mismatches else ""
        raise RunError(f"{file.name}: none of {len(file.answers)} answers belongs to {dataset.title}{first}")
    run = _run(models, dataset, file, origin)
    with locked(run.folder):
        kept = _write(run, joined)
        _write_grades(run, file, kept)
        facts = _facts(dataset, file, origin, joined, len(kept))
        run_record = {**run.record, "imported": {**run.record["imported"], **facts}}
        replace_file(run.folder / "run.json", json.dumps(run_record, indent=1, sort_keys=True, default=str))
    return replace(run, record=run_record)


def _uncut(cfg: DictConfig) -> DictConfig:
    """The configuration for the whole data set: conversations are numbered in it."""
    from omegaconf import OmegaConf

    merged = OmegaConf.merge(cfg, {"data": {"size": "all", "max_cases": None, "transform": "none"}})
    assert isinstance(merged, type(cfg))
    return merged


def _run(models: Models, dataset: Data, file: AnswerFile, origin: Origin) -> Run:
    parts = {
        "imported": {"sha256": file.sha256, "format": file.format},
        "dataset": {"name": dataset.name, **dataset.settings},
    }
    record = {
        **parts,
        "name": origin.name,
        "memory": {"imported": origin.name},
        "models": {},
        "prompts": {},
        "cases": len(dataset.cases),
        "data_status": dataset.source.status,
        "made_with": surroundings(),
    }
    return Run(
        name=origin.name,
        folder=models.results / "runs" / dataset.name / f"{origin.name}-{identity(parts)}",
        cases=dataset.cases,
        sizes=dataset.cases.sizes,
        build=_refuse_to_build,
        reader=reader(dataset.config["reader"]),
        unit=dict(dataset.config["unit"]),
        services=models.services,
        record=record,
    )


def _refuse_to_build(**_: object) -> NoReturn:
    raise RunError("imported answers have no memory that could be built")


def _facts(dataset: Data, file: AnswerFile, origin: Origin, joined: Joined, kept: int) -> dict[str, Any]:
    questions = sum(len(case.questions) for case in _cases(dataset))
    return {
        **asdict(origin),
        "title": origin.title or origin.name,
        "file": file.name,
        "answers": len(file.answers),
        "joined": len(joined.pairs),
        "joined_by_order": joined.in_order,
        "outside_the_cut": len(joined.pairs) - kept,
        "mismatches": joined.mismatches,
        "notes": joined.notes,
        "questions": questions,
        "without_answer": questions - kept,
    }


def _cases(dataset: Data) -> Iterator[Case]:
    return (dataset.cases[index] for index in range(len(dataset.cases)))


def _write(run: Run, joined: Joined) -> list[tuple[Prediction, Pair]]:
    """Write the files of each case; returns what was kept, in the order of the data."""
    pairs = {(pair.case_id, pair.question_id): pair for pair in joined.pairs}
    kept: list[tuple[Prediction, Pair]] = []
    for index in range(len(run.cases)):
        case = run.cases[index]
        own = [pair for question, _ in case.questions if (pair := pairs.get((case.id, question.id))) is not None]
        lines = [(_prediction(pair), pair) for pair in own]
        folder = run.case_folder(case.id)
        write_lines(folder / "predictions.jsonl", [prediction for prediction, _ in lines])
        write_lines(folder / "items.jsonl", [])
        if recorded := [line for line in map(_recorded, own) if line]:
            write_lines(folder / RECORDED, recorded)
        notes = {"case_id": case.id, "cluster": case.cluster or case.id, "dropped_turns": [], "notes": case.notes}
        write_lines(folder / "case.json", [{**notes, "memory": {}, "hidden_root": False}])
        kept += lines
    return kept


def _prediction(pair: Pair) -> Prediction:
    answer = pair.answer
    return Prediction(pair.case_id, pair.question_id, answer.answer, (), (), answer.outcome, answer.error, answer.cut)


def _recorded(pair: Pair) -> dict[str, Any]:
    """What the file says about the effort of an answer; empty when it says nothing."""
    known = {name: value for name in RECORDABLE if (value := getattr(pair.answer, name)) is not None}
    return {"case_id": pair.case_id, "question_id": pair.question_id, **known} if known else {}


def _write_grades(run: Run, file: AnswerFile, kept: Sequence[tuple[Prediction, Pair]]) -> None:
    """Keep the authors' own grades as score files, one a metric."""
    grades: dict[str, list[tuple[Prediction, Score]]] = defaultdict(list)
    for prediction, pair in kept:
        for metric, values in pair.answer.grades.items() if prediction.outcome != "error" else ():
            for repeat, value in enumerate(values):
                grades[metric].append((prediction, Score(value, "" if value is not None else "not graded", repeat)))
    for metric, lines in grades.items():
        save_grades(run, f"{THEIRS}{metric}", grade_settings(file.sha256, file.format, metric), lines)


def grade_settings(sha256: str, format_: str, metric: str) -> dict[str, str]:
    """What identifies a score file of the authors' own grades."""
    return {"imported": sha256, "format": format_, "grade": metric}
