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
from eval.report.html.shards import Shards
from eval.report.html.sources import RunSet

BLOCK = 400_000
"""Bytes after which a new block of questions begins."""
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
        self.questions: list[Mapping[str, Any]] = []
        self.texts = TextPool()
        self.size = 0

    def add(self, page: Mapping[str, Any]) -> None:
        self.questions.append(page)
        self.size += len(json.dumps(page))


def write_set(shards: Shards, number: int, runs: RunSet, every: Sequence[Scorer]) -> Written:
    """Write all data files of a set; their names begin with `set<number>`."""
    name = f"set{number}"
    by_scorer = [cells(runs, scorer, runs.asked) for scorer in every]
    for place, found in enumerate(by_scorer):
        shards.write(f"{name}-pairs{place}", list(pairs(found)))
    rows: list[list[Any]] = []
    answers: list[list[tuple[str, str]]] = [[] for _ in runs.runs]
    block = 0
    for question, page, block, index in _write_blocks(shards, name, runs, every):
        rows.append([*_row(question, page), block, index])
        for own, answer in zip(answers, page["runs"], strict=True):
            outcome = "cut" if answer.get("cut") else str(answer["outcome"])
            own.append((answer.get("answer", "")[:SEARCHED], outcome))
    for place in range(len(runs.runs)):
        scored = [found.get(place) for found in by_scorer]
        judges = [cell for cell, scorer in zip(scored, every, strict=True) if cell is not None and scorer.is_judge]
        split = disputed(judges)
        page = {
            "answers": [answer for answer, _ in answers[place]],
            "outcomes": [outcome for _, outcome in answers[place]],
            "scores": [None if cell is None else vector(cell) for cell in scored],
            "split": [int(question.key in split) for question in runs.asked],
        }
        shards.write(f"{name}-run{place}", page)
    places = {question.key: place for place, question in enumerate(runs.asked)}
    sample = [places[key] for key in sample_order(places)]  # ratings in this order are a random sample
    shards.write(name, {"questions": rows, "sample": sample})
    counts = tuple(sum(outcome != "not reached" for _, outcome in own) for own in answers)
    return Written(block + 1 if rows else 0, counts)


def _write_blocks(
    shards: Shards, name: str, runs: RunSet, every: Sequence[Scorer]
) -> Iterator[tuple[Asked, Mapping[str, Any], int, int]]:
    """Write the blocks; yields each question with its page, the number of its block and its index in the block."""
    lines = [verdicts(run, every) for run in runs.runs]
    block, number = _Block(), 0
    by_case: dict[str, list[Asked]] = {}
    for each in runs.asked:
        by_case.setdefault(each.case_id, []).append(each)
    cases = {case.id: case for case in runs.cases}
    for case_id, asked in by_case.items():
        case = cases.get(case_id)  # None if the data could not be read again
        files = [case_files(run, case_id) for run in runs.runs]
        known = {} if case is None else {question.id: (question, gold) for question, gold in case.questions}
        for each in asked:
            question, gold = known.get(each.question_id, (None, None))
            page = _question_page(each, case, question, gold, files, every, lines, block.texts)
            block.add(page)
            yield each, page, number, len(block.questions) - 1
            if block.size + block.texts.size >= BLOCK:
                shards.write(f"{name}-block{number}", {"questions": block.questions, "texts": block.texts.all})
                block, number = _Block(), number + 1
    if block.questions:
        shards.write(f"{name}-block{number}", {"questions": block.questions, "texts": block.texts.all})


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
