"""The long-term memory of MemoryOS: a profile of the user, and facts about the user and the assistant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from data_loaders.schema import Role, Unit
from memsys.embed import Embedder
from memsys.interface import Item, NodeView, dated, period, period_text, spoken, union
from memsys.llm import meter
from memsys.llm.ask import ParseFailure, ask, ask_all
from memsys.llm.protocol import LLM
from memsys.prompts import Prompts
from memsys.systems.memoryos.midterm import Page
from memsys.vectors import Vectors, best


@dataclass(frozen=True, slots=True)
class Knowledge:
    """A profile, a fact or a segment's summary, and the pages it was drawn from."""

    text: str
    sources: tuple[str, ...]
    first: Unit
    last: Unit

    def item(self, name: str, kind: str, score: float) -> Item:
        """The text as a recalled item, with the period of its pages."""
        return Item(name, dated(self.text, period_text(self.first, self.last)), score, self.sources, kind, level=2)

    def view(self, name: str, kind: str, vector: np.ndarray | None, level: int = 2) -> NodeView:
        """The text as a node without parents."""
        return NodeView(name, (), level, kind, self.text, vector, self.sources, *period((self.first, self.last)))


def knowledge(text: str, pages: Sequence[Page]) -> Knowledge:
    """A text that was drawn from pages in the order of time."""
    return Knowledge(text, union(page.unit.turn_ids for page in pages), pages[0].unit, pages[-1].unit)


class Facts:
    """Facts about one side. Beyond `limit` the oldest facts are ignored; None for no limit."""

    def __init__(self, kind: str, limit: int | None) -> None:
        self._kind, self._limit = kind, limit
        self._facts: list[Knowledge] = []
        self._vectors = Vectors()

    def __len__(self) -> int:
        return len(self._facts) - self._oldest

    @property
    def _oldest(self) -> int:
        """Number of the oldest fact that counts."""
        return max(0, len(self._facts) - self._limit) if self._limit is not None else 0

    def add(self, facts: Sequence[Knowledge], vectors: np.ndarray) -> None:
        """Append facts with their vectors, float32 [facts, d]."""
        self._facts += facts
        for vector in vectors:
            self._vectors.add(vector)

    def items(self, query: np.ndarray, k: int | None, threshold: float) -> list[Item]:
        """The `k` facts most similar to the query (None: all) whose cosine is at least `threshold`, best first."""
        similarities = self._vectors.similarities(query)[self._oldest :]
        ranked = best(similarities, len(similarities) if k is None else k)
        return [
            self._facts[self._oldest + place].item(
                f"{self._kind}-{self._oldest + place}", self._kind, float(similarities[place])
            )
            for place in ranked
            if similarities[place] >= threshold
        ]

    def views(self) -> Iterator[NodeView]:
        """The facts as nodes, the oldest first."""
        for number in range(self._oldest, len(self._facts)):
            vector = self._vectors.matrix[number].copy()
            yield self._facts[number].view(f"{self._kind}-{number}", self._kind, vector)


class LongTerm:
    """Profile and facts; `failures` counts the replies that could not be used, by outcome."""

    def __init__(self, llm: LLM, embedder: Embedder, prompts: Prompts, limit: int | None) -> None:
        self._llm, self._embedder, self._prompts = llm, embedder, prompts
        self.profile: Knowledge | None = None
        self.facts = {kind: Facts(kind, limit) for kind in ("user_fact", "assistant_fact")}
        self.failures: Counter[str] = Counter()

    def __len__(self) -> int:
        return sum(map(len, self.facts.values())) + (self.profile is not None)

    def learn(self, pages: Sequence[Page]) -> None:
        """Read pages for the profile and for facts about both sides: two calls, and one more to merge profiles."""
        whole = dialogue(pages)
        asks = [
            (self._prompts["memoryos/profile"], {"text": whole, "user": _speaker(pages, "user")}),
            (self._prompts["memoryos/assistant"], {
                "text": dialogue(pages, "assistant"), "dialogue": whole, "assistant": _speaker(pages, "assistant"),
            }),
        ]  # fmt: skip
        user_reply, assistant_reply = ask_all(self._llm, asks)
        if isinstance(user_reply, ParseFailure):
            self._failed("kept_old_profile")
        else:
            self._update_profile(user_reply["profile"].strip(), pages)
            self._add_facts("user_fact", user_reply["facts"], pages)
        if isinstance(assistant_reply, ParseFailure):
            self._failed("no_assistant_facts")
        else:
            self._add_facts("assistant_fact", assistant_reply["facts"], pages)

    def _update_profile(self, text: str, pages: Sequence[Page]) -> None:
        """Store the text as the profile, merged with the old profile where there is one."""
        if not text:
            return
        new = knowledge(text, pages)
        if self.profile is None:
            self.profile = new
            return
        old = self.profile
        reply = ask(self._llm, self._prompts["memoryos/merge"], texts=(old.text, text), old=old.text, new=text)
        if isinstance(reply, ParseFailure):
            self._failed("kept_old_profile")
            return
        self.profile = Knowledge(reply, union((old.sources, new.sources)), old.first, new.last)

    def _add_facts(self, kind: str, lines: Iterable[str], pages: Sequence[Page]) -> None:
        texts = [text for line in lines if (text := line.strip(" -*\n")) and text.casefold() != "none"]
        if texts:
            self.facts[kind].add([knowledge(text, pages) for text in texts], self._embedder.embed(texts))

    def _failed(self, outcome: str) -> None:
        self.failures[outcome] += 1
        meter.note(f"memoryos.{outcome}")


def dialogue(pages: Sequence[Page], *roles: Role) -> list[str]:
    """The pages as dated texts; where roles are given, only the turns that have one of them."""
    texts = []
    for page in pages:
        turns = [turn for turn in page.unit.turns if not roles or turn.role in roles]
        texts.append(dated("\n".join(map(spoken, turns)), page.unit.time_text))
    return texts


def _speaker(pages: Sequence[Page], role: Role) -> str:
    """The name of the speaker with that role; `the <role>` where it has no name."""
    speakers = (turn.speaker for page in pages for turn in page.unit.turns if turn.role == role and turn.speaker)
    return next(speakers, f"the {role}")
