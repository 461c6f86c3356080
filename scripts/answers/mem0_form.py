"""Write a run in the form of Mem0's evaluation (form `mem0` of conf/claims/forms.yaml): an import of the file gives the same scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from eval.files.store import replace_file
from scripts.answers.finished import ExportedAnswer, FinishedRun
from scripts.answers.questions import category_of
from scripts.assembly.scorers import metrics

SCORES = {"f1_score": "mem0_f1", "bleu_score": "bleu1_mem0"}


def write_mem0(run: FinishedRun, to: Path) -> list[str]:
    """Write `<run>.json` into a folder; returns what was written and what was left out, as lines.

    A question without an answer, and an answer that failed, is left out. `llm_score` is the verdict of the run's judge `mem0`, else of its
    only judge; it is left out where there is neither.
    """
    verdicts = _verdicts(run)
    conversations: dict[str, list[dict[str, Any]]] = {}
    left_out = 0
    for line in run.lines:
        if line.prediction is None or line.prediction.outcome == "error":
            left_out += 1
            continue
        name = str(line.position) if run.whole else line.case_id
        conversations.setdefault(name, []).append(_record(line) | verdicts.get((line.case_id, line.question.id), {}))
    file = to / f"{run.folder.name}.json"
    replace_file(file, json.dumps(conversations, indent=1, ensure_ascii=False))
    written = sum(map(len, conversations.values()))
    lines = [f"written: {file} ({written} answers)"]
    return [*lines, f"left out: {left_out} questions without an answer"] if left_out else lines


def _verdicts(run: FinishedRun) -> dict[tuple[str, str], dict[str, float]]:
    """`llm_score` by question."""
    judges = [each for each in run.scores if each.judge]
    chosen = [each for each in judges if each.metric == "judge_mem0"] or judges
    return {key: {"llm_score": value} for key, value in chosen[0].cell.scores.items()} if len(chosen) == 1 else {}


def _record(line: ExportedAnswer) -> dict[str, Any]:
    assert line.prediction is not None
    record: dict[str, Any] = {
        "question": line.question.text,
        "answer": line.gold.answers[0] if line.gold.answers else "",
        "response": line.prediction.answer,
        "category": category_of(line.gold),
    }
    for name, metric in zip(SCORES, metrics(list(SCORES.values())), strict=True):
        if (
            line.gold.answerable
            and (score := metric.score(line.question, line.gold, line.prediction)).value is not None
        ):
            record[name] = score.value
    return record
