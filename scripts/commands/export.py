"""Write a run in another tool's format: `python -m scripts export RUN --format eee|hf|mem0 --to FOLDER [--data ROOT]`.

eee: Every Eval Ever's schema, one file with the scores of the run and one with its answers, below `data/` as in its datastore.
hf: a folder that `datasets.load_dataset` loads, one row per question, with a README.
mem0: the file that Mem0's evaluation writes and its forks read, for users who want to judge the answers themselves.

Question and gold are read from the data set that the run names; the export states its licence. Failed answers are left out of `mem0`,
which has no field for them, and the command prints their number.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.files.imported import described
from eval.files.run_folder import judge_metric
from eval.files.store import replace_file, write_lines
from eval.report.counted import counted
from eval.report.rendering import shown
from scripts.answers.every_eval_ever import write_every_eval_ever
from scripts.answers.finished import ExportedAnswer, FinishedRun, finished_run
from scripts.answers.questions import category_of
from scripts.assembly.scorers import metrics
from scripts.setup.arguments import add_data_folder, verb_parser

GROUP = "publish"

SCORES = {"f1_score": "mem0_f1", "bleu_score": "bleu1_mem0"}


def write_mem0(run: FinishedRun, to: Path) -> list[str]:
    """Write `<run>.json` into a folder; returns lines about the written and the omitted answers.

    The form is `mem0` of conf/claims/forms.yaml: an import of the file gives the same scores. A question without an answer, and an answer
    that failed, is left out. `llm_score` is the verdict of the run's judge `mem0`, else of its only judge; it is left out if there is
    neither.
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
    lines = [f"written: {file} ({counted(written, 'answer')})"]
    return [*lines, f"left out: {counted(left_out, 'question')} without an answer"] if left_out else lines


def _verdicts(run: FinishedRun) -> dict[tuple[str, str], dict[str, float]]:
    """`llm_score` by question."""
    judges = [each for each in run.scores if each.judge]
    chosen = [each for each in judges if each.metric == judge_metric("mem0")] or judges
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


def write_hugging_face(run: FinishedRun, to: Path) -> list[str]:
    """Write `data/test.jsonl` and `README.md` into a folder; returns lines about the written files."""
    values = {score.id: score.cell.scores for score in run.scores}
    rows = [
        _row(line, {name: scores.get((line.case_id, line.question.id)) for name, scores in values.items()})
        for line in run.lines
    ]
    write_lines(to / "data" / "test.jsonl", rows)
    replace_file(to / "README.md", _readme(run))
    return [f"written: {to / 'data' / 'test.jsonl'} ({counted(len(rows), 'question')})", f"written: {to / 'README.md'}"]


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
    filled = run.record.stand_ins
    front = {"configs": [{"config_name": "default", "data_files": [{"split": "test", "path": "data/test.jsonl"}]}]}
    lines = [
        "---",
        json.dumps(front),  # JSON is YAML
        "---",
        f"# {run.title} on {run.dataset_title}",
        "",
        f"- Answers: {made}.",
        *([f"- STAND-IN: {', '.join(filled)} filled by engines without a model."] if filled else []),
        f"- Data: {run.dataset_title}, {run.record.data_status}, under {run.licence or 'no licence that is known'}.",
        f"- Scores by file: {'; '.join(f'`{score.id}` {score.title}: {shown(score.cell)}' for score in run.scores) or 'none'}.",
        "- A score that is null was not given; an answer whose outcome is error failed and was not scored.",
    ]
    return "\n".join(lines) + "\n"


WRITERS: Mapping[str, Callable[[FinishedRun, Path], list[str]]] = {
    "eee": write_every_eval_ever,
    "hf": write_hugging_face,
    "mem0": write_mem0,
}
"""Writers by format; each returns lines about the written and the omitted answers."""


def main(arguments: Sequence[str]) -> int:
    parser = verb_parser("export", __doc__)
    parser.add_argument("run", type=Path, help="a folder below results/runs")
    parser.add_argument("--format", choices=list(WRITERS), required=True)
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER", help="where the files are written")
    add_data_folder(parser)
    args = parser.parse_args(arguments)

    print("\n".join(WRITERS[args.format](finished_run(args.run, args.data), args.to)))
    return 0
