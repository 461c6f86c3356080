"""What a memory system is: three methods, and the records that they exchange.

A memory is built fresh for every case and receives the services that its `__init__` names, by keyword:
`llm` (`memsys.llm.protocol.LLM`), `probe` (an LLM that returns log-probabilities), `embedder` (`memsys.embed.Embedder`),
`prompts` (`memsys.prompts.Prompts`), `rng` (`numpy.random.Generator`, seeded per case). Everything else in the signature
is a setting and comes from `conf/memory/<name>.yaml`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, TypeVar

import numpy as np

from data_loaders.schema import Question, Turn, Unit

Mode = TypeVar("Mode", bound=str)


@dataclass(frozen=True, slots=True)
class Item:
    """One piece of recalled text."""

    id: str
    text: str
    """As the reader shows it; `dated` puts the time in front where the time is known."""
    score: float
    sources: tuple[str, ...]
    """Turn ids it stands for, also when rewritten: a summary carries the union of its descendants'."""
    kind: str = "leaf"
    level: int = 0
    """0 = raw unit; higher = more abstract."""


@dataclass(frozen=True, slots=True)
class Recall:
    """What a memory returns for a question, in the order in which the reader shows it."""

    items: tuple[Item, ...]
    answer: str | None = None
    """Only from systems that answer in their own loop."""
    aborted: str = ""
    """Why a search ended without a result: an outcome of its own, never an abstention."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node of a memory's structure, for the structure tools."""

    id: str
    parents: tuple[str, ...]
    """Several for soft clusters, none for a root."""
    level: int
    kind: str
    text: str
    vector: np.ndarray | None
    """float32 [d], unit length."""
    sources: tuple[str, ...]
    start: datetime | None = None
    end: datetime | None = None


class MemorySystem(ABC):
    """Fed a history unit by unit, read with questions.

    No wall clock and no global random state inside: time comes from units and questions, randomness from `rng`.
    """

    READ_KNOBS: ClassVar[tuple[str, ...]] = ()
    """Attributes a sweep may set on `copy.copy(memory)` between reads of one build."""
    PROMPTS: ClassVar[tuple[str, ...]] = ()
    """Folders of `memsys/prompts` it may use; their contents are part of a run's identity."""
    MODES: ClassVar[tuple[str, ...]] = ()
    """What its setting `mode` may be, the default first; empty = it has no such setting."""
    UNIT: ClassVar[dict[str, Any]] = {}
    """Its own unit rule, e.g. `{"rule": "utterance"}`; empty = the data set's default. A table may override it."""
    EMBEDS_UNITS: ClassVar[bool] = True
    """False when it never embeds a unit's own text: then the run loop does not embed them in advance."""
    OFFLINE: ClassVar[bool] = False
    """True when `consolidate` rebuilds everything: a new unit costs a whole build."""
    HIDDEN_ROOT: ClassVar[bool] = False
    """True when its topmost nodes hang from a root that `nodes` never yields, not even above a single node."""
    REHEARSED: ClassVar[bool] = True
    """False when its writes leave this process: before the first build is timed, no short one is made with offline engines."""
    PAST_K: ClassVar[str] = ""
    """Why a recall may hold more items than the setting `k`; empty = it may not."""

    @abstractmethod
    def write(self, unit: Unit) -> None:
        """Take in the next unit, in stream order."""

    def end_session(self, session_id: str) -> None:  # noqa: B027 - an optional hook
        """Told after the last unit of a session."""

    def consolidate(self) -> None:  # noqa: B027 - an optional hook
        """Told before questions are read. Provisional: writes may follow, as if it had not been called."""

    @abstractmethod
    def read(self, question: Question) -> Recall:
        """Recall what bears on the question. Leaves the memory as it was; safe from several threads at once."""

    def nodes(self) -> Iterator[NodeView]:
        """The structure as it stands; nothing where there is none."""
        return iter(())

    @property
    def held(self) -> int:
        """Number of entries that a read chooses from (reported as memory size); 0 where nothing is counted."""
        return 0

    @property
    def asks_logprobs(self) -> bool:
        """Whether its reads need the log-probabilities of the service `probe`; looked at only where it takes that service."""
        return True

    def report(self) -> dict[str, Any]:
        """Numbers of the build worth keeping (node counts, rates of fallbacks …), JSON-serialisable; written once per case."""
        return {}


def known_mode(memory: MemorySystem, mode: Mode) -> Mode:
    """The mode itself, where it is one of the memory's `MODES`.

    Raises:
        ValueError: it is not.
    """
    if mode not in memory.MODES:
        raise ValueError(f"mode must be one of {', '.join(memory.MODES)}, found {mode!r}")
    return mode


def positive(name: str, value: int) -> int:
    """The value of a setting that must be at least 1.

    Raises:
        ValueError: it is not; the message names the setting.
    """
    if value < 1:
        raise ValueError(f"{name} must be at least 1, found {value}")
    return value


def one_of(name: str, value: str, choices: Sequence[str]) -> str:
    """The value of a setting that must be one of several words.

    Raises:
        ValueError: it is none of `choices`; the message names the setting.
    """
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, found {value!r}")
    return value


def dated(text: str, time_text: str) -> str:
    """Text with its time in front, the form in which every memory here shows dates to the reader."""
    return f"[{time_text}] {text}" if time_text else text


def period_text(first: Unit, last: Unit) -> str:
    """The times of two units as one text, `first – last`; a single time where both are the same or one is unknown."""
    return " – ".join(dict.fromkeys(unit.time_text for unit in (first, last) if unit.time_text))


def period(units: Iterable[Unit]) -> tuple[datetime | None, datetime | None]:
    """The earliest and the latest known time of the units; (None, None) where none is known."""
    times = [unit.time for unit in units if unit.time is not None]
    return min(times, default=None), max(times, default=None)


def spoken(turn: Turn) -> str:
    """A turn as `speaker: text`, or its text alone where the speaker has no name."""
    return f"{turn.speaker}: {turn.text}" if turn.speaker else turn.text


def unit_item(unit: Unit, score: float = 0.0, *, kind: str = "leaf") -> Item:
    """A raw unit as a recalled item."""
    return Item(unit.id, dated(unit.text, unit.time_text), score, unit.turn_ids, kind)


def union(sources: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """Turn ids of several pieces, each once, in first-seen order."""
    return tuple(dict.fromkeys(turn for piece in sources for turn in piece))
