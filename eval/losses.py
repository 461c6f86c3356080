"""Where a memory loses its points: the way from perfect to its score, step by step, on the same questions.

Every question loses 1 minus its score, and gives this loss to the steps in which it happened, first to last:

- *gold errors*: an errata layer says that the gold answer is wrong (`Gold.detail["audit"]`).
- *abstention*: the question has no answer in the history, and was answered nevertheless.
- *reader*: what the reader loses even when it is shown the evidence (the run of `gold_evidence` on the same questions).
- *not stored*: an evidence turn is in no node, neither verbatim nor by most of its words.
- *not found*: it is stored and was not recalled.
- *cut by the budget*: it was recalled and did not fit the reader's budget.
- *misread*: the reader was shown all evidence, and answered worse than from the evidence alone.
- *better than the evidence*: the memory's answer is better than that from the evidence; a negative loss.
- *unknown*: the data set names no evidence, so the rest belongs to no step.

The steps of a question add up to its loss, so the means add up to 1 minus the mean score.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from data_loaders.schema import Gold
from eval.stats import Estimate, estimate

STEPS = (
    "gold errors",
    "abstention",
    "reader",
    "not stored",
    "not found",
    "cut by the budget",
    "misread",
    "better than the evidence",
    "unknown",
)
FINE = ("CORRECT", "WRONG_CITATION")
"""Labels of an audit that leave the gold answer right."""
LEAST_SHARE = 0.6
"""Share of a turn's words that a text must hold to hold the turn."""


@dataclass(frozen=True, slots=True)
class Found:
    """How far the evidence of one question got."""

    stored: bool
    recalled: bool
    shown: bool


@dataclass(frozen=True, slots=True)
class Loss:
    """What one question lost, by step."""

    case_id: str
    question_id: str
    category: str
    score: float
    steps: Mapping[str, float]


def loss_of(score: float, with_evidence: float | None, gold: Gold, found: Found | None) -> dict[str, float]:
    """The loss of one question by step; the values add up to `1 - score`.

    Args:
        score: of the memory's answer, from 0 to 1.
        with_evidence: score of the answer from the evidence alone; None when there is no such run.
        found: None when the data set names no evidence.
    """
    loss = 1.0 - score
    if loss == 0.0:
        return {}
    if str(gold.detail.get("audit", FINE[0])) not in FINE:
        return {"gold errors": loss}
    if not gold.answerable:
        return {"abstention": loss}
    reader = 0.0 if with_evidence is None else 1.0 - with_evidence
    rest = loss - reader
    if rest < 0.0:
        return {"reader": reader, "better than the evidence": rest}
    return {"reader": reader, _step(found): rest}


def _step(found: Found | None) -> str:
    if found is None:
        return "unknown"
    if not found.stored:
        return "not stored"
    if not found.recalled:
        return "not found"
    return "misread" if found.shown else "cut by the budget"


def found(
    evidence: Sequence[str], nodes: Collection[str] | None, recalled: Sequence[str], shown: Sequence[str]
) -> Found | None:
    """How far the evidence turns of a question got; None without evidence.

    Args:
        evidence: the texts of the turns.
        nodes: the texts that the memory holds; None when the run saved none, and then the turns count as stored.
        recalled: the recalled texts.
        shown: those that the reader was shown.
    """
    if not evidence:
        return None
    return Found(
        nodes is None or all(held(turn, nodes) for turn in evidence),
        all(held(turn, recalled) for turn in evidence),
        all(held(turn, shown) for turn in evidence),
    )


def held(turn: str, texts: Iterable[str]) -> bool:
    """Whether one of the texts holds a turn: verbatim, or with at least `LEAST_SHARE` of its words of four letters and more."""
    words = _words(turn)
    return any(
        turn.strip() in text or (words and len(words & _words(text)) >= LEAST_SHARE * len(words)) for text in texts
    )


@lru_cache(maxsize=200_000)
def _words(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w{4,}", text.lower()))


@dataclass(frozen=True, slots=True)
class Waterfall:
    """The mean losses of a memory by step, with intervals."""

    score: Estimate
    steps: Mapping[str, Estimate]
    """Steps that some question lost points in, in the order of `STEPS`."""


def waterfall(losses: Sequence[Loss]) -> Waterfall:
    """The mean loss of each step over the same questions.

    Raises:
        ValueError: there are no questions.
    """
    cases = [loss.case_id for loss in losses]
    steps = {
        step: estimate([loss.steps.get(step, 0.0) for loss in losses], cases)
        for step in STEPS
        if any(loss.steps.get(step) for loss in losses)
    }
    return Waterfall(estimate([loss.score for loss in losses], cases), steps)
