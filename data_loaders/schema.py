"""The records that all packages share: a history, and the questions asked about it.

A memory and a reader see `Unit` and `Question` only. `Gold` is for scorers; passing it to a memory is a type error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

Role = Literal["user", "assistant"]
Supports = Literal["", "recall", "answer"]


class DataError(ValueError):
    """Raw data cannot be used. The message names file, record and field, and the remedy if there is one."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One utterance of a dialogue, or one passage of a document."""

    id: str
    """Unique within its case."""
    speaker: str
    text: str
    """The words spoken; the loader adds the caption of an image."""
    role: Role = "user"
    """In a dialogue of two people, the person listed first is the user."""


@dataclass(frozen=True, slots=True)
class Session:
    """Turns that belong together: one session of a dialogue, or one document."""

    id: str
    turns: tuple[Turn, ...]
    time: datetime | None = None
    time_text: str = ""
    """The time as the data set writes it, because protocols put it into prompts unchanged."""
    heading: str = ""
    """Text at the beginning of every unit of the session (a document's title and source). It is not part of any turn."""


@dataclass(frozen=True, slots=True)
class Unit:
    """The turns that a memory takes in at once; the unit rule determines them (`data_loaders.units`)."""

    id: str
    turns: tuple[Turn, ...]
    session_id: str
    time: datetime | None = None
    time_text: str = ""

    @property
    def text(self) -> str:
        """The turns as lines `speaker: text`; without `speaker: ` if the speaker is empty, as in documents."""
        return "\n".join(f"{turn.speaker}: {turn.text}" if turn.speaker else turn.text for turn in self.turns)

    @property
    def turn_ids(self) -> tuple[str, ...]:
        return tuple(turn.id for turn in self.turns)


@dataclass(frozen=True, slots=True)
class Asker:
    """The person who asks, if several people share a memory: the facts that a memory and a reader may see."""

    id: str
    """As in `Turn.speaker`."""
    role: str = ""
    relations: tuple[str, ...] = ()
    """The data set's facts about this person and others, one line each; turns of the history may overrule them."""

    @property
    def text(self) -> str:
        """The person with the role, and below it the relations as a list."""
        role = f" ({self.role})" if self.role else ""
        return "\n".join([f"{self.id}{role}", *(f"- {relation}" for relation in self.relations)])


@dataclass(frozen=True, slots=True)
class Question:
    """The part of a question that a memory and a reader may see."""

    id: str
    """Unique within its case."""
    text: str
    after: str | None = None
    """Id of the last turn before the question is asked: None for the whole history, "" for before the first turn."""
    options: tuple[str, ...] = ()
    """The options of a multiple-choice question; empty for an open one."""
    time: datetime | None = None
    """The time at which it is asked."""
    time_text: str = ""
    instruction: str = ""
    """The form of the answer, if the benchmark prescribes it per question."""
    asker: Asker | None = None
    """The asker; None if only one person uses the memory. A memory may ignore it (`MemorySystem.uses_asker`)."""

    @property
    def asked_by(self) -> str:
        """A line for prompts that says who asks, with the relations below it; empty where the data set does not say."""
        return "" if self.asker is None else f"Asked by {self.asker.text}"


@dataclass(frozen=True, slots=True)
class Gold:
    """The answer key of one question."""

    answers: tuple[str, ...]
    """Accepted answers; the first is the official one."""
    evidence: tuple[str, ...] = ()
    """Ids of the turns that hold the answer; only turns that exist in the history."""
    category: str = ""
    answerable: bool = True
    """Whether the history answers the question; if not, abstaining is right."""
    trap: str | None = None
    """A plausible wrong answer to a question that is not answerable."""
    detail: Mapping[str, Any] = field(default_factory=dict)
    """Further fields for the benchmark's official scorer (question type, gold memory texts, difficulty, facts …)."""
    groups: tuple[str, ...] = ()
    """Further groups of the question that tables can report in addition to its category (its size, whether its facts conflict …)."""
    supports: Supports = ""
    """The part of this question that another question's score uses: its recall (the reader is not asked), or its answer. It has no score of
    its own then. Empty for a question that is scored."""


@dataclass(frozen=True, slots=True)
class Case:
    """One history and its questions. A new memory is built for each case."""

    id: str
    speakers: tuple[str, ...]
    sessions: tuple[Session, ...]
    questions: tuple[tuple[Question, Gold], ...]
    cluster: str = ""
    """The group that the bootstrap resamples as a whole: the case's own id, or after `oracle` the id of the original case."""
    notes: tuple[str, ...] = ()
    """Irregularities of the raw record that the loader found (missing evidence, repaired ids …), one sentence each."""

    @property
    def turns(self) -> tuple[Turn, ...]:
        return tuple(turn for session in self.sessions for turn in session.turns)
