"""The official rules of LongMemEval: which judge rule a question gets, verdicts, means, and the retrieval metrics.

Source: xiaowu0162/LongMemEval, src/evaluation and src/retrieval at 9e0b455. One oddity is kept because published
numbers have it: the DCG discounts rank i by log2(i) instead of log2(i + 1), so that ranks 1 and 2 weigh the same.

Deviations. The official verdict is "yes" anywhere in the reply, so that "No, she left yesterday" is right; it is kept
as `verdict`, and our judges use `stated_verdict`, which takes yes or no only where it stands alone. The task average
is the mean over the types that occur (the script divides by nothing when one of the six is missing). The prompts
themselves are elsewhere and in our words.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from data_loaders.schema import Session
from eval.metrics.labels import stated

QUESTION_TYPES = (
    "single-session-user",
    "single-session-preference",
    "single-session-assistant",
    "multi-session",
    "temporal-reasoning",
    "knowledge-update",
)
RETRIEVAL_CUTOFFS = (1, 3, 5, 10, 30, 50)
"""The k for which the official script reports retrieval."""


@dataclass(frozen=True, slots=True)
class JudgeRule:
    """What one of the five judge prompts asks for; the reply is always yes or no."""

    name: str
    rejects_subset: bool = False
    """A reply with only part of the required answer is wrong."""
    forgives_off_by_one: bool = False
    """Counts of days, weeks or months may be off by one."""
    allows_superseded: bool = False
    """Old information may stand beside the updated answer."""
    gold_is_rubric: bool = False
    """The gold describes a good reply; not every point of it is needed."""
    gold_is_explanation: bool = False
    """The question cannot be answered, the gold says why; right is to notice that."""


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
    """Whether the question has no answer in the history: its id has `_abs` in it."""
    return "_abs" in question_id


def judge_rule(question_id: str, question_type: str) -> JudgeRule:
    """The rule by which a reply is judged: abstention by the id, whatever the type, otherwise by the type.

    Raises ValueError for an answerable question whose type is not one of `QUESTION_TYPES`.
    """
    if is_abstention(question_id):
        return ABSTENTION
    if question_type not in _RULE_OF_TYPE:
        raise ValueError(f"question {question_id}: expected a type of {QUESTION_TYPES}, found {question_type!r}")
    return _RULE_OF_TYPE[question_type]


def verdict(reply: str) -> bool:
    """Whether a judge's reply says that the answer is right: "yes" occurs in it, in any case, even inside a word."""
    return "yes" in reply.lower()


def stated_verdict(reply: str) -> bool | None:
    """Whether the reply says yes; None when it says neither yes nor no by itself, or both (`eval.metrics.labels`)."""
    label = stated(reply, ("yes", "no"))
    return label == "yes" if label else None


@dataclass(frozen=True, slots=True)
class JudgedQuestion:
    """One judged question: the label is 1 for right and 0 for wrong."""

    question_id: str
    question_type: str
    label: float


@dataclass(frozen=True, slots=True)
class LongMemEvalSummary:
    """Accuracies in [0, 1], rounded to four decimals as the official script prints them."""

    by_type: Mapping[str, float]
    """Abstention questions count inside their type."""
    task_averaged: float
    """The unweighted mean over the types."""
    overall: float
    """The mean over all questions."""
    abstention: float | None
    """The mean over abstention questions; None when there are none."""


