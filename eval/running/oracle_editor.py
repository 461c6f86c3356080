"""The oracle editor: the ceiling of the suite `change`, a memory that edits by the key what a perfect one would edit by understanding."""

from __future__ import annotations

from data_loaders.schema import Case, Question, Unit
from memsys.interface import Item, MemorySystem, Recall, dated, spoken


class OracleEditor(MemorySystem):
    """Keeps the facts of the probes, edits them as the key says, and recalls the one that a question asks about.

    A control, not a memory: it is part of `eval` because memories never see an answer key.

    Args:
        edits: by turn id, the slots that the turn sets, or the one that it empties (`forget`), as probe and name.
        asks: the slot of each question.
    """

    def __init__(self, edits: dict[str, tuple[str, str]], asks: dict[str, tuple[str, str]]) -> None:
        self._edits, self._asks = edits, asks
        self._held: dict[tuple[str, str], Item] = {}

    def write(self, unit: Unit) -> None:
        for turn in unit.turns:
            probe, edit = self._edits.get(turn.id, ("", ""))
            if edit == "forget":
                self._held.pop((probe, "probe"), None)
            elif edit:
                self._held[probe, edit] = Item(turn.id, dated(spoken(turn), unit.time_text), 0.0, (turn.id,))

    def read(self, question: Question) -> Recall:
        item = self._held.get(self._asks.get(question.id, ("", "")))
        return Recall(() if item is None else (item,))

    @property
    def held(self) -> int:
        return len(self._held)


def oracle_editor(case: Case) -> OracleEditor:
    """The control for one case; of a case that is not from the suite it keeps nothing (`data_loaders.change`)."""
    edits: dict[str, tuple[str, str]] = {}
    asks: dict[str, tuple[str, str]] = {}
    for question, gold in case.questions:
        if "edits" in gold.detail:
            edits |= {turn: (question.id, edit) for turn, edit in gold.detail["edits"].items()}
            own = {name: read for name, (owner, read) in gold.detail["reads"].items() if owner == case.id}
            asks |= {read: (question.id, "twin" if name == "twin" else "probe") for name, read in own.items()}
    return OracleEditor(edits, asks)
