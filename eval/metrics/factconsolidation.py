"""Score FactConsolidation by the rule in its questions: the newest fact is right, the overwritten fact is wrong.

The benchmark's own number is `mab_substring_em` (`eval.metrics.longmemeval_mab`): the normalised gold answer occurs in the raw or the
parsed reply, even inside a word ("Indiana" holds "India"), so a reply that lists both values is right. `fact_newest` corrects three things:
- words count as a whole;
- a single-hop reply that names the overwritten value too is wrong; where one value is part of the other ("rugby", "rugby union"), the
  longer one is looked for first;
- single-hop questions whose released answer is the overwritten fact (7 of 400) are scored against the newest fact.
Multi-hop questions keep their released answers; 20 of 400 are not the object of any newest fact.
"""

from __future__ import annotations

import re

from data_loaders.schema import Gold, Question
from eval.files.records import Prediction, Score
from eval.metrics.lexical import EMPTY, squad_normalise, unanswered


def fact_newest(question: Question, gold: Gold, prediction: Prediction) -> Score:
    """1 when the reply names the newest value and not the overwritten one, else 0. Not scored: a question whose call failed."""
    if (score := unanswered(prediction)) is not None:
        return score
    newest, stale = gold.detail.get("newest"), gold.detail.get("stale_answer")
    right = {squad_normalise(answer) for answer in (gold.answers if newest is None else (newest,))} - {""}
    wrong = set() if stale is None else {squad_normalise(stale)} - right - {""}
    named = _named(squad_normalise(prediction.answer), right | wrong)
    why = "the overwritten value is named" if named & wrong else ""
    return Score(float(bool(named & right) and not named & wrong), why=why)


def _named(reply: str, values: set[str]) -> set[str]:
    """The values that occur in a reply as whole words, outside the occurrences of longer ones."""
    found = set()
    for value in sorted(values, key=lambda each: (-len(each), each)):
        reply, count = re.subn(rf"(?<!\w){re.escape(value)}(?!\w)", "\n", reply)
        found |= {value} if count else set()
    return found


def fact_brief(question: Question, gold: Gold, prediction: Prediction, more: int = 3) -> Score:
    """1 when the reply has at most `more` words more than the gold answer, else 0: a reply that lists every value it read is right by
    the official rule. An empty reply is 0. Not scored: a question whose call failed.
    """
    if (score := unanswered(prediction)) is not None:
        return score
    if prediction.empty:
        return Score(0.0, why=EMPTY)
    words = max(len(answer.split()) for answer in gold.answers)
    return Score(float(len(prediction.answer.split()) <= words + more))
