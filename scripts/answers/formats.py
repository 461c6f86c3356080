"""Read files of published answers in any known form, join them with a data set, and make a run folder that all tools for runs can read.

The folder's name holds the answers' identity: sha256 and format of the file, and the data. Importing again writes the same bytes.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from data_loaders.schema import DataError
from eval.files.imported import RECORDABLE, THEIRS
from eval.files.provenance import identity, surroundings
from eval.files.records import Prediction, Score
from eval.files.run_folder import COMPLETE, ITEMS, PREDICTIONS, RECORDED, RunFolder, RunRecord
from eval.files.store import RunError, locked, replace_file, write_lines
from eval.judging.score_files import save_grades
from eval.report.counted import counted
from eval.running.reader import Reader
from eval.running.run import Run
from scripts.answers.declared import Contents, Form, Parsed, digest, forms, parsed, read_declared
from scripts.answers.matching import Answer, Asked, Matched, Questions, match, of_cases
from scripts.assembly.datasets import Data, data
from scripts.assembly.models import Models
from scripts.settings.schema import Settings
from scripts.settings.types import PLAIN_NAME
from scripts.setup.options import load_option


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of reading files by one form."""

    name: str
    """File name without folders: the folders of this machine stay private."""
    sha256: str
    """sha256 of the file; for several files, of the list of their sha256."""
    form: Form
    contents: Contents
    matched: Matched

    @property
    def golds_are_right(self) -> bool:
        """Whether most of the golds that the form reads are the data set's."""
        return 2 * len(self.matched.other_gold) < self.matched.golds


def read_answers(questions: Questions, path: Path, wanted: str | None = None) -> Reading:
    """Read a file, a folder of files that belong together, or a run folder.

    Args:
        wanted: its form, as `NAME` or `NAME:option=value`; None takes the form that reads most.

    Raises:
        DataError: a file is damaged, or the wanted form does not fit.
        RunError: there is no such file or form, or no form fits.
    """
    parts = [path]
    if path.is_dir():
        parts = sorted(path.glob("cases/*/predictions.jsonl")) or sorted(
            each for each in path.iterdir() if each.is_file()
        )
    if not parts or not all(part.is_file() for part in parts):
        raise RunError(f"{path}: no such file, and no run folder with predictions")
    name, _, given = (wanted or "").partition(":")
    options = dict(option.partition("=")[::2] for option in given.split(",") if option)
    return best_reading(path.name, [parsed(part) for part in parts], questions, forms(), name, options)


def best_reading(
    name: str,
    files: Sequence[Parsed],
    questions: Questions,
    known: Mapping[str, Form],
    wanted: str = "",
    options: Mapping[str, str] | None = None,
) -> Reading:
    """Read the files by the wanted form, else by the form that reads most of them.

    Raises:
        DataError: the wanted form does not read them.
        RunError: there is no such form, or no form reads them.
    """
    if wanted and wanted not in known:
        raise RunError(f"the form {wanted} is not known; there are: {', '.join(known)}")
    readings, refused = [], []
    for form in [known[wanted]] if wanted else known.values():
        try:
            contents = read_declared(files, form, options)
        except DataError as error:
            refused.append(str(error))
            continue
        readings.append(Reading(name, digest(files), form, contents, match(contents.answers, questions)))
    if readings:
        return max([each for each in readings if not _reads_golds(each, readings)] or readings, key=_worth)
    if wanted:
        raise DataError(refused[0])
    about = "; ".join(f"{form.name}: {form.about}" for form in known.values())
    raise RunError(f"{name}: none of {len(known)} forms reads it; forms: {about}")


def _reads_golds(reading: Reading, others: Sequence[Reading]) -> bool:
    """Whether another form reads these answers as the data set's golds, from records with a field for the answer, empty or not.

    A form that reads the golds elsewhere is right: its system answers in the words of the golds.
    """
    texts = [answer.answer for answer in reading.contents.answers]
    return not reading.golds_are_right and any(
        other.contents.fields_of_answers
        and other.golds_are_right
        and [answer.gold for answer in other.contents.answers] == texts
        for other in others
    )


def _worth(reading: Reading) -> tuple[bool, int, bool, int, int, int]:
    """The quality of a form's reading.

    In order: whether there is any text, number of answers with a question, whether most golds are the data set's, numbers of answers with
    text, with the data set's gold, with a verdict. A form that mistakes the gold for the answer reads a text where an answer is missing, so
    right golds come before texts. It also turns two different answers into equal ones: duplicates are a criterion, too.
    """
    answers, matched = reading.contents.answers, reading.matched
    texts = sum(bool(answer.answer.strip()) for answer in answers)
    grades = [answer.grade("judge") for answer in answers]
    # 1 of 100 is no verdict: it is the full mark of a file from 0 to 1 that is read in percent.
    verdicts = sum(grade is not None and not 0 < grade <= 0.01 for grade in grades)
    joined, right = len(answers) - len(matched.without_question), matched.golds - len(matched.other_gold)
    return texts > 0, joined, reading.golds_are_right, texts, right, verdicts


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
        grades: dict[str, list[tuple[Prediction, Score]]] = defaultdict(list)
        for prediction, answer in kept:
            for metric, values in answer.grades.items() if prediction.outcome != "error" else ():
                for repeat, value in enumerate(values):
                    grades[metric].append((prediction, Score(value, "" if value is not None else "not graded", repeat)))
        for metric, lines in grades.items():  # the authors' own grades, one file per metric
            graded = {"imported": file.sha256, "format": file.form.name, "grade": metric}
            save_grades(run, f"{THEIRS}{metric}", graded, lines)
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
        reader=Reader(**load_option("reader", dataset.config["reader"])),
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
        efforts = [
            (each, {name: value for name in RECORDABLE if (value := getattr(answer, name)) is not None})
            for each, answer in own
        ]
        ids = [{"case_id": case.id, "question_id": each.question_id, **known} for each, known in efforts if known]
        if ids:  # the file's own record of effort
            write_lines(folder / RECORDED, ids)
        notes = {"case_id": case.id, "cluster": case.cluster or case.id, "dropped_turns": [], "notes": case.notes}
        write_lines(folder / COMPLETE, [{**notes, "memory": {}, "hidden_root": False}])
        kept += own
    return kept
