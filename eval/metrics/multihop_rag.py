"""The official rule of MultiHop-RAG for answers.

Source: yixuantt/MultiHop-RAG, qa_evaluate.py at 3dd4d4e. The rule is lenient: an answer is right if it shares one word with the gold
answer ("the answer is unknown" matches "The Verge"). We keep it because published numbers use it.

Deviations. The script's "accuracy" is n / (3 n - 2 right), which is 1/3 when everything is wrong; ours is the share of
right answers, which the script prints as precision, recall and F1. The official retrieval metrics are not implemented:
no published table that we reproduce prints them.
"""

from __future__ import annotations

import re

_QUOTED_ANSWER = re.compile(r'The answer to the question is "(.*?)"')


def extract_answer(output: str) -> str:
    """The quoted text of the sentence 'The answer to the question is "..."'; without that sentence the whole output."""
    match = _QUOTED_ANSWER.search(output)
    return match[1] if match else output


def is_right(output: str, gold: str) -> bool:
    """Whether the extracted answer shares a word with the gold answer, in any case; punctuation belongs to the words."""
    return not set(extract_answer(output).lower().split()).isdisjoint(gold.lower().split())
