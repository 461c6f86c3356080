"""The questions that published answers belong to, from the data sets below the data root."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

from data_loaders import beam, locomo
from data_loaders.raw import get, get_text, read_json
from data_loaders.schema import Case, DataError, Gold
from data_loaders.source import data_root, find, manifest
from scripts.answers.matching import Asked, Questions

LONGMEMEVAL = ("longmemeval/longmemeval_oracle.json", "longmemeval/longmemeval_questions_500.json")
"""Files with all 500 questions: the smallest official one, else the list of the questions alone."""


def of_cases(title: str, cases: Sequence[Case]) -> Questions:
    """The questions of loaded cases, each with the category that `category_of` gives."""
    asked = [
        Asked(
            case.id,
            question.id,
            question.text,
            gold.answers[0] if gold.answers else "",
            category_of(gold),
            gold.answerable,
            gold.answers[1:],
        )
        for case in cases
        for question, gold in case.questions
    ]
    return Questions(title, tuple(asked), tuple(case.id for case in cases))


def category_of(gold: Gold) -> str:
    """The benchmark's number of a category, which published files use; its name if it has no number."""
    return str(gold.detail.get("category_id", gold.category))


def of_locomo(root: Path | None) -> Questions:
    """LoCoMo's 1,986 questions, with their category numbers. Raises DataError where the file is missing or damaged."""
    return of_cases("LoCoMo", locomo.load(find("locomo/locomo10.json", root=root).path))


def of_longmemeval(root: Path | None) -> Questions:
    """LongMemEval's 500 questions; every question is a case of its own. Raises DataError where no file has them."""
    missing = []
    for file in LONGMEMEVAL:
        try:
            records = read_json(find(file, root=root, unpinned=True).path)
        except DataError as error:
            missing.append(str(error))
            continue
        asked = [_longmemeval(record, f"{file}[{number}]") for number, record in enumerate(records)]
        return Questions("LongMemEval", tuple(asked), tuple(each.case_id for each in asked))
    raise DataError(missing[0])


def _longmemeval(record: object, place: str) -> Asked:
    name = get_text(record, "question_id", place)
    gold = str(get(record, "answer", (str, int, float), place))
    return Asked(
        name,
        name,
        get_text(record, "question", place),
        gold,
        get_text(record, "question_type", place),
        not name.endswith("_abs"),
    )


def of_beam(tier: str, root: Path | None) -> Questions | None:
    """The questions of a length tier of BEAM; None if its files of questions are missing.

    An abstention has a reference text and counts in the official mean, so every question counts as answerable.
    Raises DataError if a file is damaged.
    """
    folder = f"beam/chats/{tier}"
    files = [name for name in manifest() if name.startswith(f"{folder}/") and name.endswith("/probing_questions.json")]
    found = [find(name, root=root).path for name in files if (data_root(root) / name).is_file()]
    if len(found) < len(files) or not files:
        return None
    questions = of_cases(f"BEAM {tier}", beam.load(data_root(root) / folder, chats="none"))
    return replace(questions, asked=tuple(replace(each, answerable=True) for each in questions.asked))


TIERS = ("100K", "500K", "1M")
"""Lengths of BEAM whose questions are joined."""
LOADERS: Mapping[str, Callable[[Path | None], Questions | None]] = {
    "LoCoMo": of_locomo,
    "LongMemEval": of_longmemeval,
    **{f"BEAM {tier}": partial(of_beam, tier) for tier in TIERS},
}
"""Data sets whose questions are joined; answers to other data sets are scored with the gold of their own file."""


@lru_cache(maxsize=4)
def questions_of(title: str, root: Path | None) -> Questions | None:
    """The questions of a data set, `BEAM 1M` for a tier; None for a data set that is not joined.

    Raises:
        DataError: its file is missing or damaged.
    """
    loader = LOADERS.get(title)
    return None if loader is None else loader(root)
