"""Write a run in another tool's format: `python -m scripts export RUN --format eee|hf|mem0 --to FOLDER [--data ROOT]`.

eee: Every Eval Ever's schema, one file with the scores of the run and one with its answers, below `data/` as in its datastore.
hf: a folder that `datasets.load_dataset` loads, one row per question, with a README.
mem0: the file that Mem0's evaluation writes and its forks read, for users who want to judge the answers themselves.

Question and gold are read from the data set that the run names; the export states its licence. Failed answers are left out of `mem0`,
which has no field for them, and the command prints their number.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from uuid import UUID

from eval.files.imported import described
from eval.files.run_folder import RunFolder, judge_metric
from eval.files.store import RunError, replace_file, write_lines
from eval.files.store import line as json_line
from eval.report.counted import counted
from eval.report.rendering import shown
from scripts.answers.finished import ExportedAnswer, FinishedRun, ScoreFile, finished_run
from scripts.answers.matching import category_of
from scripts.assembly.steps import metrics
from scripts.setup.arguments import add_data_folder, verb_parser

GROUP = "publish"

SCHEMA = "0.3.0"
OURS = "memsys-bench"
CORRECT = 0.5
NEWLINE = b"\n"
LOWER_IS_BETTER = ("judge_halumem_hallucination", "judge_halumem_omission", "gatemem_over_refusal", "gatemem_exposure")
"""Scores that count faults. Those of GateMem that count right answers to some questions and leaks in others say so in their title."""


def write_every_eval_ever(run: FinishedRun, to: Path) -> list[str]:
    """Write a run in the schema of Every Eval Ever into a folder; returns lines about the written files.

    Version 0.3.0; the package `every-eval-ever`, which needs Python 3.12, validates it.
    `data/<data set>/<developer>/<name>/<uuid>.json` holds the scores, `<uuid>_samples.jsonl` one line for each answer and score. The
    "model" of the schema is here the memory with all its models; its roles are in `additional_details`. The uuid is computed from the
    run's identity, so the same run gives the same files. An answer without a score has no line, because a line needs a number; the counts
    are in `score_details`. `is_correct`, which the schema requires for every score, is a score of at least 0.5.

    Raises:
        RunError: the run is not scored.
    """
    if not any(score.cell.estimate() for score in run.scores):
        raise RunError(f"{run.folder} has no scores; score it first")
    digest = bytearray(hashlib.sha256(run.folder.name.encode()).digest()[:16])
    name = str(UUID(bytes=bytes(digest), version=4))
    developer, model = _plain(run.record.imported.get("by") or OURS), _plain(run.record.name)
    place = Path("data", _plain(run.record.dataset["name"]), developer, model)
    stamp = str(int(RunFolder(run.folder).file.stat().st_mtime))
    model_id = f"{developer}/{model}"
    shared = {"schema_version": SCHEMA, "evaluation_id": f"{place.parts[1]}/{model_id}/{stamp}"}
    samples = b"".join(json_line({**shared, "model_id": model_id, **sample}) for sample in _samples(run))
    aggregate = {
        **shared,
        "retrieved_timestamp": stamp,
        "source_metadata": {
            "source_name": run.title,
            "source_type": "evaluation_run",
            "source_organization_name": OURS,
            "evaluator_relationship": "third_party",
        },
        "eval_library": {"name": OURS, "version": _version(), "additional_details": _strings(run.record.made_with)},
        "model_info": {"name": run.title, "id": model_id, "developer": developer, "additional_details": _model(run)},
        "evaluation_results": [_result(run, score) for score in run.scores if score.cell.estimate() is not None],
        "detailed_evaluation_results": {
            "format": "jsonl",
            "file_path": (place / f"{name}_samples.jsonl").as_posix(),
            "hash_algorithm": "sha256",
            "checksum": hashlib.sha256(samples).hexdigest(),
            "total_rows": samples.count(NEWLINE),
        },
    }
    replace_file(to / place / f"{name}.json", json.dumps(aggregate, indent=1, ensure_ascii=False))
    replace_file(to / place / f"{name}_samples.jsonl", samples)
    return [
        f"written: {to / place / name}.json",
        f"written: {to / place / name}_samples.jsonl ({counted(samples.count(NEWLINE), 'line')})",
    ]


def _result(run: FinishedRun, score: ScoreFile) -> dict[str, Any]:
    ours, counts = score.cell.estimate(), score.cell.counts()
    assert ours is not None
    uncertainty: dict[str, Any] = {"num_samples": ours.n}
    if ours.by_question is not None:
        interval = {"lower": ours.by_question.low, "upper": ours.by_question.high, "confidence_level": 0.95}
        uncertainty["confidence_interval"] = {**interval, "method": "by question"}
    outcome: dict[str, Any] = {
        name: getattr(counts, name)
        for name in ("questions", "scored", "unscored", "errored", "not_reached", "cut", "empty")
    }
    if draws := score.cell.unscored_draws():
        outcome["missing"] = draws
    by_case = {} if ours.by_case is None else {"by_case_low": ours.by_case.low, "by_case_high": ours.by_case.high}
    return {
        "evaluation_result_id": score.id,
        "evaluation_name": f"{run.dataset_title}: {score.title}",
        "source_data": _source(run),
        "metric_config": {
            "metric_id": score.metric,
            "metric_name": score.title,
            "lower_is_better": score.metric in LOWER_IS_BETTER,
            "score_type": "continuous",
            "min_score": 0.0,
            "max_score": 1.0,
            **({"llm_scoring": _judge(score)} if score.judge else {}),
            "additional_details": _strings(score.settings),
        },
        "score_details": {"score": ours.mean, "details": _strings({**outcome, **by_case}), "uncertainty": uncertainty},
    }


def _source(run: FinishedRun) -> dict[str, Any]:
    known = run.record.dataset
    facts = {"status": run.record.data_status, "licence": run.licence or "not known", **known}
    named = {"dataset_name": run.dataset_title, "additional_details": _strings(facts)}
    return {**named, "source_type": "url", "url": [run.url]} if run.url else {**named, "source_type": "other"}


def _judge(score: ScoreFile) -> dict[str, Any]:
    name = str(score.settings.get("model_name") or score.settings.get("model", "not recorded"))
    unknown = {"deployment_type": "unknown", "model_availability": "unknown"}
    prompts = score.settings.get("prompts") or "not recorded"
    judge = {"model_info": {"name": name, "id": name, "additional_details": unknown}}
    return {"judges": [judge], "input_prompt": json.dumps(prompts, sort_keys=True)}


def _model(run: FinishedRun) -> dict[str, str]:
    facts: dict[str, Any] = {"deployment_type": "unknown", "model_availability": "unknown", "run": run.folder.name}
    facts |= {f"model_{role}": model for role, model in run.record.models.items()}
    facts |= {"memory": run.record.memory, "stand_in": ", ".join(run.record.stand_ins) or "none"}
    if run.record.imported:
        facts["imported"] = described(run.record.imported)
    return _strings(facts)


def _samples(run: FinishedRun) -> Iterator[dict[str, Any]]:
    for score in run.scores:
        values = score.cell.scores
        for own in run.lines:
            if (value := values.get((own.case_id, own.question.id))) is not None:
                if own.prediction is None:
                    raise RunError(
                        f"{run.folder} is damaged: {own.question.id} of {own.case_id} has a score and no answer"
                    )
                yield _sample(run, score, own, value)


def _sample(run: FinishedRun, score: ScoreFile, own: ExportedAnswer, value: float) -> dict[str, Any]:
    assert own.prediction is not None
    answer, gold = own.prediction.answer, list(own.gold.answers)
    return {
        "evaluation_name": f"{run.dataset_title}: {score.title}",
        "evaluation_result_id": score.id,
        "sample_id": f"{own.case_id}/{own.question.id}",
        "sample_hash": hashlib.sha256((own.question.text + "".join(gold)).encode()).hexdigest(),
        "interaction_type": "single_turn",
        "input": {"raw": own.question.text, "reference": gold, "choices": list(own.question.options) or None},
        "output": {"raw": [answer]},
        "answer_attribution": [
            {
                "turn_idx": 0,
                "source": "output.raw",
                "extracted_value": answer,
                "extraction_method": "llm_judge" if score.judge else score.metric,
                "is_terminal": True,
            }
        ],
        "evaluation": {"score": value, "is_correct": value >= CORRECT},
        "metadata": {
            "category": own.gold.category,
            "outcome": own.prediction.outcome,
            "cut": str(own.prediction.cut).lower(),
        },
    }


def _plain(text: str) -> str:
    """A portable name of a folder."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-") or "unknown"


def _strings(values: Mapping[str, Any]) -> dict[str, str]:
    """Values as text, because the schema requires text in details."""
    return {
        name: value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
        for name, value in values.items()
    }


def _version() -> str:
    try:
        return version(OURS)
    except PackageNotFoundError:
        return "unknown"


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
            and (score := metric.scored(line.question, line.gold, line.prediction)).value is not None
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
