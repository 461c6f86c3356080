"""Files of a run whose values have another type than they should: said in one line, before anything is computed."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from eval.analysis.costs import phases
from eval.files.fields import FIELDS, wrong_field
from eval.files.records import Effort, Prediction
from eval.files.run_folder import read_predictions
from eval.files.store import RunError, read_lines
from eval.report.rendering import evidence_means

PREDICTION: dict[str, Any] = {
    "case_id": "c",
    "question_id": "q",
    "answer": "a cat",
    "items": ["k"],
    "scores": [0.5],
    "outcome": "answered",
    "error": "",
    "cut": False,
}


def written(path: Path, *records: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("answer", None),
        ("answer", ["a", "cat"]),
        ("question_id", {"id": "q"}),
        ("items", "k"),
        ("items", [None]),
        ("scores", [None]),
        ("scores", [True]),
        ("scores", [0.5, 0.4]),
        ("outcome", "perhaps"),
        ("cut", "no"),
    ],
)
def test_a_prediction_with_a_value_of_another_type_is_refused_with_its_file(
    name: str, value: Any, tmp_path: Path
) -> None:
    path = written(tmp_path / "predictions.jsonl", {**PREDICTION, name: value})
    with pytest.raises(RunError, match=r"predictions\.jsonl: .*; delete the file"):
        read_predictions(tmp_path)
    written(path, PREDICTION)
    assert read_predictions(tmp_path)["q"].answer == "a cat"


@pytest.mark.parametrize(
    ("name", "value"),
    [("value", "0.5"), ("value", [1]), ("value", True), ("detail", None), ("repeat", 0.5), ("calls", {"a": None})],
)
def test_a_number_that_is_none_never_reaches_a_sum(name: str, value: Any, tmp_path: Path) -> None:
    path = written(tmp_path / "lines.jsonl", {"case_id": "c"}, {name: value})
    with pytest.raises(RunError, match=rf"line 2 holds no {name}"):
        read_lines(path)


def test_a_judges_costs_without_a_model_or_a_count_are_refused(tmp_path: Path) -> None:
    effort = {"case_id": "c", "phase": "judge", "subject": "q"}
    written(tmp_path / "scores" / "judge_mem0-1.effort.jsonl", effort)
    written(tmp_path / "scores" / "judge_mem0-1.json", {"model": ["m"]})
    with pytest.raises(RunError, match="names no model"):
        phases(tmp_path)
    written(tmp_path / "scores" / "judge_mem0-1.json", {"model": "m"})
    with pytest.raises(RunError, match=r"judge_mem0-1\.effort\.jsonl: line 1 has no"):
        phases(tmp_path)


@pytest.mark.parametrize(
    "broken", [None, {}, "verbatim", "ndcg", "sources_per_item", {"ndcg": None}, {"verbatim": "1"}]
)
def test_an_evidence_score_without_its_detail_is_refused_with_its_file(broken: Any, tmp_path: Path) -> None:
    detail: dict[str, Any] = {"verbatim": 1.0, "ndcg": 0.5, "sources_per_item": None}
    scored = {"case_id": "c", "question_id": "q", "repeat": 0, "value": 1.0, "detail": detail}
    unscored = {"case_id": "c", "question_id": "p", "repeat": 0, "value": None, "detail": {}}
    path = written(tmp_path / "evidence@3-1.jsonl", scored, unscored)
    assert evidence_means(path)[1:] == ["1.000", "0.500", "–", "1"]
    if broken is None:
        del scored["detail"]
    elif isinstance(broken, str):
        del detail[broken]
    else:
        scored["detail"] = {**detail, **broken} if broken else {}
    written(path, scored, unscored)
    with pytest.raises(RunError, match=r"evidence@3-1\.jsonl: the line of c/q holds no \w+, but .*; delete the file"):
        evidence_means(path)


def test_lines_nested_beyond_any_stack_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    path.write_bytes(b'{"key": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n")
    with pytest.raises(RunError, match="line 1 is not JSON"):
        read_lines(path)


def test_every_field_of_what_a_run_writes_down_is_known() -> None:
    assert {field.name for record in (Prediction, Effort) for field in fields(record)} <= FIELDS.keys()
    assert wrong_field(PREDICTION) is None
