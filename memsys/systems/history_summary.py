"""A summary of the whole history and nothing else: the lossy baseline of MemGPT §3.1.1, cited in Table 1 of MemTree.

It is to mimic recursive summaries; the papers do not say how it is made. Here the history is read in windows of `window_tokens`, and each
window rewrites the summary so far; a history that fits into one window is summarised in one call. Windows end between units; a longer
unit is cut.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from data_loaders.schema import Question, Unit
from memsys.interface import Item, MemorySystem, Recall, dated, positive, union
from memsys.llm.ask import ask
from memsys.llm.protocol import LLM
from memsys.prompts import Prompts
from memsys.tokens import count_tokens, split_tokens


@dataclass(frozen=True, slots=True)
class _Summary:
    """A summary, the turns it covers and the number of windows it was written from."""

    text: str = ""
    sources: tuple[str, ...] = ()
    windows: int = 0


@dataclass(frozen=True, slots=True)
class _Piece:
    """A unit, or a part of a unit that is longer than a window."""

    text: str
    tokens: int
    turns: tuple[str, ...]


class HistorySummary(MemorySystem):
    """Recalls one item, the summary of everything as of the last `consolidate`.

    There is one call for every full window while units are written, and one in `consolidate` for the units since. Where a reply cannot
    be used, the summary before it stays, and covers fewer turns.

    Args:
        window_tokens: maximum number of tokens of the history that one call reads.
        words: length of the summary that the prompt asks for.

    Raises:
        ValueError: a number below 1.
    """

    PROMPTS: ClassVar = ("history_summary",)

    def __init__(self, llm: LLM, prompts: Prompts, window_tokens: int = 6000, words: int = 300) -> None:
        self.llm, self.prompts = llm, prompts
        self.window_tokens, self.words = positive("window_tokens", window_tokens), positive("words", words)
        self._summary = _Summary()
        self._pending: list[_Piece] = []
        self._current = _Summary()
        self._stale = False

    def write(self, unit: Unit) -> None:
        """Keep the unit for the next window; one call for each full window."""
        if any(turn.text.strip() for turn in unit.turns):
            for text in split_tokens(dated(unit.text, unit.time_text), self.window_tokens):
                piece = _Piece(text, count_tokens(text), unit.turn_ids)
                if self._pending and sum(each.tokens for each in self._pending) + piece.tokens > self.window_tokens:
                    self._summary, self._pending = self._rewritten(), []
                self._pending.append(piece)
            self._stale = True

    def consolidate(self) -> None:
        """Summarise the open window provisionally: it stays open."""
        if self._stale:
            self._current = self._rewritten()
            self._stale = False

    def read(self, question: Question) -> Recall:
        if not self._current.text:
            return Recall(())
        return Recall((Item("summary", self._current.text, 1.0, self._current.sources, "summary", 1),))

    @property
    def held(self) -> int:
        return int(bool(self._current.text))

    def report(self) -> dict[str, Any]:
        return {"windows": self._current.windows, "summarised_turns": len(self._current.sources)}

    def _rewritten(self) -> _Summary:
        """The summary so far, rewritten with the open window."""
        before, texts = self._summary, [piece.text for piece in self._pending]
        earlier = [f"Summary so far: {before.text}"] if before.text else []
        prompt, event = self.prompts["history_summary/summarise"], "history_summary.unchanged"
        reply = ask(self.llm, prompt, texts=[*earlier, *texts], words=self.words, noted=event)
        if not reply:
            return before
        return _Summary(reply, union([before.sources, *(piece.turns for piece in self._pending)]), before.windows + 1)
