"""The oracle editor: the ceiling of the suite `change`, a memory that edits its facts by the answer key instead of by understanding."""

from __future__ import annotations

from data_loaders.schema import Case, Question, Unit
from memsys.interface import Item, MemorySystem, Recall, dated, spoken


class OracleEditor(MemorySystem):
    """Keeps the facts of the probes, edits them by the answer key, and recalls the fact that a question asks about.

    A control, not a memory: it is part of `eval` because memories never see an answer key.

    Args:
        edits: by turn id, a probe and the turn's effect on its slots: set `probe` (for its speaker alone: `private`) or `twin`, or
            `forget`.
        asks: the slot of each question.
    """

    def __init__(self, edits: dict[str, tuple[str, str]], asks: dict[str, tuple[str, str]]) -> None:
        self._edits, self._asks = edits, asks
        self._held: dict[tuple[str, str], Item] = {}
        self._owners: dict[tuple[str, str], str] = {}
        """The only person who may recall a private slot, by slot."""

    def write(self, unit: Unit) -> None:
        for turn in unit.turns:
            probe, edit = self._edits.get(turn.id, ("", ""))
            if edit == "forget":
                self._held.pop((probe, "probe"), None)
            elif edit:
                slot = (probe, "twin" if edit == "twin" else "probe")
                self._held[slot] = Item(turn.id, dated(spoken(turn), unit.time_text), 0.0, (turn.id,))
                if edit == "private":
                    self._owners[slot] = turn.speaker

    def read(self, question: Question) -> Recall:
        slot = self._asks.get(question.id, ("", ""))
        asker = question.asker.id if question.asker else ""
        shown = slot in self._held and self._owners.get(slot, asker) == asker
        return Recall((self._held[slot],) if shown else ())

    @property
    def uses_asker(self) -> bool:
        return True

    @property
    def held(self) -> int:
        return len(self._held)


def oracle_editor(case: Case) -> OracleEditor:
    """Build the control for one case; it keeps nothing of a case from other data (`data_loaders.change`)."""
    edits: dict[str, tuple[str, str]] = {}
    asks: dict[str, tuple[str, str]] = {}
    for question, gold in case.questions:
        if "edits" in gold.detail:
            edits |= {turn: (question.id, edit) for turn, edit in gold.detail["edits"].items()}
            own = {name: read for name, (owner, read) in gold.detail["reads"].items() if owner == case.id}
            asks |= {read: (question.id, "twin" if "twin" in name else "probe") for name, read in own.items()}
    return OracleEditor(edits, asks)
