"""The official rules of LongMemEval in MemoryAgentBench (LongMemEval S*).

Source: HUST-AI-HYZ/MemoryAgentBench, utils/eval_other_utils.py at 455306d. Every lexical score is the higher one of two:
the raw reply's, and that of the text after "Answer:". The benchmark's main number comes from a judge with the five rules
of `eval.metrics.longmemeval`.

Deviation. An empty reply scores 0 in the metrics at the end of this module. The script lets it match a gold answer that
is empty after normalisation ("the").
"""

from __future__ import annotations

import re
from collections.abc import Callable

from data_loaders.schema import Gold, Question
from eval.files.records import Prediction, Score
from eval.metrics.lexical import best_of, overlap_f1, rouge, squad_exact_match, squad_normalise

_SPECIAL_ANSWERS = ("yes", "no", "noanswer")
_AFTER_ANSWER = re.compile(r"Answer:(.*)(?:\n|$)", re.IGNORECASE)
_LEADING_ANSWER = re.compile(r"^Answer:", re.IGNORECASE)


def token_f1(prediction: str, gold: str) -> float:
    """SQuAD's F1, but 0 when a side is exactly yes, no or noanswer and the other side differs."""
    predicted, wanted = squad_normalise(prediction), squad_normalise(gold)
    if predicted != wanted and (predicted in _SPECIAL_ANSWERS or wanted in _SPECIAL_ANSWERS):
        return 0.0
    return overlap_f1(predicted.split(), wanted.split())


def substring_match(prediction: str, gold: str) -> bool:
    """Whether the normalised reply contains the normalised gold answer, even inside a word."""
    return squad_normalise(gold) in squad_normalise(prediction)


def parse_output(output: str) -> str:
    """The rest of the line after the first "Answer:" (in any case); without one, the first line of the reply."""
    match = _AFTER_ANSWER.search(output)
    line = match[1] if match else output.split("\n", 1)[0]
    return _LEADING_ANSWER.sub("", line.strip()).strip()


# --- metrics: one prediction against one gold -----------------------------------------------------------------------


def mab_em(question: Question, gold: Gold, prediction: Prediction) -> Score:
    """Exact match of the raw or the parsed reply after normalisation."""
    return best_of(_raw_or_parsed(squad_exact_match), gold, prediction)


def mab_f1(question: Question, gold: Gold, prediction: Prediction) -> Score:
    """`token_f1` of the raw or the parsed reply, whichever is higher."""
    return best_of(_raw_or_parsed(token_f1), gold, prediction)


def mab_substring_em(question: Question, gold: Gold, prediction: Prediction) -> Score:
    """Whether the raw or the parsed reply contains the gold answer."""
    return best_of(_raw_or_parsed(substring_match), gold, prediction)


def mab_rouge_l_f(question: Question, gold: Gold, prediction: Prediction) -> Score:
    """ROUGE-L F with stemmer of the raw or the parsed reply, whichever is higher."""
    return best_of(_raw_or_parsed(lambda reply, wanted: rouge(reply, wanted, "rougeL", True).f), gold, prediction)


def mab_rouge_l_recall(question: Question, gold: Gold, prediction: Prediction) -> Score:
    """ROUGE-L recall with stemmer of the raw or the parsed reply, whichever is higher."""
    return best_of(_raw_or_parsed(lambda reply, wanted: rouge(reply, wanted, "rougeL", True).recall), gold, prediction)


def _raw_or_parsed(measure: Callable[[str, str], float]) -> Callable[[str, str], float]:
    return lambda output, gold: max(measure(output, gold), measure(parse_output(output), gold))
