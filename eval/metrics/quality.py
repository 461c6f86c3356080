"""Accuracy on QuALITY's four-way questions, over all of them and over the hard ones.

Source: the definitions in the README of nyu-mll/quality (v1.0.1); no scorer is published. Labels count from 1.

Deviation: the authors' systems predict a label, ours write text, so `chosen_option` reads the label from the reply. A
reply that names no option or several is wrong, like a missing label.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from data_loaders.schema import Gold, Question
from eval.metrics.lexical import unanswered
from eval.records import Prediction, Score

_LETTERS = "ABCD"
_ONLY_LABEL = re.compile(r"\W*([a-d1-4])\W*", re.IGNORECASE)
_MARKED_LABEL = re.compile(r"\(([A-Da-d1-4])\)|^\s*([A-D1-4])[.):](?!\d)", re.MULTILINE)
# Not "the answer is a dog" or "answer: 3 years": a label is followed by no further word but a reason.
_NAMED_LABEL = re.compile(
    r"\b(?:[Aa]nswer|[Oo]ption|[Cc]hoice)(?:\s+is)?\s*:?\s*([A-D1-4])\b(?!['.]\w|\s+(?!because\b|since\b|as\b)[a-z])"
)


@dataclass(frozen=True, slots=True)
class QualityAccuracy:
    """Shares of questions answered right, in [0, 1], and how many there were."""

    accuracy: float
    hard_accuracy: float | None
    """Over the questions marked difficult; None when there are none."""
    n: int
    n_hard: int


def accuracy(chosen: Sequence[int | None], labels: Sequence[int], difficult: Sequence[bool]) -> QualityAccuracy:
    """Accuracy over all questions and over the difficult ones; no choice (None) is a wrong one.

    The three sequences are parallel, labels count from 1. Raises ValueError when their lengths differ or are 0.
    """
    right = [choice == label for choice, label in zip(chosen, labels, strict=True)]
    if not right:
        raise ValueError("expected at least one question")
    hard = [is_right for is_right, is_hard in zip(right, difficult, strict=True) if is_hard]
    return QualityAccuracy(sum(right) / len(right), sum(hard) / len(hard) if hard else None, len(right), len(hard))


def is_difficult(speed_answers: Sequence[int], label: int) -> bool:
    """Whether a question belongs to the hard subset: fewer than half of the annotators under time pressure got it."""
    return 2 * sum(answer == label for answer in speed_answers) < len(speed_answers)


def chosen_option(reply: str, options: Sequence[str]) -> int | None:
    """The number (from 1) of the option a reply chooses; None when it names none, or more than one.

    In this order: the reply is an option's text; it is a lone label; it has labels in brackets or at the start of a
    line; it says "answer", "option" or "choice" before a label; it contains the text of one option. Labels are A to D
    or 1 to 4.
    """
    said, texts = _folded(reply), [_folded(option) for option in options]
    if said in texts:
        return texts.index(said) + 1
    if lone := _ONLY_LABEL.fullmatch(reply):
        return _number(lone[1], len(options))
    for pattern in (_MARKED_LABEL, _NAMED_LABEL):
        numbers = {_number("".join(found), len(options)) for found in pattern.findall(reply)}
        if numbers:
            return numbers.pop() if len(numbers) == 1 else None
    contained = [number for number, text in enumerate(texts, start=1) if text and text in said]
    return contained[0] if len(contained) == 1 else None


def _number(label: str, options: int) -> int | None:
    number = int(label) if label.isdigit() else _LETTERS.index(label.upper()) + 1
    return number if number <= options else None


def _folded(text: str) -> str:
    return " ".join(text.lower().split()).rstrip(".")


def quality_accuracy(question: Question, gold: Gold, prediction: Prediction) -> Score:
    """1 when the reply chooses the gold option, else 0; `detail` holds the chosen option and whether the question is hard.

    Not scored: a question whose call failed, and a question without options (it needs a judge).
    """
    if (score := unanswered(prediction)) is not None:
        return score
    if not question.options:
        return Score(None, why="the question was put without options")
    choice = chosen_option(prediction.answer, question.options)
    detail = {"chosen": choice, "difficult": bool(gold.detail["difficult"])}
    return Score(float(choice == gold.detail["gold_label"]), why="" if choice else "no option chosen", detail=detail)
