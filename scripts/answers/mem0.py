"""Mem0's evaluation format (the folder `evaluation` of mem0ai/mem0) and that of its forks, Memobase among them.

A JSON object: conversation number, as text, to a list of records. `answer` is the gold answer, `response` the memory's. Files before
grading have search times in seconds and no scores; graded files have `bleu_score`, `f1_score` and `llm_score`, and no times.
"""

from __future__ import annotations

from typing import Any

from data_loaders.raw import get_text
from scripts.answers.records import (
    Answer,
    Format,
    amount_of,
    each_record,
    grade_of,
    grouped,
    plain_text,
    position_of,
    text_of,
)

GRADES = {"llm_score": "judge", "f1_score": "f1", "bleu_score": "bleu1"}
TIMES = ("speaker_1_memory_time", "speaker_2_memory_time")
"""The two searches follow each other."""


def _fits(raw: Any) -> bool:
    return grouped(raw, {"question", "answer", "response"})


def _read(raw: Any) -> list[Answer]:
    return each_record(raw, _answer)


def _answer(conversation: str, record: Any, place: str) -> Answer:
    times = [amount_of(record[name]) for name in TIMES if name in record] if isinstance(record, dict) else []
    known = [time for time in times if time is not None]
    return Answer(
        place,
        conversation,
        get_text(record, "question", place),
        plain_text(record, "response", place),
        position=position_of(conversation),
        category=text_of(record.get("category")),
        gold=plain_text(record, "answer", place),
        grades={
            metric: (grade_of(record[name], f"{place}.{name}"),) for name, metric in GRADES.items() if name in record
        },
        recall_seconds=sum(known) if known and len(known) == len(times) else None,
    )


MEM0 = Format("mem0", "Mem0's evaluation and its forks (Memobase)", _fits, _read)
