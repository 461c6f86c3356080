"""A finished run with its questions, answers and scores, read from its folder and its data set, for export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_loaders.schema import Gold, Question
from data_loaders.source import manifest
from eval.files.imported import THEIRS
from eval.files.records import Prediction
from eval.files.run_folder import JUDGE, RunFolder, RunRecord, is_complete, judged_by, metric_of, read_predictions
from eval.files.store import RunError, read_record
from eval.judging.score_files import graded_files
from eval.report.cell import Cell, Column, asked, cells
from eval.report.counted import counted
from scripts.answers.declared import encodable
from scripts.assembly.run_folders import data_of
from scripts.setup.options import load_option, metric_options


@dataclass(frozen=True, slots=True)
class ExportedAnswer:
    """One question of the run."""

    case_id: str
    position: int
    """Position of the case in the run's data."""
    question: Question
    gold: Gold
    prediction: Prediction | None
    """None for a question that was not reached."""


@dataclass(frozen=True, slots=True)
class ScoreFile:
    id: str
    """Name of the file: the metric and the hash of its settings."""
    metric: str
    title: str
    settings: Mapping[str, Any]
    cell: Cell

    @property
    def judge(self) -> bool:
        return self.metric.startswith((JUDGE, f"{THEIRS}judge"))


@dataclass(frozen=True, slots=True)
class FinishedRun:
    folder: Path
    record: RunRecord
    title: str
    dataset_title: str
    licence: str
    """Licence of the data set's file; empty for the shipped sample and for files that are not in the manifest."""
    url: str
    """Download address of the data set's file; empty in the same cases."""
    lines: Sequence[ExportedAnswer]
    scores: Sequence[ScoreFile]

    @property
    def whole(self) -> bool:
        """Whether the run was on the whole data set."""
        known = self.record.dataset
        return known["size"] == "all" and known["max_cases"] is None


def finished_run(folder: Path, root: Path | None) -> FinishedRun:
    """Read a run.

    Args:
        root: folder of the raw files; None takes MEMSYS_DATA, else the download folder.

    Raises:
        RunError: the folder is no run, its name is not UTF-8, a case is not finished, or the data are not those of the run.
        DataError: the data are not there.
    """
    if not encodable(folder.name):
        raise RunError(
            f"{folder}: the name of the folder is not UTF-8, and what is exported holds it: rename the folder"
        )
    record = RunFolder(folder).record()
    cases = data_of(record, root).cases
    config = load_option("dataset", record.dataset["name"])
    histories = list(cases)
    if open_cases := [case.id for case in histories if not is_complete(RunFolder(folder).case(case.id))]:
        raise RunError(
            f"{folder}: {counted(len(open_cases), 'case')} not finished, such as {open_cases[0]}; run its command again"
        )
    lines = []
    for position, case in enumerate(histories):
        answers = read_predictions(RunFolder(folder).case(case.id))
        lines += [
            ExportedAnswer(case.id, position, question, gold, answers.get(question.id))
            for question, gold in case.questions
        ]
    entry = manifest().get(config["file"]) if record.data_status != "sample" else None
    scored = cells(Column.of(config, "", asked(histories)), folder, graded_files(folder), score_title)
    scores = [
        ScoreFile(path.stem, metric_of(path), cell.column.metric, read_record(path.with_suffix(".json")), cell)
        for path, cell in scored.items()
    ]
    title = record.imported.get("title") or record.name
    licence, url = (entry.licence, entry.url) if entry else ("", "")
    return FinishedRun(folder, record, title, config["title"], licence, url, lines, scores)


def score_title(score_file: Path) -> str:
    """Title of a score file's metric; its name if the metric is no longer configured."""
    metric = metric_of(score_file)
    if metric.startswith(THEIRS):
        return f"{metric.removeprefix(THEIRS)}, as graded by the authors"
    if judged_by(metric) is not None:
        return str(metric)
    return str(metric_options().get(metric, {}).get("title", metric))
