"""The official rules of RealMem: gold sessions and retrieval, judge replies and their summary.

Source: AvatarMemory/RealMemBench at 67afd08, eval/compute_auto_metrics_for_realmem.py and
eval/compute_llm_metrics_for_realmem.py.

Deviations. A judge's reply with a grade outside its scale counts as unparsable. Unparsable replies are left out of the
means, as upstream, but counted. Percentages normalised as in README tables are not computed: the code has none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from data_loaders.schema import Case
from eval.longmemeval import RetrievalScores
from eval.longmemeval import retrieval_at_k as longmemeval_retrieval_at_k

RETRIEVAL_CUTOFFS = (5, 10, 20)
"""The k for which the official script reports retrieval."""
QA_SCORES = (0, 1, 2, 3)
"""0 conflicts with memory, 1 no conflict but generic, 2 uses part of the gold memories, 3 uses all."""

_JSON_BLOCK = re.compile(r"```json(.*?)```", re.DOTALL)
_WIDEST_BRACES = re.compile(r"\{.*\}", re.DOTALL)


# --- retrieval ------------------------------------------------------------------------------------------------------


def session_corpus(case: Case) -> tuple[str, ...]:
    """The session ids of one persona, sorted as strings: the corpus that is ranked.

    What is relevant in it is `Gold.detail["gold_sessions"]`, for every user turn whose reply names memories: 1,458 of
    them, of which 1,415 are queries (`data_loaders.realmem.load` with `questions="all_gold_turns"`).
    """
    return tuple(sorted(session.id for session in case.sessions))


def ranking(chunk_ids: Sequence[str], corpus_ids: Sequence[str]) -> list[int]:
    """The positions in the corpus of the retrieved chunks, best first; ids that are no session of it are dropped."""
    positions = {document: position for position, document in enumerate(corpus_ids)}
    return [positions[chunk] for chunk in chunk_ids if chunk in positions]


def retrieval_at_k(
    rankings: Sequence[int], correct: Collection[str], corpus_ids: Sequence[str], k: int
) -> RetrievalScores:
    """LongMemEval's recall and nDCG (its odd DCG too) of the first k positions; those outside the corpus are dropped.

    A session that is ranked twice counts twice in the nDCG, which can then exceed 1, as upstream.
    """
    inside = [position for position in rankings[:k] if position < len(corpus_ids)]
    return longmemeval_retrieval_at_k(inside, correct, corpus_ids, k)


def persona_mean(values: Sequence[float]) -> float:
    """The mean over one persona's questions, rounded to four decimals. Raises ValueError when there are none."""
    if not values:
        raise ValueError("expected at least one value")
    return round(sum(values) / len(values), 4)


def across_personas(values: Mapping[str, Sequence[float]]) -> float:
    """The unweighted mean of the persona means (each rounded first), rounded to four decimals.

    Raises ValueError when there is no persona, or one without values.
    """
    return persona_mean([persona_mean(of_persona) for of_persona in values.values()])


def evidence_text(chunks: Sequence[str], top_k: int) -> str:
    """The first `top_k` retrieved chunks as the answer prompt shows them, numbered from 1."""
    return "\n\n".join(f"---- idx {number} ----\n{chunk}" for number, chunk in enumerate(chunks[:top_k], start=1))


# --- judge replies --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemoryVerdict:
    """What the memory judge says of the retrieved memories."""

    recall: float
    """The share of the gold memories whose content was retrieved, in [0, 1]."""
    helpful: float
    """0 contradictory, 1 partial, 2 comprehensive."""


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """The verdicts on one answer; None where there is none (unparsable, or no gold memory to compare with)."""

    qa_score: int | None
    memory: MemoryVerdict | None = None


@dataclass(frozen=True, slots=True)
class RealMemSummary:
    """The numbers of one evaluation, rounded to four decimals; None where nothing was judged."""

    average_qa_score: float | None
    """On the scale 0 to 3."""
    qa_score_distribution: Mapping[int, int]
    qa_hallucination_rate: float | None
    """The share of score 0."""
    qa_perfect_rate: float | None
    """The share of score 3."""
    average_mem_recall: float | None
    average_mem_helpful_score: float | None
    """On the scale 0 to 2."""
    unscored: int
    """Answers without a QA score: in none of the means."""


def extract_json(reply: str) -> Any:
    """The JSON value in the first ```json block of a reply, or without a block between its outermost braces.

    None when there is neither, or what is there does not parse.
    """
    block = _JSON_BLOCK.search(reply)
    braces = None if block else _WIDEST_BRACES.search(reply)
    text = block[1] if block else braces[0] if braces else ""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def qa_score(reply: str) -> int | None:
    """The QA judge's score, 0 to 3; None when the reply has no JSON object with a score on that scale."""
    score = _number(extract_json(reply), "score")
    return int(score) if score in QA_SCORES else None


def memory_verdict(reply: str) -> MemoryVerdict | None:
    """The memory judge's recall and helpfulness; None when the reply lacks one of them or leaves its scale."""
    value = extract_json(reply)
    recall, helpful = _number(value, "Mem_recall"), _number(value, "Mem_helpful_score")
    if recall is None or helpful is None or not (0 <= recall <= 1 and 0 <= helpful <= 2):
        return None
    return MemoryVerdict(recall, helpful)


def _number(value: Any, field: str) -> float | None:
    found = value.get(field) if isinstance(value, dict) else None
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def summarise(judged: Sequence[JudgedAnswer]) -> RealMemSummary:
    """The means, rates and distribution the official script writes, from one persona's (or all) verdicts."""
    scores = [answer.qa_score for answer in judged if answer.qa_score is not None]
    memories = [answer.memory for answer in judged if answer.memory is not None]
    return RealMemSummary(
        average_qa_score=_mean(scores),
        qa_score_distribution={score: scores.count(score) for score in QA_SCORES},
        qa_hallucination_rate=_mean([score == 0 for score in scores]),
        qa_perfect_rate=_mean([score == 3 for score in scores]),
        average_mem_recall=_mean([memory.recall for memory in memories]),
        average_mem_helpful_score=_mean([memory.helpful for memory in memories]),
        unscored=len(judged) - len(scores),
    )


def _mean(values: Sequence[float]) -> float | None:
    return persona_mean(values) if values else None
