"""A summary of the whole history and nothing else: the lossy baseline of MemGPT §3.1.2, quoted in Table 1 of MemTree.

The papers do not say how the summary is made. Here the history is read in windows of `window_tokens`, and the summary so far is rewritten
with each, so that a history that fits into one window is summarised in one call. Windows end between units; a longer unit is cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from data_loaders.schema import Question, Unit
from memsys.interface import Item, MemorySystem, Recall, dated, positive, union
from memsys.llm import meter
from memsys.llm.ask import ask
from memsys.llm.parsing import ParseFailure
from memsys.llm.protocol import LLM
from memsys.prompts import Prompts
from memsys.tokens import count_tokens, split_tokens


@dataclass(frozen=True, slots=True)
class _Summary:
    text: str = ""
    sources: tuple[str, ...] = ()
    windows: int = 0


@dataclass(frozen=True, slots=True)
class _Piece:
    text: str
    tokens: int
    turns: tuple[str, ...]


class HistorySummary(MemorySystem):
    """Recalls one item, the summary of everything as of the last `consolidate`.

    One call for every full window while writing, and one in `consolidate` for what came since. A summary that cannot be had leaves the
    one before as it is, which then stands for fewer turns.

    Args:
        window_tokens: tokens of the history that are summarised at once.
        words: longest summary asked for.

    Raises:
        ValueError: a number below 1.
    """

    PROMPTS: ClassVar = ("history_summary",)

    def __init__(self, llm: LLM, prompts: Prompts, window_tokens: int = 6000, words: int = 300) -> None:
        self.llm, self.prompts = llm, prompts
        self.window_tokens, self.words = positive("window_tokens", window_tokens), positive("words", words)
        self._summary = _Summary()
        self._pending: list[_Piece] = []
        self._shown = _Summary()
        self._stale = False

    def write(self, unit: Unit) -> None:
        """Keep the unit for the next window; a call for each window that is full."""
        if any(turn.text.strip() for turn in unit.turns):
            for text in split_tokens(dated(unit.text, unit.time_text), self.window_tokens):
                self._add(_Piece(text, count_tokens(text), unit.turn_ids))
            self._stale = True

    def consolidate(self) -> None:
        """Summarise what has been kept, provisionally: it stays in its window."""
        if self._stale:
            self._shown = self._folded()
            self._stale = False

    def read(self, question: Question) -> Recall:
        if not self._shown.text:
            return Recall(())
        return Recall((Item("summary", self._shown.text, 1.0, self._shown.sources, "summary", 1),))

    @property
    def held(self) -> int:
        return int(bool(self._shown.text))

    def report(self) -> dict[str, Any]:
        return {"windows": self._shown.windows, "summarised_turns": len(self._shown.sources)}

    def _add(self, piece: _Piece) -> None:
        if self._pending and sum(each.tokens for each in self._pending) + piece.tokens > self.window_tokens:
            self._summary, self._pending = self._folded(), []
        self._pending.append(piece)

    def _folded(self) -> _Summary:
        """The summary so far rewritten with what has been kept since."""
        before, texts = self._summary, [piece.text for piece in self._pending]
        earlier = [f"Summary so far: {before.text}"] if before.text else []
        reply = ask(self.llm, self.prompts["history_summary/summarise"], texts=[*earlier, *texts], words=self.words)
        if isinstance(reply, ParseFailure):
            meter.note("history_summary.unchanged")
            return before
        return _Summary(reply, union([before.sources, *(piece.turns for piece in self._pending)]), before.windows + 1)
