"""What a MemGPT holds: messages, the queue and the blocks that a run may change, and which messages leave when the window is full."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from memsys.interface import Item
from memsys.systems.bm25 import words
from memsys.vectors import Vectors


@dataclass(frozen=True, slots=True)
class Message:
    """One entry of the queue or of the recall store."""

    id: str
    role: str
    """user, assistant, system, tool or summary."""
    text: str
    """As the model sees it, speaker and time in front."""
    tokens: int
    sources: tuple[str, ...] = ()
    time: datetime | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """A piece of text that the model wrote, and the turns it stands for."""

    text: str
    sources: tuple[str, ...]


@dataclass(slots=True)
class State:
    """All that a run may change."""

    blocks: dict[str, Written]
    queue: list[Message] = field(default_factory=list)
    archival: list[Written] = field(default_factory=list)
    archival_vectors: Vectors = field(default_factory=Vectors)
    alerted: bool = False
    hidden: int = 0
    """Messages that have left the queue."""
    flushes: int = 0
    found: dict[str, Item] = field(default_factory=dict)
    """Search hits of a read."""
    sent: str | None = None

    def copy(self) -> State:
        vectors = Vectors()
        for row in self.archival_vectors.matrix:
            vectors.add(row)
        return replace(
            self,
            blocks=dict(self.blocks),
            queue=list(self.queue),
            archival=list(self.archival),
            archival_vectors=vectors,
            found={},
            sent=None,
        )


def evicted(tokens: Sequence[int], roles: Sequence[str]) -> int:
    """How many of the oldest messages the released code evicts: those worth 75 % of all tokens, but none of the last three.

    The message that passes the 75 % stays, and so does the last of the candidates where none of them passes; then the first that stays
    is neither the user's (one is skipped) nor a tool's (all are).
    """
    target, count, total = int(0.75 * sum(tokens)), 0, 0
    for place, size in enumerate(tokens[: max(0, len(tokens) - 3)]):
        count, total = place, total + size
        if total > target:
            break
    if count < len(roles) and roles[count] == "user":
        count += 1
    while count < len(roles) and roles[count] == "tool":
        count += 1
    return count


def recalled(message: Message) -> Item:
    kind, level = ("summary", 1) if message.role == "summary" else ("turn", 0)
    return Item(message.id, message.text, 0.0, message.sources, kind, level)


def speaks(message: Message) -> bool:
    """Whether a search of the recall store may find it."""
    return message.role not in ("system", "tool")


def origin(text: str, queue: Iterable[Message]) -> tuple[str, ...]:
    """The turn in view that shares most words with a text, the latest of equals."""
    stems = set(words(text))
    turns = [message for message in queue if message.sources and message.role != "summary"]
    nearest = max(enumerate(turns), key=lambda each: (len(stems & set(words(each[1].text))), each[0]), default=None)
    return nearest[1].sources if nearest else ()
