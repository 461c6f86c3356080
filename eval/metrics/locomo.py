"""The official scoring rules of LoCoMo, and parsing of its judges' replies.

Source: snap-research/locomo, task_eval/evaluation.py at 3eb6f2c. Rules depend on the category number
(1 multi-hop, 2 temporal, 3 open-domain, 4 single-hop, 5 adversarial), not on its name: published tables disagree.

Deviations. A category 5 question needs no gold answer (the official scorer requires one and fails on 444 of 446). A
judge's reply without a clear label has no verdict (Mem0's script counts it as wrong). Scores of single questions are not rounded to
three decimals. The official retrieval recall and the choice between two options in category 5 are not implemented: no published table
that we reproduce uses them.
"""

from __future__ import annotations

from data_loaders.schema import Gold, Question
from eval.files.records import Prediction, Score
from eval.metrics.labels import label_of
from eval.metrics.lexical import locomo_multi_answer_f1, locomo_token_f1, unanswered

ABSTENTIONS = ("no information available", "not mentioned")
"""The lower-cased reply to a category 5 question must contain one of these phrases."""


def question_score(prediction: str, answer: object, category_id: int) -> float:
    """The official score of one reply, in [0, 1]; an answer that is a number is compared as its text.

    Category 1: F1 part by part; 2 and 4: F1; 3: F1 against the gold up to its first semicolon; 5: 1 for an abstention, else 0.

    Raises:
        ValueError: an unknown category.
    """
    match category_id:
        case 1:
            return locomo_multi_answer_f1(prediction, str(answer))
        case 2 | 4:
            return locomo_token_f1(prediction, str(answer))
        case 3:
            return locomo_token_f1(prediction, str(answer).split(";")[0].strip())
        case 5:
            return float(abstains(prediction))
        case _:
            raise ValueError(f"a LoCoMo category is a number from 1 to 5, found {category_id!r}")


def abstains(prediction: str) -> bool:
    """Whether the reply contains one of `ABSTENTIONS` (official rule of category 5)."""
    return any(phrase in prediction.lower() for phrase in ABSTENTIONS)


def category_id(gold: Gold) -> int:
    """The category number from `Gold.detail`. Raises ValueError where it is missing or not an integer."""
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


def judge_gold(gold: Gold) -> str:
    """The gold answer for a judge that grades from 0 to 3: cut at the semicolon in category 3, never the trap in category 5.

    The rubric is ours: of SegTreeMem's own rubric (appendix G.2), only the scale and the inputs are known to us.
    """
    match category_id(gold):
        case 3:
            return gold.answers[0].split(";")[0].strip()  # an explanation follows
        case 5:
            return "This is not mentioned in the conversation."
        case _:
            return gold.answers[0]


def label_verdict(reply: str) -> bool | None:
    """True for CORRECT and False for WRONG in the reply of a Mem0 or MemGPT style judge; None when it is unclear.

    The JSON field `label` decides if there is one; otherwise a phrase that consists of the label in capitals (`eval.metrics.labels`).
    "NOT CORRECT" is not a verdict in either place, nor is a reply with both labels.
    """
    label = label_of(reply, ("CORRECT", "WRONG"))
    return label == "CORRECT" if label else None
