"""The rules of PerLTQA: sentence overlap as in xMemory, keyword containment, and recall of memories.

The official repository has no scorer. xMemory (section 4.1) reports BLEU-1, token F1 and ROUGE-L. Its code for LoCoMo
uses the BLEU-1 and set F1 of Mem0 and A-MEM, so we use these, and A-MEM's ROUGE-L with stemmer. Keyword containment is the
rule of wangyu-ustc/Mem-alpha (evaluate_agent_results.py) for gold answers that are lists of keywords.

Deviations. It is not known which ROUGE-L xMemory computes; the choice is ours. The PerLTQA paper's MAP on anchors and its
judged correctness and coherence are not implemented.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from data_loaders.schema import Gold, Question
from eval.metrics.lexical import best_of, mem0_set_f1, nltk_bleu, rouge
from eval.records import Prediction, Score


@dataclass(frozen=True, slots=True)
class SentenceOverlap:
    """The three lexical numbers of an xMemory table, each in [0, 1]."""

    bleu1: float
    f1: float
    rouge_l: float


def sentence_overlap(prediction: str, gold: str) -> SentenceOverlap:
    """BLEU-1, set F1 and ROUGE-L F of a reply against a gold sentence; see the module's note on implementations."""
    return SentenceOverlap(
        bleu1=nltk_bleu(prediction, gold),
        f1=mem0_set_f1(prediction, gold),
        rouge_l=rouge(prediction, gold, "rougeL", stemmer=True).f,
    )


def keyword_containment(prediction: str, gold: str, fold_case: bool = False) -> float:
    """The share of the gold's keywords, separated by ';', that stand in the reply, in [0, 1] (Mem-alpha).

    Keywords are lower-cased, the reply is not when there are several (an oversight upstream, so "Bachelor" is no
    "bachelor"); `fold_case=True` mends it. An empty keyword, as after a final ';', is found in every reply.
    """
    keywords = [keyword.strip().lower() for keyword in gold.split(";")]
    text = prediction.lower() if fold_case or len(keywords) == 1 else prediction
    return sum(keyword in text for keyword in keywords) / len(keywords)


def recall_at_k(retrieved: Sequence[str], gold: Collection[str], k: int) -> float | None:
    """The share of the gold memories among the first `k` retrieved ids, compared as whole ids; None without gold."""
    wanted = set(gold)
    return len(wanted.intersection(retrieved[:k])) / len(wanted) if wanted else None


def perltqa_keywords(question: Question, gold: Gold, prediction: Prediction, fold_case: bool = False) -> Score:
    """`keyword_containment`, best over the gold answers.

    Meant for golds shortened to keywords: with the data set's own sentences it asks for the whole sentence.
    """
    return best_of(lambda reply, answer: keyword_containment(reply, answer, fold_case), gold, prediction)
