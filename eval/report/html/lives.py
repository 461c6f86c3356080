"""Lives of probes of the suite `change`: the turns, the change, and the recalls before, after and at the end, line by line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from data_loaders.patterns import holds
from data_loaders.schema import Case, Gold, Question, Turn
from eval.files.records import Prediction, Read
from eval.files.run_folder import read_items, read_predictions
from eval.metrics.change import WRONG, change_answer, change_recall
from eval.report.html.cleaning import clipped
from eval.report.html.sources import RunSet
from memsys.interface import spoken

HOSTS = 2
"""Number of hosts of a set whose probes are shown; each pair of outcomes, at recall and of the answer, once per family and memory."""
LINES, LONGEST = 12, 500
"""Maximum number of lines of one read on a page, and of characters of a line."""
READS: Mapping[str, str] = {
    "before": "right before the change",
    "after": "right after it",
    "end": "at the end",
    "twin": "at the end, about the twin, which never changed",
    "clean": "at the end, in the build without the mail",
    "owner": "at the end, asked by the owner",
    "yes": "at the end, about the right value",
    "yes_twin": "at the end, about the twin, which never changed",
}


@dataclass(frozen=True, slots=True)
class RecalledLines:
    """One read of a life."""

    when: str
    question: str
    lines: tuple[str, ...]
    """Recalled lines that hold one of the probe's values."""
    others: int
    """Number of recalled lines that are not shown: lines without a value, and lines above the limit."""


@dataclass(frozen=True, slots=True)
class Life:
    """The life of one probe in one memory."""

    memory: str
    family: str
    variant: str
    host: str
    recall: str
    answered: str
    """Outcomes at recall and of the answer."""
    values: tuple[str, ...]
    """Values of the probe, such as `old: Brunokel`."""
    said: tuple[str, ...]
    """The turns put into the history about the probe and its twin, in order."""
    reads: tuple[RecalledLines, ...]
    answer: str


def lives(own: RunSet) -> dict[str, dict[str, list[Life]]]:
    """By family and memory, the first probe of each pair of outcomes in two hosts; empty for data of another suite."""
    hosts = list(dict.fromkeys(case.cluster for case in own.cases if case.cluster))[:HOSTS]
    cases = {case.id: case for case in own.cases if case.cluster in hosts}
    scored = [
        (case, question, gold)
        for case in cases.values()
        for question, gold in case.questions
        if gold.category in WRONG and not gold.supports and "reads" in gold.detail
    ]
    found: dict[tuple[str, ...], Life] = {}
    for run in own.runs if scored else ():
        folders = {case_id: run.case_folder(case_id) for case_id in cases}
        files = {case_id: (read_predictions(folder), read_items(folder)) for case_id, folder in folders.items()}
        for case, question, gold in scored:
            if (life := _life(run.title, case, question, gold, cases, files)) is not None:
                found.setdefault((life.family, run.key, life.recall, life.answered), life)
    groups: dict[str, dict[str, list[Life]]] = {family: {} for family in WRONG}
    for life in found.values():
        groups[life.family].setdefault(life.memory, []).append(life)
    return {family: memories for family, memories in groups.items() if memories}


_Files = tuple[Mapping[str, Prediction], Mapping[str, Mapping[str, Any]]]
"""Predictions and recalled items of a case."""


def _life(
    memory: str, case: Case, question: Question, gold: Gold, cases: Mapping[str, Case], files: Mapping[str, _Files]
) -> Life | None:
    """The life of a probe; None where a read failed or is missing."""
    reads: dict[str, Read] = {}
    asked: dict[str, str] = {}
    for name, (case_id, question_id) in gold.detail["reads"].items():
        predictions, items = files.get(case_id, ({}, {}))
        prediction = predictions.get(question_id)
        if prediction is None or prediction.outcome in ("error", "aborted"):
            return None
        reads[name] = Read(prediction, tuple(str(items[key]["text"]) for key in prediction.items))
        asked[name] = next(each.text for each, _ in cases[case_id].questions if each.id == question_id)
    values: Mapping[str, str] = gold.detail["values"]
    return Life(
        memory,
        gold.category,
        gold.detail["variant"],
        case.cluster,
        str(change_recall(question, gold, reads).detail["outcome"]),
        str(change_answer(question, gold, reads).detail["outcome"]),
        tuple(f"{name}: {value}" for name, value in values.items()),
        tuple(clipped(spoken(turn), LONGEST) for turn in _put_in(case, gold)),
        tuple(_recalled(name, asked[name], read, values) for name, read in reads.items()),
        clipped(reads["end"].prediction.answer, LONGEST),
    )


def _put_in(case: Case, gold: Gold) -> Iterator[Turn]:
    """The turns about a probe: those that the key names, and those of the suite that say its subject or one of its values."""
    words = [gold.detail["subject"], *gold.detail["values"].values()]
    return (
        turn
        for turn in case.turns
        if turn.id in gold.detail["edits"] or ("+" in turn.id and any(holds(turn.text, word) for word in words))
    )


def _recalled(name: str, question: str, read: Read, values: Mapping[str, str]) -> RecalledLines:
    lines = [line for text in read.texts for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if any(holds(line, value) for value in values.values())]
    shown = tuple(clipped(line, LONGEST) for line in telling[:LINES])
    return RecalledLines(READS[name], question, shown, len(lines) - len(shown))
