"""Make a run folder of published answers, so that all tools for runs can read it: scores, tables, differences, inspection.

The folder's name holds the answers' identity: sha256 and format of the file, and the data. Importing again writes the same bytes.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

from eval.files.imported import RECORDABLE, THEIRS
from eval.files.provenance import identity, surroundings
from eval.files.records import Prediction, Score
from eval.files.run_folder import COMPLETE, ITEMS, PREDICTIONS, RECORDED, RunFolder, RunRecord
from eval.files.store import RunError, locked, replace_file, write_lines
from eval.judging.score_files import save_grades
from eval.report.counted import counted
from eval.running.run import Run
from scripts.answers.formats import Reading
from scripts.answers.matching import Answer, Asked, Questions, of_cases
from scripts.assembly.datasets import Data, data
from scripts.assembly.models import Models
from scripts.assembly.runs import reader
from scripts.settings.types import PLAIN_NAME

if TYPE_CHECKING:
    from scripts.settings.schema import Settings


@dataclass(frozen=True, slots=True)
class Origin:
    """Facts about a file of answers that the user gives because the file lacks them."""

    name: str
    """Name of the run and of its row."""
    title: str = ""
    by: str = ""
    licence: str = ""
    source: str = ""
    """Source of the file."""


def import_run(
    cfg: Settings, models: Models, dataset: Data, read: Callable[[Questions], Reading], origin: Origin
) -> Run:
    """Read published answers, join them with a data set and write their run folder; returns the run.

    Args:
        cfg: sets where the data are.
        dataset: the loaded and cut data set; answers to questions outside the cut are counted and left out.
        read: joins the answers with the questions of the whole data set, such as `read_answers` of a path.

    Raises:
        DataError: a file is damaged.
        RunError: there is no such file, its form is unknown, the name is invalid, or no answer fits the data.
    """
    uncut = cfg.data.changed(size="all", max_cases=None, transform="none")  # conversations are numbered in the whole
    questions = of_cases(dataset.title, list(data(uncut, dataset.config).cases))
    return write_run(models, dataset, read(questions), origin)


def write_run(models: Models, dataset: Data, file: Reading, origin: Origin) -> Run:
    """Write the run folder of joined answers; returns the run. Raises RunError if the name is invalid, or no answer is joined."""
    if not re.match(PLAIN_NAME, origin.name):
        raise RunError(f"as={origin.name}: must be a plain name (letters, digits, `.`, `_`, `-`)")
    if not file.matched.pairs:
        first = f"; the first: {file.matched.unjoined[0]}" if file.matched.unjoined else ""
        raise RunError(
            f"{file.name}: none of {counted(len(file.contents.answers), 'answer')} belongs to {dataset.title}{first}"
        )
    run = _run(models, dataset, file, origin)
    with locked(run.folder):
        kept = _write(run, file.matched.pairs)
        _write_grades(run, file, kept)
        facts = _facts(dataset, file, origin, len(kept))
        content = {**run.record.content, "imported": {**run.record.imported, **facts}}
        replace_file(RunFolder(run.folder).file, json.dumps(content, indent=1, sort_keys=True, default=str))
    return replace(run, record=RunRecord.of(content))


def _run(models: Models, dataset: Data, file: Reading, origin: Origin) -> Run:
    parts = {
        "imported": {"sha256": file.sha256, "format": file.form.name},
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
        record=RunRecord.of(record),
    )


def _refuse_to_build(**_: object) -> NoReturn:
    raise RunError("imported answers have no memory that could be built")


def _facts(dataset: Data, file: Reading, origin: Origin, kept: int) -> dict[str, Any]:
    questions, joined = sum(len(case.questions) for case in dataset.cases), file.matched
    return {
        **asdict(origin),
        "title": origin.title or origin.name,
        "file": file.name,
        "answers": len(file.contents.answers),
        "joined": len(joined.pairs),
        "joined_by_order": joined.interchangeable,
        "outside_the_cut": len(joined.pairs) - kept,
        "mismatches": (*joined.unjoined, *joined.duplicates),
        "notes": (*joined.only_golds, *joined.other_gold, *joined.other_category),
        "irregular": tuple(file.contents.listed),
        "questions": questions,
        "without_answer": questions - kept,
    }


def _write(run: Run, pairs: Sequence[tuple[Asked, Answer]]) -> list[tuple[Prediction, Answer]]:
    """Write the files of each case; returns the kept answers, in the order of the data."""
    answers = {(asked.case_id, asked.question_id): answer for asked, answer in pairs}
    kept: list[tuple[Prediction, Answer]] = []
    for case in run.cases:
        own = [
            (Prediction(case.id, question.id, each.answer, (), (), each.outcome, each.error, each.cut), each)
            for question, _ in case.questions
            if (each := answers.get((case.id, question.id))) is not None
        ]
        folder = run.case_folder(case.id)
        write_lines(folder / PREDICTIONS, [prediction for prediction, _ in own])
        write_lines(folder / ITEMS, [])
        if recorded := [line for prediction, answer in own if (line := _recorded(prediction, answer))]:
            write_lines(folder / RECORDED, recorded)
        notes = {"case_id": case.id, "cluster": case.cluster or case.id, "dropped_turns": [], "notes": case.notes}
        write_lines(folder / COMPLETE, [{**notes, "memory": {}, "hidden_root": False}])
        kept += own
    return kept


def _recorded(prediction: Prediction, answer: Answer) -> dict[str, Any]:
    """The file's record of the effort of an answer; empty when there is none."""
    known = {name: value for name in RECORDABLE if (value := getattr(answer, name)) is not None}
    return {"case_id": prediction.case_id, "question_id": prediction.question_id, **known} if known else {}


def _write_grades(run: Run, file: Reading, kept: Sequence[tuple[Prediction, Answer]]) -> None:
    """Save the authors' own grades as score files, one per metric."""
    grades: dict[str, list[tuple[Prediction, Score]]] = defaultdict(list)
    for prediction, answer in kept:
        for metric, values in answer.grades.items() if prediction.outcome != "error" else ():
            for repeat, value in enumerate(values):
                grades[metric].append((prediction, Score(value, "" if value is not None else "not graded", repeat)))
    for metric, lines in grades.items():
        origin = {"imported": file.sha256, "format": file.form.name, "grade": metric}
        save_grades(run, f"{THEIRS}{metric}", origin, lines)
