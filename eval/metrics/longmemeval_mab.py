"""The official rules of LongMemEval in MemoryAgentBench (LongMemEval S*).

Source: HUST-AI-HYZ/MemoryAgentBench, utils/eval_other_utils.py at 455306d. Every lexical score is the higher one of two:
the raw reply's, and that of the text after "Answer:". The benchmark's main number comes from a judge with the five rules
of `eval.metrics.longmemeval`.

Deviation. An empty reply scores 0 in the metrics at the end of this module. The script lets it match a gold answer that
is empty after normalisation ("the").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass

from data_loaders.schema import Gold, Question
from eval.metrics.lexical import best_of, rouge, squad_exact_match, squad_normalise, squad_token_f1
from eval.records import Prediction, Score

Golds = str | Sequence[str] | Sequence[Sequence[str]]
"""One gold answer, several alternatives, or lists of alternatives; lists are flattened."""

_SPECIAL_ANSWERS = ("yes", "no", "noanswer")
_AFTER_ANSWER = re.compile(r"Answer:(.*)(?:\n|$)", re.IGNORECASE)
_LEADING_ANSWER = re.compile(r"^Answer:", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class MabScores:
    """Lexical scores of one reply, best over the gold answers, each in [0, 1]; ROUGE with stemmer."""

    exact_match: float
    f1: float
    substring_exact_match: float
    rouge_l_f1: float
    rouge_l_recall: float
    rouge_lsum_f1: float
    rouge_lsum_recall: float


def token_f1(prediction: str, gold: str) -> float:
    """SQuAD's F1, but 0 when a side is exactly yes, no or noanswer and the other side differs."""
    predicted, wanted = squad_normalise(prediction), squad_normalise(gold)
    if predicted != wanted and (predicted in _SPECIAL_ANSWERS or wanted in _SPECIAL_ANSWERS):
        return 0.0
    return squad_token_f1(prediction, gold)


def substring_match(prediction: str, gold: str) -> bool:
    """Whether the normalised reply contains the normalised gold answer, even inside a word."""
    return squad_normalise(gold) in squad_normalise(prediction)


def parse_output(output: str) -> str:
    """The rest of the line after the first "Answer:" (in any case); without one, the first line of the reply."""
    match = _AFTER_ANSWER.search(output)
    line = match[1] if match else output.split("\n", 1)[0]
    return _LEADING_ANSWER.sub("", line.strip()).strip()


def reply_scores(prediction: str, golds: Golds) -> MabScores:
    """The lexical scores of a raw reply.

    Raises:
        ValueError: there is no gold answer.
    """
    alternatives = list(_alternatives(golds))
    rouge_l = [rouge(prediction, gold, "rougeL", stemmer=True) for gold in alternatives]
    rouge_lsum = [rouge(prediction, gold, "rougeLsum", stemmer=True) for gold in alternatives]
    return MabScores(
        exact_match=float(max(squad_exact_match(prediction, gold) for gold in alternatives)),
        f1=max(token_f1(prediction, gold) for gold in alternatives),
        substring_exact_match=float(max(substring_match(prediction, gold) for gold in alternatives)),
        rouge_l_f1=max(overlap.f for overlap in rouge_l),
        rouge_l_recall=max(overlap.recall for overlap in rouge_l),
        rouge_lsum_f1=max(overlap.f for overlap in rouge_lsum),
        rouge_lsum_recall=max(overlap.recall for overlap in rouge_lsum),
    )


def post_processed_scores(output: str, golds: Golds) -> MabScores:
    """The scores that the benchmark reports: each the higher one of the raw and the parsed reply.

    Raises:
        ValueError: there is no gold answer.
    """
    raw, parsed = reply_scores(output, golds), reply_scores(parse_output(output), golds)
    return MabScores(*map(max, astuple(raw), astuple(parsed)))


def _alternatives(golds: Golds) -> Iterator[str]:
    if isinstance(golds, str):
        yield golds
    else:
        for gold in golds:
            yield from _alternatives(gold)


def judge_answer(answers: Sequence[str]) -> str:
    """The gold answers as the judge sees them: as a list with brackets and quotes, because the script passes a list."""
    return str(list(answers))


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
