"""The official rules of LongMemEval: the choice among five judge rules.

Source: xiaowu0162/LongMemEval, src/evaluation at 9e0b455. The prompts are in `memsys/prompts/judge`, in our own words.

Deviations. The official script takes "yes" anywhere in a reply for yes, so "No, she left yesterday" counts as right;
ours (`eval.judging.judge`) accepts yes or no only as a phrase of its own, and reads as the script does where a judge's settings ask for
it. The official retrieval metrics and summaries are
not implemented: no published table that we reproduce prints them. Our tables compute means and the task average.
"""

from __future__ import annotations

from collections.abc import Mapping

RULE_OF_TYPE: Mapping[str, str] = {
    "single-session-user": "standard",
    "single-session-assistant": "standard",
    "multi-session": "standard",
    "temporal-reasoning": "temporal",
    "knowledge-update": "update",
    "single-session-preference": "preference",
}
"""The judge rule of each question type. `standard` and `temporal` reject a part of what is required, and `temporal` allows numbers of
days, weeks or months that are off by one; `update` allows outdated information beside the updated one; for `preference` the gold answer
describes a good answer, and not every point of it is needed."""
ABSTENTION = "abstention"
"""The rule of a question that cannot be answered: the gold answer explains why, and a reply that recognises this is right."""


def judge_rule(question_id: str, question_type: str) -> str:
    """The judge rule of a question: abstention when its id contains `_abs`, otherwise the rule of its type.

    Raises:
        ValueError: an answerable question of an unknown type.
    """
    if "_abs" in question_id:
        return ABSTENTION
    if question_type not in RULE_OF_TYPE:
        raise ValueError(f"question {question_id}: expected a type of {tuple(RULE_OF_TYPE)}, found {question_type!r}")
    return RULE_OF_TYPE[question_type]
