"""The temporal memory tree of TiMem: its nodes, its calendar windows, and the tree as reads see it (TiMem §3.1)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta

import numpy as np
from dateutil.relativedelta import relativedelta

from data_loaders.schema import Unit
from memsys.dates import MONTHS, written

STEPS = {1: "segment", 2: "session", 3: "day", 4: "week", 5: "month"}
"""What a node of each level stands for; also the names of the prompts."""


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of calendar, both days included."""

    first: date
    last: date


@dataclass(frozen=True, slots=True)
class Span:
    """What a memory stands for."""

    children: int
    """How many nodes of the level below it stands for; those of one level follow each other."""
    sources: tuple[str, ...]
    session: str
    """Empty where it covers several."""
    start: datetime | None
    end: datetime | None
    times: tuple[str, ...]
    """Time texts of its first and last unit, or the one that they share."""

    @property
    def time_text(self) -> str:
        return " – ".join(self.times)


@dataclass(frozen=True, slots=True)
class Node:
    """A memory of one span of the conversation."""

    level: int
    id: str
    span: Span
    text: str
    vector: np.ndarray
    words: Counter[str]
    fallback: bool
    """The model wrote nothing usable."""


@dataclass(slots=True)
class Tree:
    """The nodes of every level in stream order, and what is open at the end."""

    nodes: dict[int, list[Node]] = field(default_factory=lambda: {level: [] for level in STEPS})
    placed: Counter[int] = field(default_factory=Counter)
    """How many nodes of a level have a parent; the others wait for their window to close."""
    pending: list[Unit] = field(default_factory=list)
    """The open segment."""
    turns: int = 0
    """Turns of the open session before that."""
    session: str | None = None
    windows: Mapping[int, Window | None] = field(default_factory=dict)
    """The open day, week and month; None for units without a time."""
    clock: datetime | None = None
    """Time of the last unit."""

    def copy(self) -> Tree:
        nodes = {level: list(found) for level, found in self.nodes.items()}
        return replace(self, nodes=nodes, placed=self.placed.copy(), pending=list(self.pending))

    def waiting(self, level: int) -> list[Node]:
        """The nodes of a level without a parent."""
        return self.nodes[level][self.placed[level] :]


class View:
    """A tree as reads see it; never changed once made."""

    def __init__(self, tree: Tree) -> None:
        self.clock = tree.clock
        self.nodes = [node for level in STEPS for node in tree.nodes[level]]
        self.levels = np.array([node.level for node in self.nodes], dtype=np.intp)
        self.matrix = np.stack([node.vector for node in self.nodes]) if self.nodes else np.empty((0, 0), np.float32)
        self.parents = np.full(len(self.nodes), -1)
        first = 0
        for level in list(STEPS)[:-1]:
            above = first + len(tree.nodes[level])
            counts = np.array([parent.span.children for parent in tree.nodes[level + 1]], dtype=np.intp)
            owners = np.repeat(np.arange(len(counts)) + above, counts)
            self.parents[first : first + len(owners)] = owners
            first = above

    def ancestors(self, index: int) -> Iterator[int]:
        """The nodes above, from parent to month."""
        while (index := int(self.parents[index])) >= 0:
            yield index


def calendar(now: datetime | None) -> dict[int, Window | None]:
    """The windows of levels 3, 4 and 5 that a time lies in: its day, its ISO week as far as it lies in the month, its month."""
    if now is None:
        return {3: None, 4: None, 5: None}
    day = now.date()
    month = Window(day.replace(day=1), day + relativedelta(day=31))
    monday = day - timedelta(days=day.weekday())
    week = Window(max(monday, month.first), min(monday + timedelta(days=6), month.last))
    return {3: Window(day, day), 4: week, 5: month}


def midnight(day: date) -> datetime:
    """The start of a day."""
    return datetime(day.year, day.month, day.day)


def period(level: int, window: Window | None) -> str:
    """A window as the prompts name it."""
    if window is None:
        return "time unknown"
    span = f"{written(window.first)} to {written(window.last)}"
    year, week, _ = window.first.isocalendar()
    month = f"{MONTHS[window.first.month - 1]} {window.first.year}"
    return {3: written(window.first), 4: f"week {week} of {year}, {span}", 5: f"{month}, {span}"}[level]


def ends(texts: Iterable[str]) -> tuple[str, ...]:
    """The first and the last text that says something, or the one that they are."""
    said = [text for text in texts if text]
    return tuple(dict.fromkeys([*said[:1], *said[-1:]]))
