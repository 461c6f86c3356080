"""OmniMemEval's LoCoMo results (MemTensor/OmniMemEval, `<lib>_locomo_responses.json` and `<lib>_locomo_judged.json`).

A JSON object: `locomo_exp_user_<number>` to a list of records. `answer` is the memory's answer. Judged files have `llm_judgments`
(`judgment_1` …, true or false) and `nlp_metrics` (`context_tokens`, and `lexical` with f1, bleu1 … and rougeL_f); both kinds have
`search_duration_ms`. A record whose `status` is not success is an error: it was not answered, or not graded. The other benchmarks of
OmniMemEval have files of other forms, which are not read.

`context_tokens` counts the recalled text with OpenAI's cl100k_base, not with our tokenizer. It is 0 where the search results were not
at hand when the file was judged; 0 therefore counts as not recorded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from data_loaders.raw import get_text
from scripts.answers.records import (
    Answer,
    Format,
    Grades,
    amount_of,
    each_record,
    grade_of,
    grouped,
    plain_text,
    text_of,
)

LEXICAL = {"f1": "f1", "bleu1": "bleu1", "rougeL_f": "rouge_l_f"}
ANSWERED = ("success", "success_empty")


def _fits(raw: Any) -> bool:
    return grouped(raw, {"question", "answer", "golden_answer", "search_duration_ms"})


def _read(raw: Any) -> list[Answer]:
    return each_record(raw, _answer)


def _answer(conversation: str, record: Any, place: str) -> Answer:
    question = get_text(record, "question", place)
    number = re.fullmatch(r"locomo_exp_user_(\d{1,9})", conversation)
    status = text_of(record.get("status") or "success")
    failed = status not in ANSWERED and not text_of(record.get("answer"))
    measured = _mapping(record.get("nlp_metrics"))
    milliseconds, tokens = amount_of(record.get("search_duration_ms")), amount_of(measured.get("context_tokens"))
    return Answer(
        place,
        conversation,
        question,
        "" if failed else plain_text(record, "answer", place),
        position=int(number[1]) if number else None,
        category=text_of(record.get("category")),
        gold=text_of(record.get("golden_answer")),
        grades=_grades(record, measured, place),
        outcome="error" if failed else "answered",
        error=f"{status}: {text_of(record.get('skip_reason')) or 'no reason given'}" if failed else "",
        recalled_tokens=int(tokens) if tokens else None,
        recall_seconds=None if milliseconds is None or failed else milliseconds / 1000,
    )


def _grades(record: Mapping[str, Any], measured: Mapping[str, Any], place: str) -> Grades:
    judged, lexical = _mapping(record.get("llm_judgments")), _mapping(measured.get("lexical"))
    order = sorted(judged, key=lambda name: (len(name), name))  # judgment_2 before judgment_10
    grades = {"judge": tuple(grade_of(judged[name], f"{place}.{name}") for name in order)} if judged else {}
    return grades | {
        metric: (grade_of(lexical[name], f"{place}.{name}"),) for name, metric in LEXICAL.items() if name in lexical
    }


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


OMNIMEMEVAL = Format("omnimemeval", "OmniMemEval's LoCoMo responses and judgements", _fits, _read)
