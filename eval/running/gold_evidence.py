"""The gold-evidence control: the reader gets the units that hold the evidence; its score is an upper bound for memories (MemTree)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from data_loaders.schema import Case, Question, Unit
from data_loaders.units import make_units
from memsys.interface import MemorySystem, Recall, unit_item
from memsys.tokens import count_tokens


class GoldEvidence(MemorySystem):
    """Recalls the evidence units of a question, which it is constructed with, in the order of the history.

    A control, not a memory: it is part of `eval` because memories never see an answer key.
    """

    def __init__(self, evidence: Mapping[str, Sequence[Unit]]) -> None:
        self._evidence = evidence

    def write(self, unit: Unit) -> None:
        """Store nothing: the evidence is known already."""

    def read(self, question: Question) -> Recall:
        return Recall(tuple(unit_item(unit) for unit in self._evidence[question.id]))


def gold_evidence(case: Case, unit: Mapping[str, Any]) -> GoldEvidence:
    """Build the control for one case, given the unit rule and its settings; a unit is evidence when it holds an evidence turn."""
    units = make_units(case.sessions, count=count_tokens, **unit).units
    held = {
        question.id: [one for one in units if not set(one.turn_ids).isdisjoint(gold.evidence)]
        for question, gold in case.questions
    }
    return GoldEvidence(held)
