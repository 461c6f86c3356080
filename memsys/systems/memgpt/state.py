"""The state of a MemGPT: messages, queue, working context and archival store; and the messages that leave a full window."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import Any

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
    """The text as the model sees it, with time and speaker in front."""
    tokens: int
    sources: tuple[str, ...] = ()
    time: datetime | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """A text that the model wrote, and the turns it is based on."""

    text: str
    sources: tuple[str, ...]


@dataclass(slots=True)
class State:
    """Everything that a run of the model may change."""

    blocks: dict[str, Written]
    queue: list[Message] = field(default_factory=list)
    archival: list[Written] = field(default_factory=list)
    archival_vectors: Vectors = field(default_factory=Vectors)
    alerted: bool = False
    hidden: int = 0
    """Number of messages that have left the queue."""
    flushes: int = 0
    hits: dict[str, Item] = field(default_factory=dict)
    """Results of the searches of a read, by id."""
    sent: str | None = None
    """The message that the model sent to the user."""

    def copy(self) -> State:
        """A copy for a read, without hits and sent message."""
        vectors = Vectors()
        for row in self.archival_vectors.matrix:
            vectors.add(row)
        return replace(
            self,
            blocks=dict(self.blocks),
            queue=list(self.queue),
            archival=list(self.archival),
            archival_vectors=vectors,
            hits={},
            sent=None,
        )


def evicted(tokens: Sequence[int], roles: Sequence[str]) -> int:
    """Number of oldest messages that the released code evicts: those worth 75 % of all tokens, but none of the last three.

    The message that exceeds the 75 % stays; where none does, the last candidate stays. If the first message that stays is a user's, it
    is evicted as well; then all tool messages at the front are.
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


def message_item(message: Message) -> Item:
    """A message as a recalled item."""
    kind, level = ("summary", 1) if message.role == "summary" else ("turn", 0)
    return Item(message.id, message.text, 0.0, message.sources, kind, level)


def is_searchable(message: Message) -> bool:
    """Whether a search of the recall store may return the message."""
    return message.role not in ("system", "tool")


def origin(text: str, queue: Iterable[Message]) -> tuple[str, ...]:
    """Turn ids of the turn in view that shares most words with a text; of several, the latest."""
    stems = set(words(text))
    turns = [message for message in queue if message.sources and message.role != "summary"]
    shared = [(len(stems & set(words(turn.text))), place) for place, turn in enumerate(turns)]
    return turns[max(shared)[1]].sources if shared else ()


class CallError(ValueError):
    """A function call that cannot be carried out; the model is shown the message."""


def block_name(call: dict[str, Any]) -> str:
    """The block that a call names; raises CallError where there is no such block."""
    name = call.get("block")
    if name not in ("persona", "human"):
        raise CallError(f"block must be persona or human, found {name!r}")
    return str(name)


def argument_of(call: dict[str, Any], argument: str) -> str:
    """An argument of a call; raises CallError where it is missing or empty."""
    value = str(call.get(argument) or "")
    if not value.strip():
        raise CallError(f"the argument {argument} is missing")
    return value


def day_of(call: dict[str, Any], argument: str) -> date:
    """An argument of a call as a date; raises CallError if it is not a date."""
    try:
        return date.fromisoformat(argument_of(call, argument).strip())
    except ValueError as error:
        raise CallError(f"{argument} must be a date like 2023-05-07") from error