def summarise(judged: Sequence[JudgedQuestion]) -> LongMemEvalSummary:
    """The accuracies of print_qa_metrics.py. Raises ValueError when there are no questions or a type is unknown."""
    if not judged:
        raise ValueError("expected at least one judged question")
    if unknown := {item.question_type for item in judged} - set(QUESTION_TYPES):
        raise ValueError(f"expected question types of {QUESTION_TYPES}, found {sorted(unknown)}")
    groups = {kind: [item.label for item in judged if item.question_type == kind] for kind in QUESTION_TYPES}
    by_type = {kind: _mean(labels) for kind, labels in groups.items() if labels}
    abstention = [item.label for item in judged if is_abstention(item.question_id)]
    return LongMemEvalSummary(
        by_type={kind: round(accuracy, 4) for kind, accuracy in by_type.items()},
        task_averaged=round(_mean(list(by_type.values())), 4),
        overall=round(_mean([item.label for item in judged]), 4),
        abstention=round(_mean(abstention), 4) if abstention else None,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


# --- retrieval ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RetrievalScores:
    """Retrieval of one question at one cut-off."""

    recall_any: float
    """1 when any relevant document is in the top k, else 0."""
    recall_all: float
    """1 when all relevant documents are in the top k (also when there are none), else 0."""
    ndcg_any: float
    """In [0, 1] for a ranking without repetitions; 0 when nothing is relevant."""


@dataclass(frozen=True, slots=True)
class RetrievalCorpus:
    """What the official retrievers rank for one question: ids and texts in parallel, and the relevant ids."""

    ids: tuple[str, ...]
    texts: tuple[str, ...]

    @property
    def relevant(self) -> tuple[str, ...]:
        return tuple(document for document in self.ids if "answer" in document)


def retrieval_corpus(
    sessions: Sequence[Session], evidence: Collection[str], unit: Literal["session", "turn"]
) -> RetrievalCorpus:
    """The user's side of a history as documents: all user turns of a session joined by spaces, or each user turn.

    `evidence` holds the ids of the turns with `has_answer`. A session or turn of the evidence sessions without any gets
    its id's `answer` turned into `noans`, which makes it irrelevant; assistant turns are no documents at all.
    """
    ids: list[str] = []
    texts: list[str] = []
    for session in sessions:
        turns = [turn for turn in session.turns if turn.role == "user"]
        if unit == "turn":
            ids += [_document_id(turn.id, turn.id in evidence) for turn in turns]
            texts += [turn.text for turn in turns]
        else:
            ids.append(_document_id(session.id, any(turn.id in evidence for turn in turns)))
            texts.append(" ".join(turn.text for turn in turns))
    return RetrievalCorpus(tuple(ids), tuple(texts))


def _document_id(name: str, holds_answer: bool) -> str:
    return name if holds_answer else name.replace("answer", "noans")


def counts_for_retrieval(question_id: str, sessions: Sequence[Session], evidence: Collection[str]) -> bool:
    """Whether the official retrieval means include the question.

    They skip abstention questions, and those without a user turn that has the answer, such as the questions about what
    the assistant said.
    """
    has_user_evidence = any(
        turn.role == "user" and turn.id in evidence for session in sessions for turn in session.turns
    )
    return has_user_evidence and not is_abstention(question_id)


def dcg(relevances: Sequence[float], k: int) -> float:
    """Discounted gain of the first k relevances: the first in full, the i-th divided by log2(i), counted from 1."""
    top = relevances[:k]
    return sum(gain if rank == 1 else gain / math.log2(rank) for rank, gain in enumerate(top, start=1))


def retrieval_at_k(
    rankings: Sequence[int], correct: Collection[str], corpus_ids: Sequence[str], k: int
) -> RetrievalScores:
    """Recall and nDCG of the first k of `rankings`, which are positions in `corpus_ids`, best first.

    The ideal ranking comes from the corpus, not from `correct`. Raises IndexError for a position outside the corpus.
    """
    top = [corpus_ids[position] for position in rankings[:k]]
    ideal = dcg(sorted((float(document in correct) for document in corpus_ids), reverse=True), k)
    return RetrievalScores(
        recall_any=float(any(document in top for document in correct)),
        recall_all=float(all(document in top for document in correct)),
        ndcg_any=dcg([float(document in correct) for document in top], k) / ideal if ideal else 0.0,
    )


def turn_to_session_at_k(
    rankings: Sequence[int], correct: Collection[str], corpus_ids: Sequence[str], k: int
) -> RetrievalScores:
    """The session-level scores of a ranking of turns: `k` is widened until the top turns come from k sessions.

    A turn id without what follows its last underscore is its session's id. Every turn of a relevant session is
    relevant, and a session counts once for each of its turns in the nDCG.
    """
    sessions = [_session_of(document) for document in corpus_ids]
    widened = k
    while widened <= len(sessions) and len({sessions[position] for position in rankings[:widened]}) < k:
        widened += 1
    return retrieval_at_k(rankings, {_session_of(document) for document in correct}, sessions, widened)


def _session_of(turn_id: str) -> str:
    return turn_id.rpartition("_")[0]
