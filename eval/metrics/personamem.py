"""PersonaMem's option accuracy by both versions' official rules and a corrected rule, and the score of always choosing the longest option.

Source: bowen-upenn/PersonaMem at 041d82a, inference_standalone_openai.py; no aggregation script is published, accuracy is the share of
right answers.

The official rule compares the letters of a reply with the right one: letters in parentheses if there are any, else stand-alone letters
a to d, in the text after the last `<final_answer>` and, if that is not right, in the whole reply. So the article in "c) a painting"
counts as option (a), and "I have a feeling" is right if (a) is. In 17 questions the right option stands under two letters, and one of
them is counted wrong. `personamem_choice` corrects both.

Version 2 (bowen-upenn/PersonaMem-v2, `extract_final_answer` of the inference.py that reads `chat_history_32k_link`) looks for a letter in
eleven places, one after the other, ignoring case. The first place that the reply has decides, whichever letter it holds: "Answer: I think
(b)" names I, which is no option, so it is wrong; "**Final Answer:** B" is wrong, too. The option's text is compared: equal options are both
right.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from data_loaders.personamem import LETTERS
from data_loaders.schema import Gold, Question
from eval.files.records import Prediction, Score
from eval.metrics.lexical import unanswered
from eval.metrics.quality import chosen_option

_MARK, _END = "<final_answer>", "</final_answer>"
_BRACKETED = re.compile(r"\(([a-d])\)")
_ALONE = re.compile(r"\b([a-d])\b")
_PLACES_V2 = tuple(
    re.compile(pattern, re.IGNORECASE | re.MULTILINE)
    for pattern in (
        r"\$\\boxed\{([A-Z])\}\$",
        r"\\boxed\{([A-Z])\}",
        r"Final Answer:\s*([A-Z])",
        r"Answer:\s*([A-Z])",
        r"final answer is\s*([A-Z])",
        r"the answer is\s*([A-Z])",
        r"\b([A-Z])\.\s*$",
    )
)
"""Places where version 2 looks for its letter; places that an earlier, broader pattern covers are left out."""
_LEADING = re.compile(r"\W*([a-d])\s*[).:](?!\w)", re.IGNORECASE)


def extract_answer(reply: str, right: str) -> tuple[bool, str]:
    """Whether a reply is right by the official rule, and the part of it that counts as its answer; `right` is a letter such as "(c)"."""
    answer = reply.strip()
    if _MARK in answer:
        answer = answer.rpartition(_MARK)[2].strip().removesuffix(_END).strip()
    wanted = {right.strip().strip("() ").lower()}
    return _letters(answer) == wanted or _letters(reply) == wanted, answer


def letter_v2(reply: str) -> str:
    """The letter, upper case, that version 2's official rule finds in a reply; empty when it finds none."""
    return next((found[1].upper() for place in _PLACES_V2 if (found := place.search(reply))), "")


def chosen(reply: str, options: Sequence[str]) -> int | None:
    """The position of the option that a reply chooses; None when it names none, or several.

    Unlike the official rule, only the text after the last `<final_answer>` counts if there is one, and a letter counts only as a label: at
    the beginning before a bracket, dot or colon, or as `eval.metrics.quality.chosen_option` reads labels. An option's text counts too.
    """
    answer = (
        reply.rpartition(_MARK)[2].partition(_END)[0].strip() or reply.replace(_MARK, " ").replace(_END, " ").strip()
    )
    bracketed = set(_BRACKETED.findall(answer.lower()))
    if len(bracketed) > 1:
        return None
    if not bracketed and (leading := _LEADING.match(answer)):
        return LETTERS.index(leading[1].lower())
    number = chosen_option(answer, options)
    return None if number is None else number - 1


def _letters(text: str) -> set[str]:
    return set(_BRACKETED.findall(text.lower()) or _ALONE.findall(text.lower()))


# --- metrics: one prediction against one gold -----------------------------------------------------------------------


def personamem_accuracy(question: Question, gold: Gold, prediction: Prediction) -> Score:
    """1 when the reply is right by the official rule, else 0. Not scored: a question whose call failed."""
    if (score := unanswered(prediction)) is not None:
        return score
    return Score(float(extract_answer(prediction.answer, gold.detail["letter"])[0]))


def personamem_v2_accuracy(question: Question, gold: Gold, prediction: Prediction) -> Score:
    """1 when the reply is right by the official rule of version 2, else 0. Not scored: a question whose call failed."""
    if (score := unanswered(prediction)) is not None:
        return score
    letter = letter_v2(prediction.answer).lower()
    return Score(float(f"({letter})" in gold.detail["right_letters"]), why="" if letter else "no letter found")


def personamem_choice(question: Question, gold: Gold, prediction: Prediction) -> Score:
    """1 when the reply chooses an option with the right text, else 0; `detail` holds the letter. Not scored: a failed call."""
    if (score := unanswered(prediction)) is not None:
        return score
    choice = chosen(prediction.answer, question.options)
    if choice is None:
        return Score(0.0, why="no option chosen")
    letter = f"({LETTERS[choice]})"
    return Score(float(letter in gold.detail["right_letters"]), detail={"chosen": letter})


def personamem_longest(question: Question, gold: Gold, prediction: Prediction) -> Score:
    """A control: the score of always choosing the longest option, whatever the reply. Options of equal length share the point."""
    return Score(gold.detail["longest"])
