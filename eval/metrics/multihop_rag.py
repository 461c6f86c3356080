"""The official rules of MultiHop-RAG for retrieved chunks and for answers.

Source: yixuantt/MultiHop-RAG, retrieval_evaluate.py and qa_evaluate.py at 3dd4d4e. All rules are lenient or odd in ways
that published numbers share, so they are kept: a chunk is a hit when it contains any gold fact, the average precision
is not the textbook's, and an answer is right as soon as it shares one word with the gold ("the answer is unknown"
matches "The Verge").

Deviation: nothing to average raises ValueError where the scripts divide by zero or print 0.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass

from data_loaders.schema import Gold, Question
from eval.metrics.lexical import best_of
from eval.records import Prediction, Score

RETRIEVAL_DEPTH = 10
"""Ranks that count for every number except Hits@4."""

_QUOTED_ANSWER = re.compile(r'The answer to the question is "(.*?)"')
_SPACES = str.maketrans("", "", " \n")


@dataclass(frozen=True, slots=True)
class FactRetrieval:
    """Retrieval of one question, or the mean over several; each number in [0, 1]."""

    hits_at_4: float
    hits_at_10: float
    map_at_10: float
    mrr_at_10: float


@dataclass(frozen=True, slots=True)
class QaSummary:
    """The four numbers the QA script prints; the first three are always equal: the share of right answers."""

    precision: float
    recall: float
    f1: float
    accuracy: float
    """n / (3 n - 2 right), as if every wrong answer were a false positive, a false negative and a true negative at
    once. So it is 1/3 when everything is wrong: no accuracy, never to be reported as one."""


def fact_retrieval(retrieved: Sequence[str], facts: Sequence[str]) -> FactRetrieval:
    """Hits@4, Hits@10, AP@10 and reciprocal rank of one question's chunks, best first, by the facts they contain.

    Spaces and line breaks (no other white space) are removed on both sides. AP adds, at each rank, the facts found for
    the first time divided by the rank, and divides by the number of facts, at most 10. Raises ValueError when there are
    no facts.
    """
    if not facts:
        raise ValueError("expected at least one gold fact: null questions are not scored for retrieval")
    wanted = [fact.translate(_SPACES) for fact in facts]
    found: set[str] = set()
    first_rank: int | None = None
    precision = 0.0
    for rank, chunk in enumerate(retrieved[:RETRIEVAL_DEPTH], start=1):
        text = chunk.translate(_SPACES)
        held = {fact for fact in wanted if fact in text}
        if held and first_rank is None:
            first_rank = rank
        precision += len(held - found) / rank
        found |= held
    return FactRetrieval(
        hits_at_4=float(first_rank is not None and first_rank <= 4),
        hits_at_10=float(first_rank is not None),
        map_at_10=precision / min(len(wanted), RETRIEVAL_DEPTH),
        mrr_at_10=1 / first_rank if first_rank is not None else 0.0,
    )


def mean_retrieval(retrieved: Sequence[Sequence[str]], facts: Sequence[Sequence[str]]) -> FactRetrieval:
    """The means over questions (parallel sequences); null questions, which have no facts, are skipped.

    Raises ValueError when the lengths differ or no question has facts.
    """
    scores = [fact_retrieval(chunks, gold) for chunks, gold in zip(retrieved, facts, strict=True) if gold]
    if not scores:
        raise ValueError("expected at least one question with gold facts")
    return FactRetrieval(*(sum(numbers) / len(scores) for numbers in zip(*map(astuple, scores), strict=True)))


def extract_answer(output: str) -> str:
    """The quoted text in 'The answer to the question is "..."', or the whole output when it has no such sentence."""
    match = _QUOTED_ANSWER.search(output)
    return match[1] if match else output


def shares_a_word(prediction: str, gold: str) -> bool:
    """Whether both have a white-space separated word in common, in lower case; punctuation belongs to the word."""
    return not set(prediction.lower().split()).isdisjoint(gold.lower().split())


def summarise(predictions: Sequence[str], golds: Sequence[str]) -> QaSummary:
    """The four numbers of the QA script over extracted answers (parallel sequences).

    Raises ValueError when the lengths differ or there are none.
    """
    right = sum(shares_a_word(prediction, gold) for prediction, gold in zip(predictions, golds, strict=True))
    if not golds:
        raise ValueError("expected at least one question")
    share = right / len(golds)
    return QaSummary(share, share, share, len(golds) / (3 * len(golds) - 2 * right))


def multihop_rag_accuracy(question: Question, gold: Gold, prediction: Prediction) -> Score:
    """1 when the extracted answer shares a word with a gold answer, else 0.

    Its mean is what the script prints as precision, recall and F1; what it prints as accuracy is in `QaSummary`.
    """
    return best_of(lambda output, answer: shares_a_word(extract_answer(output), answer), gold, prediction)
