"""Zep's grades (`locomo_eval/data` of getzep/zep-papers).

A JSON object: `locomo_experiment_user_<number>` to a list of records. `answer` is the memory's answer, `golden_answer` the gold one and
`grade` the judge's verdict, true or false.
"""

from __future__ import annotations

import re
from typing import Any

from data_loaders.raw import get_text
from scripts.answers.records import Answer, Format, each_record, grade_of, grouped, plain_text, text_of


def _fits(raw: Any) -> bool:
    return grouped(raw, {"question", "answer", "golden_answer", "grade"})


def _read(raw: Any) -> list[Answer]:
    return each_record(raw, _answer)


def _answer(conversation: str, record: Any, place: str) -> Answer:
    number = re.fullmatch(r"locomo_experiment_user_(\d{1,9})", conversation)
    return Answer(
        place,
        conversation,
        get_text(record, "question", place),
        plain_text(record, "answer", place),
        position=int(number[1]) if number else None,
        category=text_of(record.get("category")),
        gold=plain_text(record, "golden_answer", place),
        grades={"judge": (grade_of(record.get("grade"), f"{place}.grade"),)},
    )


ZEP = Format("zep", "Zep's grades", _fits, _read)
