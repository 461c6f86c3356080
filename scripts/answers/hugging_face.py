"""Write a run as a Hugging Face dataset folder: `datasets.load_dataset(FOLDER)` gives one row a question."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from eval.files.imported import described
from eval.files.store import replace_file, write_lines
from eval.report.rendering import shown
from scripts.answers.finished import ExportedAnswer, FinishedRun


def write_hugging_face(run: FinishedRun, to: Path) -> list[str]:
    """Write `data/test.jsonl` and `README.md` into a folder; returns what was written, as lines."""
    values = {score.id: score.cell.scores for score in run.scores}
    rows = [
        _row(line, {name: scores.get((line.case_id, line.question.id)) for name, scores in values.items()})
        for line in run.lines
    ]
    write_lines(to / "data" / "test.jsonl", rows)
    replace_file(to / "README.md", _readme(run))
    return [f"written: {to / 'data' / 'test.jsonl'} ({len(rows)} questions)", f"written: {to / 'README.md'}"]


def _row(line: ExportedAnswer, scores: dict[str, float | None]) -> dict[str, Any]:
    answer = line.prediction
    return {
        "case_id": line.case_id,
        "question_id": line.question.id,
        "question": line.question.text,
        "gold": list(line.gold.answers),
        "category": line.gold.category,
        "answerable": line.gold.answerable,
        "evidence": list(line.gold.evidence),
        "answer": None if answer is None else answer.answer,
        "outcome": "not reached" if answer is None else answer.outcome,
        "error": None if answer is None else answer.error,
        "cut": None if answer is None else answer.cut,
        "scores": scores,
    }


def _readme(run: FinishedRun) -> str:
    made = described(run.record.imported) if run.record.imported else f"memory {run.record.name}"
    front = {"configs": [{"config_name": "default", "data_files": [{"split": "test", "path": "data/test.jsonl"}]}]}
    lines = [
        "---",
        json.dumps(front),  # JSON is YAML
        "---",
        f"# {run.title} on {run.dataset_title}",
        "",
        f"- Answers: {made}.",
        *([f"- STAND-IN: {', '.join(run.stand_ins)} filled by engines without a model."] if run.stand_ins else []),
        f"- Data: {run.dataset_title}, {run.record.data_status}, under {run.licence or 'no licence that is known'}.",
        f"- Scores by file: {'; '.join(f'`{score.id}` {score.title}: {shown(score.cell)}' for score in run.scores) or 'none'}.",
        "- A score that is null was not given; an answer whose outcome is error failed and was not scored.",
    ]
    return "\n".join(lines) + "\n"
