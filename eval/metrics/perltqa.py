"""Keyword containment, for PerLTQA answers that are lists of keywords.

PerLTQA's repository has no scorer. xMemory (section 4.1) reports BLEU-1, token F1 and ROUGE-L. The data set's configuration therefore
names `bleu1_mem0`, `mem0_f1` and `rouge_l_f` of `conf/metrics.yaml`: the code of xMemory for LoCoMo uses the first two. Keyword
containment is the rule of wangyu-ustc/Mem-alpha (evaluate_agent_results.py).

Deviations. xMemory does not say which ROUGE-L it computes; we chose A-MEM's, with the stemmer. The PerLTQA paper's MAP on anchors, its
recall of memories, and its judged correctness and coherence are not implemented.
"""

from __future__ import annotations


def keyword_containment(prediction: str, gold: str, fold_case: bool = False) -> float:
    """The share of the gold's keywords that occur in the reply, in [0, 1] (Mem-alpha). Keywords are separated by ';'.

    Keywords are lower-cased. With several keywords the reply is not, so "Bachelor" does not match "bachelor": an oversight upstream,
    which `fold_case=True` corrects. An empty keyword, such as after a final ';', occurs in every reply.

    Use it with golds that were shortened to keywords. A gold sentence counts as one keyword, so the reply must contain all of it.
    """
    keywords = [keyword.strip().lower() for keyword in gold.split(";")]
    text = prediction.lower() if fold_case or len(keywords) == 1 else prediction
    return sum(keyword in text for keyword in keywords) / len(keywords)
