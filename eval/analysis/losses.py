"""Where a memory loses its points: the way from perfect to its score, step by step, on the same questions.

Every question loses 1 minus its score, and gives this loss to the steps in which it happened, first to last:

- *gold errors*: an errata layer says that the gold answer is wrong (`Gold.detail["audit"]`).
- *abstention*: the question has no answer in the history, and was answered nevertheless.
- *reader*: what the reader loses even when it is shown the evidence (the run of `gold_evidence` on the same questions).
- *not stored*: an evidence turn is in no node (`eval.analysis.held` says when a text holds a turn).
- *not found*: it is stored and was not recalled.
- *cut by the budget*: it was recalled, and the reader's budget left it out or cut it.
- *misread*: the reader was shown all evidence, and answered worse than from the evidence alone; negative where it answered better.
- *unknown*: the files do not say which step: the data set names no evidence, the evidence run has no score, the run saved no nodes and
  recalled nothing of the evidence, or a paraphrase may hold the evidence or not.

A step after the reader's is the score from the evidence minus the memory's score, gains counted against losses. Answers that flip
between the two runs thus cancel out in the mean, and its interval carries them: a memory that recalls exactly the evidence misreads 0,
but for that interval. The steps of a question add up to its loss, so the means add up to 1 minus the mean score.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from data_loaders.schema import Gold
from eval.analysis.held import Held, Target, Texts, all_held
from eval.statistics.stats import Estimate, estimate

STEPS = (
    "gold errors",
    "abstention",
    "reader",
    "not stored",
    "not found",
    "cut by the budget",
    "misread",
    "unknown",
)
FINE = ("CORRECT", "WRONG_CITATION")
"""Labels of an audit that leave the gold answer right."""


@dataclass(frozen=True, slots=True)
class Reached:
    """How far the evidence of one question got."""

    stored: Held
    recalled: Held
    shown: Held


@dataclass(frozen=True, slots=True)
class Loss:
    """What one question lost, by step."""

    case_id: str
    question_id: str
    category: str
    score: float
    steps: Mapping[str, float]


def loss_of(score: float, with_evidence: float | None, gold: Gold, reached: Reached | None) -> dict[str, float]:
    """The loss of one question by step; the values add up to `1 - score`.

    Args:
        score: of the memory's answer, from 0 to 1.
        with_evidence: score of the answer from the evidence alone; None when it could not be had.
        reached: None when the data set names no evidence.
    """
    loss = 1.0 - score
    if str(gold.detail.get("audit", FINE[0])) not in FINE:
        return {"gold errors": loss}
    if not gold.answerable:
        return {"abstention": loss}
    if with_evidence is None or reached is None:
        return {"unknown": loss}
    return {"reader": 1.0 - with_evidence, _step(reached): with_evidence - score}


def _step(reached: Reached) -> str:
    if reached.shown == Held.YES:
        return "misread"
    steps = {"cut by the budget": reached.recalled, "not found": reached.stored, "not stored": Held.YES}
    after: Held = reached.shown
    for step, before in steps.items():  # the step at which a sure yes turns into a sure no
        if after is Held.NO and before is Held.YES:
            return step
        after = before
    return "unknown"


def reach(evidence: Collection[Target], nodes: Texts | None, recalled: Texts, shown: Texts) -> Reached | None:
    """How far the evidence turns of a question got; None without evidence.

    What was shown was recalled, and what was recalled was stored.

    Args:
        nodes: the texts that the memory holds; None when the run saved none, and then storage is unknown.
        recalled: the recalled texts.
        shown: what the reader's prompt had of them.
    """
    if not evidence:
        return None
    seen = all_held(evidence, shown)
    found = max(seen, all_held(evidence, recalled))
    return Reached(max(found, Held.UNKNOWN if nodes is None else all_held(evidence, nodes)), found, seen)


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
