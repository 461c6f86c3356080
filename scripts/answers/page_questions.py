"""The questions of a claim for its page: a data file for each claim and for each data set, and the most interesting questions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from memsys.inert import visible
from scripts.answers.graders import Key
from scripts.answers.licences import EXCERPT, Terms
from scripts.answers.matching import Asked
from scripts.answers.reanalysis import judged
from scripts.answers.scoring import ScoredClaim

SHARED = ("LoCoMo", "LongMemEval")
"""Data sets whose claims share one store of questions in the site; the data file of a claim on another holds its own."""
LONGEST = 2_000
"""Maximum number of characters of one text in a data file; the rest is in the owner's file."""
APART = 0.5
"""Smallest listed difference of a verdict and an F1."""


def shown(text: str, longest: int = LONGEST) -> str:
    """A text for a page: control characters and direction marks are escaped, a long text is cut and the cut characters are counted."""
    return visible(text) if len(text) <= longest else f"{visible(text[:longest])} … [{len(text):,} characters]"


def excerpt(text: str) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(visible(text[: 2 * EXCERPT]).split())
    return line if len(line) <= EXCERPT else f"{line[:EXCERPT].rstrip()} …"


class SharedQuestions:
    """The questions that any claim on a data set has answered, numbered in the order in which claims name them."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self._numbers: dict[tuple[str, str], int] = {}
        self.rows: list[list[Any]] = []

    def number(self, asked: Asked) -> int:
        """The number of a question; a new question is added."""
        key = (asked.case_id, asked.question_id)
        if key not in self._numbers:
            self._numbers[key] = len(self.rows)
            self.rows.append(question_row(asked, self.terms))
        return self._numbers[key]


def question_row(asked: Asked, terms: Terms) -> list[Any]:
    """Conversation, id, category, 1 if it can be answered, text and gold; both texts are empty where the terms do not allow them."""
    texts = [shown(asked.text), shown(asked.gold)] if terms.whole else ["", ""]
    return [
        shown(asked.case_id, 200),
        shown(asked.question_id, 200),
        shown(asked.category, 200),
        int(asked.answerable),
        *texts,
    ]


def claim_data(
    scored: ScoredClaim,
    shared: SharedQuestions | None,
    own: Terms,
    answers: Terms,
    judges: Mapping[str, Mapping[Key, float]] | None = None,
) -> dict[str, Any]:
    """The data file of a claim: for each answer its question, text, verdict, F1, length, and whether it says "I do not know".

    Args:
        shared: the questions of the data set; None for a claim with its own questions, under the terms `own`.
        answers: the terms of the claim's repository; without permission no text of an answer is in the file.
        judges: verdicts of further judges by their name, case and question.
    """
    measures = scored.measures
    data: dict[str, Any] = {
        "verdict": [_rounded(value) for value in measures["verdict"]],
        "f1": [_rounded(value) for value in measures["f1"]],
        "words": [int(value) for value in measures["words"]],
        "unknown": [int(value) for value in measures["abstains"]],
        "answers": [shown(text) for text in scored.texts] if answers.whole else None,
    }
    if judges:
        keys = [(each.case_id, each.question_id) for each in scored.asked]
        data["judges"] = [
            [shown(name, 200), [_rounded(values.get(key, np.nan)) for key in keys]] for name, values in judges.items()
        ]
    if shared is None:
        return {"questions": [question_row(asked, own) for asked in scored.asked], **data}
    return {"at": [shared.number(asked) for asked in scored.asked], **data}


def _rounded(value: float) -> float | None:
    return None if np.isnan(value) else round(float(value), 3)


@dataclass(frozen=True, slots=True)
class Apart:
    """An answer whose verdict and F1 differ."""

    case_id: str
    question_id: str
    question: str
    gold: str
    answer: str
    verdict: str
    f1: str


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Answers of one kind: the first of them, their number, and the total."""

    listed: tuple[Apart, ...]
    count: int
    of: int


def disagreements(scored: ScoredClaim, most: int, data: Terms, answers: Terms) -> Mapping[str, Disagreement]:
    """Answers that count as right and share little with the gold, and answers that count as wrong and share much.

    The largest difference comes first; equal differences keep the order of the file. The terms decide whether texts are whole or excerpts.
    """
    verdict, f1, known = scored.measures["verdict"], scored.measures["f1"], judged(scored)
    kinds = {"right": known & (verdict >= 0.5), "wrong": known & (verdict < 0.5)}
    made = {}
    for kind, mask in kinds.items():
        places = np.flatnonzero(mask & (np.abs(verdict - f1) >= APART))
        order = places[np.argsort(-np.abs(verdict - f1)[places], kind="stable")][:most]
        listed = tuple(_apart(scored, int(at), data, answers) for at in order)
        made[kind] = Disagreement(listed, int(places.size), int(mask.sum()))
    return made


def _apart(scored: ScoredClaim, at: int, data: Terms, answers: Terms) -> Apart:
    asked, verdict = scored.asked[at], float(scored.measures["verdict"][at])
    whole = 600
    return Apart(
        excerpt(asked.case_id),
        excerpt(asked.question_id),
        shown(asked.text, whole) if data.whole else excerpt(asked.text),
        shown(asked.gold, whole) if data.whole else excerpt(asked.gold),
        shown(scored.texts[at], whole) if answers.whole else excerpt(scored.texts[at]),
        f"{verdict:g}",
        f"{scored.measures['f1'][at]:.2f}",
    )


def shared_questions(all_scored: Iterable[ScoredClaim], terms: Mapping[str, Terms]) -> dict[str, SharedQuestions]:
    """An empty store of questions for each data set whose claims share them."""
    present = {scored.claim.dataset for scored in all_scored}
    return {name: SharedQuestions(terms[name]) for name in SHARED if name in present}
