"""The data files of a set of runs: its questions, each run's scores and answers, all pairs, and blocks with the details of questions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from data_loaders.schema import Case, Gold, Question
from eval.judging.prediction_powered import sample_order
from eval.report.cell import Asked
from eval.report.html.cleaning import clipped
from eval.report.html.questions import (
    CaseFiles,
    TextPool,
    Verdicts,
    answer_page,
    case_files,
    gold_page,
    judged_pages,
    verdict_lines,
    verdicts,
)
from eval.report.html.scoring import Scorer, cells, disputed, pairs, vector
from eval.report.html.shards import BLOCK, Shards
from eval.report.html.sources import RunSet

SEARCHED = 1_000
"""Number of characters of a question, a gold answer or an answer that can be searched."""


@dataclass(frozen=True, slots=True)
class Written:
    """The index's entry for a set."""

    blocks: int
    answered: tuple[int, ...]
    """Number of questions with a line, by run."""


class _Block:
    """The questions of one data file, with the texts that they share."""

    def __init__(self) -> None:
        self.questions: list[dict[str, Any]] = []
        self.texts = TextPool()
        self.size = 0

    def add(self, page: dict[str, Any]) -> None:
        self.questions.append(page)
        self.size = len(json.dumps(self.questions[-1])) + self.size


def write_set(shards: Shards, number: int, runs: RunSet, every: Sequence[Scorer]) -> Written:
    """Write all data files of a set; their names begin with `set<number>`."""
    name = f"set{number}"
    by_scorer = [cells(runs, scorer, runs.asked) for scorer in every]
    for place, found in enumerate(by_scorer):
        shards.write(f"{name}-pairs{place}", list(pairs(found)))
    rows: list[list[Any]] = []
    answers: list[list[Any]] = [[] for _ in runs.runs]
    where = list(_write_blocks(shards, name, runs, every, rows, answers))
    for place in range(len(runs.runs)):
        own = [found.get(place) for found in by_scorer]
        judges = [cell for cell, scorer in zip(own, every, strict=True) if cell is not None and scorer.is_judge]
        split = disputed(judges)
        page = {
            "answers": [answer for answer, _ in answers[place]],
            "outcomes": [outcome for _, outcome in answers[place]],
            "scores": [None if cell is None else vector(cell) for cell in own],
            "split": [int(question.key in split) for question in runs.asked],
        }
        shards.write(f"{name}-run{place}", page)
    places = {question.key: place for place, question in enumerate(runs.asked)}
    sample = [places[key] for key in sample_order(places)]  # ratings in this order are a random sample
    shards.write(
        name, {"questions": [[*row, *place] for row, place in zip(rows, where, strict=True)], "sample": sample}
    )
    counts = tuple(sum(outcome != "not reached" for _, outcome in own) for own in answers)
    return Written(where[-1][0] + 1 if where else 0, counts)


def _write_blocks(
    shards: Shards,
    name: str,
    runs: RunSet,
    every: Sequence[Scorer],
    rows: list[list[Any]],
    answers: Sequence[list[Any]],
) -> Iterator[tuple[int, int]]:
    """Write the blocks; yields each question's block and index in it. `rows` and `answers` are filled meanwhile."""
    lines = [verdicts(run, every) for run in runs.runs]
    block, number = _Block(), 0
    for case_id, asked, case in _by_case(runs):
        files = [case_files(run, case_id) for run in runs.runs]
        known = {} if case is None else {question.id: (question, gold) for question, gold in case.questions}
        for each in asked:
            question, gold = known.get(each.question_id, (None, None))
            page = _question_page(each, case, question, gold, files, every, lines, block.texts)
            rows.append(_row(each, page))
            for place, answer in enumerate(page["runs"]):
                outcome = "cut" if answer.get("cut") else str(answer["outcome"])
                answers[place].append((answer.get("answer", "")[:SEARCHED], outcome))
            block.add(page)
            yield number, len(block.questions) - 1
            if block.size + block.texts.size >= BLOCK:
                shards.write(f"{name}-block{number}", {"questions": block.questions, "texts": block.texts.all})
                block, number = _Block(), number + 1
    if block.questions:
        shards.write(f"{name}-block{number}", {"questions": block.questions, "texts": block.texts.all})


def _by_case(runs: RunSet) -> Iterator[tuple[str, list[Asked], Case | None]]:
    """Case id, its questions in order, and the case itself if the data could be read again."""
    by_case: dict[str, list[Asked]] = {}
    for question in runs.asked:
        by_case.setdefault(question.case_id, []).append(question)
    if not runs.cases:
        yield from ((case_id, asked, None) for case_id, asked in by_case.items())
        return
    for case in runs.cases:
        if case.id in by_case:
            yield case.id, by_case[case.id], case


def _question_page(
    each: Asked,
    case: Case | None,
    question: Question | None,
    gold: Gold | None,
    files: Sequence[CaseFiles],
    every: Sequence[Scorer],
    lines: Sequence[Verdicts],
    texts: TextPool,
) -> dict[str, Any]:
    pages = [answer_page(own, place, each.question_id, question, gold, texts) for place, own in enumerate(files)]
    for page, read, own in zip(pages, files, lines, strict=True):
        given = own.get(each.key, ())
        page["verdicts"] = verdict_lines(given)
        if question is not None and gold is not None and each.question_id in read.predictions:
            page["judged"] = judged_pages(read, every, given, question, gold, texts)
    start = {"case": each.case_id, "id": each.question_id, "category": each.category}
    return {**start, **gold_page(case, question, gold), "runs": pages}


def _row(each: Asked, page: Mapping[str, Any]) -> list[Any]:
    gold = " | ".join(page["gold"])
    groups = [group for group in (each.category, *each.groups) if group]
    text = clipped(page["text"] or "", SEARCHED)
    return [each.case_id, each.question_id, text, gold[:SEARCHED], groups, int(each.answerable)]
