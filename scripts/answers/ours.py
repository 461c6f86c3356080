"""Our own predictions: the lines of `predictions.jsonl`, of one case or of several, or of a whole run folder.

A line needs `case_id`, `question_id` and `answer`; outcome, error and cut count where they stand. Recalled items stay in the run that
recalled them.
"""

from __future__ import annotations

from typing import Any

from data_loaders.raw import get, get_text
from data_loaders.schema import DataError
from eval.fields import outcome
from scripts.answers.records import Answer, Format


def _fits(raw: Any) -> bool:
    first = raw[0] if isinstance(raw, list) and raw else None
    return isinstance(first, dict) and {"case_id", "question_id", "answer"} <= first.keys()


def _read(raw: Any) -> list[Answer]:
    return [_answer(record, f"line {number}") for number, record in enumerate(raw, 1)]


def _answer(record: Any, place: str) -> Answer:
    case_id, ended = get_text(record, "case_id", place), record.get("outcome", "answered")
    if not outcome(ended):
        raise DataError(f"{place}.outcome: expected answered, error or aborted, found {ended!r}")
    return Answer(
        place,
        case_id,
        "",
        get_text(record, "answer", place),
        question_id=get_text(record, "question_id", place),
        outcome=ended,
        error=get_text(record, "error", place) if "error" in record else "",
        cut=get(record, "cut", bool, place) if "cut" in record else False,
    )


OURS = Format("ours", "predictions.jsonl, or a run folder", _fits, _read)
