"""The official rules of LongMemEval: the choice among five judge rules, and parsing of the judge's reply.

Source: xiaowu0162/LongMemEval, src/evaluation at 9e0b455. The prompts are in `memsys/prompts/judge`, in our own words.

Deviations. The official script takes "yes" anywhere in a reply for yes, so "No, she left yesterday" counts as right;
ours accepts yes or no only as a phrase of its own (`stated_verdict`), and reads as the script does where a judge's settings ask for it
(`official_verdict`). The official retrieval metrics and summaries are
not implemented: no published table that we reproduce prints them. Our tables compute means and the task average.
"""

from __future__ import annotations

from dataclasses import dataclass

from eval.metrics.labels import stated

QUESTION_TYPES = (
    "single-session-user",
    "single-session-preference",
    "single-session-assistant",
    "multi-session",
    "temporal-reasoning",
    "knowledge-update",
)


@dataclass(frozen=True, slots=True)
class JudgeRule:
    """A rule of the five judge prompts; the judge always replies yes or no."""

    name: str
    rejects_subset: bool = False
    """An answer with only a part of what is required is wrong."""
    forgives_off_by_one: bool = False
    """Numbers of days, weeks or months may be off by one."""
    allows_superseded: bool = False
    """The answer may name outdated information in addition to the updated information."""
    gold_is_rubric: bool = False
    """The gold answer describes a good answer; not every point of it is needed."""
    gold_is_explanation: bool = False
    """The question cannot be answered, and the gold answer explains why. A reply that recognises this is right."""


STANDARD = JudgeRule("standard", rejects_subset=True)
TEMPORAL = JudgeRule("temporal", rejects_subset=True, forgives_off_by_one=True)
KNOWLEDGE_UPDATE = JudgeRule("knowledge-update", allows_superseded=True)
PREFERENCE = JudgeRule("preference", gold_is_rubric=True)
ABSTENTION = JudgeRule("abstention", gold_is_explanation=True)

_RULE_OF_TYPE = {
    "single-session-user": STANDARD,
    "single-session-assistant": STANDARD,
    "multi-session": STANDARD,
    "temporal-reasoning": TEMPORAL,
    "knowledge-update": KNOWLEDGE_UPDATE,
    "single-session-preference": PREFERENCE,
}


def is_abstention(question_id: str) -> bool:
    """Whether the history does not answer the question: its id contains `_abs`."""
    return "_abs" in question_id


def judge_rule(question_id: str, question_type: str) -> JudgeRule:
    """The judge rule of a question: abstention when its id says so, otherwise the rule of its type.

    Raises:
        ValueError: an answerable question whose type is not one of `QUESTION_TYPES`.
    """
    if is_abstention(question_id):
        return ABSTENTION
    if question_type not in _RULE_OF_TYPE:
        raise ValueError(f"question {question_id}: expected a type of {QUESTION_TYPES}, found {question_type!r}")
    return _RULE_OF_TYPE[question_type]


def official_verdict(reply: str) -> bool:
    """Whether the reply contains "yes", in any case and any word, as evaluate_qa.py reads it."""
    return "yes" in reply.lower()


def stated_verdict(reply: str) -> bool | None:
    """True for yes, False for no; None when the reply states neither or both (`eval.metrics.labels`)."""
    label = stated(reply, ("yes", "no"))
    return label == "yes" if label else None
