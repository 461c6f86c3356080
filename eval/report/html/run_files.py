"""The runs of a set with the content of their files: each file is read once, and checked as it is read.

Nodes are read by the page of a memory, which shows the reason in their place where they are damaged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from eval.analysis.costs import BUILD, NEEDED, Costs, PhaseCost, Spent, costs, phases
from eval.files.fields import PER_QUESTION
from eval.files.records import Prediction
from eval.files.run_folder import (
    EFFORTS,
    PREDICTIONS,
    RunFolder,
    history_of,
    is_complete,
    read_items,
    read_predictions,
    recalled_items,
)
from eval.files.store import AGAIN, RunError, read_lines, safe_name
from eval.judging.score_files import ScoreLines, read_scores
from eval.report.cell import Asked, answered, asked
from eval.report.html.sources import ReportedRun, RunSet

PURPOSES = ("calls", "attempts", "failures", "parse_failures")
"""Counts of an effort line that the page of a memory shows by purpose of the call."""
GROWN = 6
"""Maximum number of histories whose growth is drawn, the longest first."""
POINTS = 150
"""Maximum number of points of a curve before its last."""


@dataclass(frozen=True, slots=True)
class CaseFiles:
    """The content of one case; empty where the run has not reached it."""

    predictions: Mapping[str, Prediction]
    items: Mapping[str, Mapping[str, Any]]
    efforts: Mapping[tuple[str, str], Mapping[str, Any]]
    """Counts, tokens and seconds of reading and answering, by phase and question."""
    history: str | None
    """The history that the case is part of; None where the run does not say."""


EMPTY = CaseFiles({}, {}, {}, None)


@dataclass(frozen=True, slots=True)
class ReadRun(ReportedRun):
    """A run with the content of its files."""

    cases: Mapping[str, CaseFiles]
    """By name of the case's folder."""
    scores: Mapping[Path, ScoreLines]
    """The lines of each score file."""
    costs: Costs
    phases: Sequence[PhaseCost]
    purposes: Mapping[str, Counter[str]]
    """Counts by purpose of the call, for each of `PURPOSES`."""
    growth: Sequence[Mapping[str, Any]]
    """Cumulative costs after each unit of the longest histories: number of the unit, model tokens, calls, seconds."""

    def case(self, case_id: str) -> CaseFiles:
        return self.cases.get(safe_name(case_id), EMPTY)

    def recalls(self, case_folder: Path) -> tuple[Mapping[str, Prediction], Mapping[str, Mapping[str, Any]]]:
        """Predictions and items of a case, by its folder."""
        own = self.cases.get(case_folder.name, EMPTY)
        return own.predictions, own.items

    def predictions(self, case_folder: Path) -> Mapping[str, Prediction]:
        return self.recalls(case_folder)[0]


@dataclass(frozen=True)
class ReadSet(RunSet):
    """A set with the content of its runs."""

    runs: tuple[ReadRun, ...]

    @cached_property
    def asked(self) -> tuple[Asked, ...]:
        """The questions in the order of the data; without the data, those that were answered."""
        if self.cases:
            return asked(self.cases)
        return answered((case.history, case.predictions.values()) for run in self.runs for case in run.cases.values())

    @property
    def case_ids(self) -> list[str]:
        """The cases that its questions belong to, in order."""
        return list(dict.fromkeys(question.case_id for question in self.asked))


def read_set(found: RunSet, damaged: list[str]) -> ReadSet | None:
    """The set with its runs' files; None where every run is damaged.

    Args:
        damaged: gets a sentence about each run that is left out because a file of it is damaged or cannot be read.
    """
    runs, order = [], [case.id for case in found.cases]
    for run in found.runs:
        try:
            runs.append(_read_run(run, order))
        except (RunError, OSError) as error:
            damaged.append(f"run {run.key} is left out: {error}")
    return ReadSet(found.key, found.name, tuple(runs), found.cases, found.why, found.aggregate) if runs else None


def _read_run(run: ReportedRun, order: Sequence[str]) -> ReadRun:
    """Read the files of a run; `order` are the ids of its cases, empty where the data could not be read again."""
    folder, spent = RunFolder(run.folder), Spent()
    purposes: dict[str, Counter[str]] = {name: Counter() for name in PURPOSES}
    cases: dict[str, CaseFiles] = {}
    curves: dict[str, dict[str, Any]] = {}
    for path in folder.cases():
        efforts = read_lines(path / EFFORTS, fields=(*NEEDED, *PURPOSES), finished=is_complete(path))
        for line in efforts:
            spent.add(line)
            for name, counts in purposes.items():
                counts.update(line[name])
        cases[path.name] = _read_case(path, efforts, imported=bool(run.record.imported))
        if points := _curve(efforts):
            curves[path.name] = {"case": efforts[0]["case_id"], "points": points}
    ordered = [curves[name] for name in map(safe_name, order) if name in curves] if order else list(curves.values())
    longest = sorted(ordered, key=lambda curve: -curve["points"][-1][0])[:GROWN]
    return ReadRun(
        **{each.name: getattr(run, each.name) for each in fields(ReportedRun)},
        cases=cases,
        scores={path: read_scores(path) for path in folder.score_files()},
        costs=costs(run.folder, spent=spent),
        phases=phases(run.folder, spent),
        purposes=purposes,
        growth=longest,
    )


def _read_case(path: Path, efforts: Sequence[Mapping[str, Any]], *, imported: bool) -> CaseFiles:
    finished = is_complete(path)
    predictions, items = read_predictions(path, finished=finished), read_items(path, finished=finished)
    for prediction in predictions.values():
        recalled_items(prediction, items)
        if safe_name(prediction.case_id) != path.name:
            raise RunError(f"{path / PREDICTIONS}: a line is of case {prediction.case_id!r}; {AGAIN}")
    if predictions and not efforts and (path / EFFORTS).is_file() and not imported:
        raise RunError(f"{path / EFFORTS} has no line, although questions were answered; {AGAIN}")
    own = {(line["phase"], line["subject"]): _spent(line) for line in efforts if line["phase"] in PER_QUESTION}
    return CaseFiles(predictions, items, own, history_of(path))


def _spent(line: Mapping[str, Any]) -> dict[str, Any]:
    names = ("tokens_in", "tokens_out", "sent", "context_tokens", "dropped_items")
    counts = {name: sum(line[name].values()) for name in ("calls", "failures", "parse_failures")}
    seconds = line["own_cpu_seconds"] + line["provider_seconds"]
    return {**counts, **{name: line[name] for name in names}, "seconds": seconds}


def _curve(efforts: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    points: list[list[float]] = []
    tokens = calls = seconds = 0.0
    for line in efforts:
        if line["phase"] in BUILD and line["phase"] != "embed":  # the writes count again what was embedded in advance
            tokens += line["tokens_in"] + line["tokens_out"]
            calls += sum(line["calls"].values())
            seconds += line["own_cpu_seconds"] + line["provider_seconds"]
            if line["phase"] == "write":
                points.append([len(points) + 1, tokens, calls, round(seconds, 4)])
    if points:
        points[-1][1:] = [tokens, calls, round(seconds, 4)]  # with the consolidation after the last unit
        return [*points[: -1 : max(1, -(-len(points) // POINTS))], points[-1]]
    return points
