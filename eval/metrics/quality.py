"""Accuracy on QuALITY's questions with four options.

Source: the definitions in the README of nyu-mll/quality (v1.0.1); no scorer is published. Labels count from 1.

Deviations. The authors' systems predict a label, ours write text, so `chosen_option` reads the label from the reply. A reply that names
no option or several options is wrong, like a missing label. Accuracy over hard questions is not computed: no table that we reproduce
prints it. A score's `detail` holds the data set's mark of a hard question.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from data_loaders.schema import Gold, Question
from eval.files.records import Prediction, Score
from eval.metrics.lexical import unanswered

_LETTERS = "ABCD"
_ONLY_LABEL = re.compile(r"\W*([a-d1-4])\W*", re.IGNORECASE)
_MARKED_LABEL = re.compile(
    r"\(([A-Da-d1-4])\)|^[^\S\n]*([A-D1-4])(?:[.):](?!\d)|,?\s+(?:because|since)\b|[ \t]*$)", re.MULTILINE
)
_BRACKETED = r"\(([A-Da-d1-4])\)"
# Rejects "the answer is a dog" and "answer: 3 years": after a label only a reason may follow.
_LABEL = r"([A-D1-4])\b(?!['.]\w|\s+(?!because\b|since\b|as\b)[a-z])"
_STATED_LABEL = re.compile(
    rf"\b[Aa]nswer(?:\s++is)?\s*+(?::\s*+)?(?:{_BRACKETED}(?!\s*(?:,|/|or\b|and\b)\s*{_BRACKETED})|{_LABEL})"
)
_NAMED_LABEL = re.compile(
    rf"\b(?:[Oo]ption|[Cc]hoice|(?:[Cc]hoose|[Pp]ick|[Ss]elect)(?:\s++option)?)(?:\s++is)?\s*+(?::\s*+)?{_LABEL}"
)


def chosen_option(reply: str, options: Sequence[str]) -> int | None:
    """The number (from 1) of the option that a reply chooses; None when it names no option, or several.

    The first rule that applies decides: the reply is the text of an option; it is a label alone; it has a label after "answer"; it
    has labels in brackets or at the start of a line, before its end, a mark or a reason; it has a label after "option", "choice",
    "choose", "pick" or "select"; it contains the text of exactly one option. Labels are A to D or 1 to 4; emphasis by asterisks is
    ignored.
    """
    reply = reply.replace("**", "")
    folded_reply, texts = _folded(reply), [_folded(option) for option in options]
    if folded_reply in texts:
        return texts.index(folded_reply) + 1
    if lone := _ONLY_LABEL.fullmatch(reply):
        return _number(lone[1], len(options))
    for pattern in (_STATED_LABEL, _MARKED_LABEL, _NAMED_LABEL):
        numbers = {_number("".join(groups), len(options)) for groups in pattern.findall(reply)}
        if numbers:
            return numbers.pop() if len(numbers) == 1 else None
    contained = [number for number, text in enumerate(texts, start=1) if text and text in folded_reply]
    return contained[0] if len(contained) == 1 else None


def _number(label: str, options: int) -> int | None:
    number = int(label) if label.isdigit() else _LETTERS.index(label.upper()) + 1
    return number if number <= options else None


def _folded(text: str) -> str:
    return " ".join(text.lower().split()).rstrip(".")


def quality_accuracy(question: Question, gold: Gold, prediction: Prediction) -> Score:
    """1 when the reply chooses the gold option, else 0; `detail` holds the chosen option and whether the question is hard.

    A question whose call failed is not scored, nor is one without options, which needs a judge.
    """
    if (score := unanswered(prediction)) is not None:
        return score
    if not question.options:
        return Score(None, why="the question has no options")
    choice = chosen_option(prediction.answer, question.options)
    detail = {"chosen": choice, "difficult": bool(gold.detail["difficult"])}
    return Score(float(choice == gold.detail["gold_label"]), why="" if choice else "no option chosen", detail=detail)
