"""The official rules of LoCoMo, and what the replies of its judges mean.

Source: snap-research/locomo, task_eval/evaluation.py and gpt_utils.py at 3eb6f2c. Rules depend on the category number
(1 multi-hop, 2 temporal, 3 open-domain, 4 single-hop, 5 adversarial), not on its name: published tables disagree.

Deviations. A category 5 question needs no gold answer (the official scorer requires one and fails on 444 of 446). An
empty list of retrieved ids recalls nothing (the scorer fails on it). A judge's reply without a clear label has no verdict
(Mem0's script counts it as wrong). Scores of single questions are not rounded to three decimals.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from data_loaders.schema import Gold, Question
from eval.metrics.labels import stated
from eval.metrics.lexical import locomo_multi_answer_f1, locomo_token_f1, unanswered
from eval.records import Prediction, Score

PRINT_ORDER = (4, 1, 2, 3, 5)
"""The order in which the official scorer prints the categories."""
ABSTENTIONS = ("no information available", "not mentioned")
"""Phrases, one of which the lower-cased reply to a category 5 question must contain."""

_LABELS = ("CORRECT", "WRONG")
_JSON_LABEL = re.compile(r'"label"\s*:\s*"([^"]*)"', re.IGNORECASE)
_BARE_LABEL = re.compile(r"\b(?:CORRECT|WRONG)\b")


@dataclass(frozen=True, slots=True)
class LocomoSummary:
    """Mean score by category number, in the official print order, and over all questions (not over categories)."""

    by_category: Mapping[int, float]
    overall: float


def question_score(prediction: str, answer: object, category_id: int) -> float:
    """The official score of one reply, in [0, 1]; an answer that is a number is compared as its text.

    Category 1: F1 part by part; 2 and 4: F1; 3: F1 with the gold up to its first semicolon; 5: whether it abstains.
    Raises ValueError for any other category.
    """
    match category_id:
        case 1:
            return locomo_multi_answer_f1(prediction, str(answer))
        case 2 | 4:
            return locomo_token_f1(prediction, str(answer))
        case 3:
            return locomo_token_f1(prediction, first_part(str(answer)))
        case 5:
            return float(abstains(prediction))
        case _:
            raise ValueError(f"a LoCoMo category is a number from 1 to 5, found {category_id!r}")


def first_part(answer: str) -> str:
    """The gold answer up to its first semicolon: category 3 golds go on with an explanation."""
    return answer.split(";")[0].strip()


def abstains(prediction: str) -> bool:
    """Whether the reply says that the conversation has no answer (official rule of category 5)."""
    return any(phrase in prediction.lower() for phrase in ABSTENTIONS)


def category_id(gold: Gold) -> int:
    """The category number from `Gold.detail`.

    Raises:
        ValueError: it is missing or not an integer.
    """
    number = gold.detail.get("category_id")
    if not isinstance(number, int):
        raise ValueError(f"expected a LoCoMo gold with an integer detail['category_id'], found {number!r}")
    return number


def locomo_f1(question: Question, gold: Gold, prediction: Prediction) -> Score:
    """The official score of one question, by its category, against the first (the official) gold answer."""
    if (score := unanswered(prediction)) is not None:
        return score
    category = category_id(gold)
    if not gold.answers and category != 5:
        return Score(None, why="the question has no gold answer")
    answer = gold.answers[0] if gold.answers else ""
    return Score(question_score(prediction.answer, answer, category))


def summarise(scored: Sequence[tuple[int, float]]) -> LocomoSummary:
    """Means of (category number, score) pairs as the official script prints them.

    Raises ValueError when there are none, or for a category that is no number from 1 to 5.
    """
    if not scored:
        raise ValueError("expected at least one scored question")
    if unknown := {category for category, _ in scored} - set(PRINT_ORDER):
        raise ValueError(f"a LoCoMo category is a number from 1 to 5, found {sorted(unknown)}")
    groups = {category: [score for of, score in scored if of == category] for category in PRINT_ORDER}
    by_category = {category: sum(scores) / len(scores) for category, scores in groups.items() if scores}
    return LocomoSummary(by_category, sum(score for _, score in scored) / len(scored))


def evidence_recall(retrieved: Sequence[str] | None, evidence: Sequence[str]) -> float:
    """The share of evidence strings found among the retrieved ids, in [0, 1] (official scorer).

    When the first id is a session summary ("S6") only session numbers are compared. A question without evidence, or
    without stored ids (None), counts 1. A malformed evidence string ("D8:6; D9:17") is never found.
    """
    if retrieved is None or not evidence:
        return 1.0
    if retrieved and retrieved[0].startswith("S"):
        sessions = {summary[1:] for summary in retrieved}
        return sum(turn.split(":")[0][1:] in sessions for turn in evidence) / len(evidence)
    return sum(turn in retrieved for turn in evidence) / len(evidence)


def chosen_option(reply: str, options: Mapping[str, str]) -> str:
    """The answer meant by a reply to the two-option prompt of category 5, options keyed "a" and "b" (gpt_utils.py).

    A reply of one or three characters names an option, "b" unless it is "a" or "(a)"; any other is itself the answer,
    in lower case.
    """
    reply = reply.strip().lower()
    if len(reply) == 1:
        return options["a" if reply == "a" else "b"]
    if len(reply) == 3:
        return options["a" if reply == "(a)" else "b"]
    return reply


def judge_gold(gold: Gold) -> str:
    """The gold answer as a graded judge may see it: cut at the semicolon in category 3, never the trap in category 5.

    The rubric that uses it (grades 0 to 3) is ours: SegTreeMem names the scale, its text is not published.
    """
    match category_id(gold):
        case 3:
            return first_part(gold.answers[0])
        case 5:
            return "This is not mentioned in the conversation."
        case _:
            return gold.answers[0]


def graded_correct(grade: int, threshold: int = 2) -> bool:
    """Whether a grade of 0 to 3 counts as right; the published threshold is unknown, 2 is ours.

    Raises ValueError when the grade is outside the scale.
    """
    if grade not in range(4):
        raise ValueError(f"a grade is a whole number from 0 to 3, found {grade!r}")
    return grade >= threshold


def label_verdict(reply: str) -> bool | None:
    """True for CORRECT and False for WRONG in the reply of a Mem0 or MemGPT style judge; None when it is unclear.

    The JSON field `label` decides where there is one, otherwise a phrase that is nothing but the word in capitals
    (`eval.metrics.labels`): "NOT CORRECT" is no verdict in either. A reply with both labels has none.
    """
    if fields := _JSON_LABEL.findall(reply):
        labels = {field.strip().upper() for field in fields}
        label = labels.pop() if len(labels) == 1 else ""
    else:
        both = len(set(_BARE_LABEL.findall(reply))) > 1
        label = "" if both else stated(reply, _LABELS, capitals=True) or ""
    return label == "CORRECT" if label in _LABELS else None
