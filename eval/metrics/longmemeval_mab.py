"""The official rules of LongMemEval in MemoryAgentBench (LongMemEval S*).

Source: HUST-AI-HYZ/MemoryAgentBench, utils/eval_other_utils.py at 455306d. Every lexical score is the higher one of two:
the raw reply's, and that of the text after "Answer:". The benchmark's main number comes from a judge with the five rules
of `eval.metrics.longmemeval`.

Deviation. An empty reply scores 0 as a metric (`eval.metrics.lexical.best_of`). The script lets it match a gold answer that
is empty after normalisation ("the").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial

from eval.metrics.lexical import overlap_f1, rouge_f, rouge_recall, squad_exact_match, squad_normalise

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


MEASURES: Mapping[str, Callable[[str, str], float]] = {
    "em": squad_exact_match,
    "f1": token_f1,
    "substring_em": substring_match,
    "rouge_l_f": partial(rouge_f, kind="rougeL", stemmer=True),
    "rouge_l_recall": partial(rouge_recall, kind="rougeL", stemmer=True),
}


def raw_or_parsed(reply: str, gold: str, measure: str) -> float:
    """One of `MEASURES` of the raw or the parsed reply, whichever is higher."""
    return max(MEASURES[measure](text, gold) for text in (reply, parse_output(reply)))
