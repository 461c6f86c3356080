"""The records that everything else speaks: one history, and the questions asked about it.

A memory and a reader see `Unit` and `Question` only. `Gold` is for scorers: handing it to a memory is a type error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

Role = Literal["user", "assistant"]


class DataError(ValueError):
    """Raw data that cannot be used; the message names file, record and field, and the remedy where there is one."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One utterance (or one passage of a document)."""

    id: str
    """Unique within its case."""
    speaker: str
    text: str
    """What was said; an image caption is already folded in by the loader."""
    role: Role = "user"
    """Of two people the first listed is the user."""


@dataclass(frozen=True, slots=True)
class Session:
    """Turns that belong together: a sitting of a dialogue, or a document."""

    id: str
    turns: tuple[Turn, ...]
    time: datetime | None = None
    time_text: str = ""
    """The time verbatim as the data set writes it, because protocols paste it into prompts."""
    heading: str = ""
    """What every unit of the session opens with (a document's title and source); it is in no turn."""


@dataclass(frozen=True, slots=True)
class Unit:
    """What a memory ingests at once; which turns make one is the unit rule's choice (`data_loaders.units`)."""

    id: str
    turns: tuple[Turn, ...]
    session_id: str
    time: datetime | None = None
    time_text: str = ""

    @property
    def text(self) -> str:
        """The turns as `speaker: text` lines (a document's passage, whose speaker is empty, as its text alone)."""
        return "\n".join(f"{turn.speaker}: {turn.text}" if turn.speaker else turn.text for turn in self.turns)

    @property
    def turn_ids(self) -> tuple[str, ...]:
        return tuple(turn.id for turn in self.turns)


@dataclass(frozen=True, slots=True)
class Question:
    """All that a memory or a reader may see of a question."""

    id: str
    """Unique within its case."""
    text: str
    after: str | None = None
    """Id of the last turn lived through before it is asked; None means after the whole history."""
    options: tuple[str, ...] = ()
    time: datetime | None = None
    time_text: str = ""
    instruction: str = ""
    """How the benchmark wants the answer put, when it says so per question."""


@dataclass(frozen=True, slots=True)
class Gold:
    """The answer key of one question."""

    answers: tuple[str, ...]
    """Alternatives, any of which is right; the first is the official one."""
    evidence: tuple[str, ...] = ()
    """Turn ids that hold the answer, as far as they exist in the history."""
    category: str = ""
    answerable: bool = True
    trap: str | None = None
    """A tempting wrong answer, for questions that should be declined."""
    detail: Mapping[str, Any] = field(default_factory=dict)
    """What one benchmark's official scorer needs beside (question type, gold memory texts, difficulty, facts …)."""


@dataclass(frozen=True, slots=True)
class Case:
    """One history and its questions: the unit of memory and of scheduling."""

    id: str
    speakers: tuple[str, ...]
    sessions: tuple[Session, ...]
    questions: tuple[tuple[Question, Gold], ...]
    cluster: str = ""
    """What the bootstrap resamples: the case's own id, or the original case's after `oracle`."""
    notes: tuple[str, ...] = ()
    """What the loader found odd in the raw record (dangling evidence, repaired ids …), one sentence each."""

    @property
    def turns(self) -> tuple[Turn, ...]:
        return tuple(turn for session in self.sessions for turn in session.turns)
