"""The temporal memory tree of TiMem: its nodes, its calendar windows, and a read-only view of it (TiMem §3.1)."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta

import numpy as np
from dateutil.relativedelta import relativedelta

from data_loaders.schema import Unit
from memsys.dates import MONTHS, written
from memsys.vectors import best

STEPS = {1: "segment", 2: "session", 3: "day", 4: "week", 5: "month"}
"""Name of each level; also the name of its prompt."""


@dataclass(frozen=True, slots=True)
class Window:
    """A range of calendar days, both ends included."""

    first: date
    last: date


@dataclass(frozen=True, slots=True)
class Span:
    """The part of the conversation that a memory covers."""

    children: int
    """Number of nodes of the level below that it covers (units, at level 1); they are consecutive."""
    sources: tuple[str, ...]
    session: str
    """Its session; empty if it covers several."""
    start: datetime | None
    end: datetime | None
    times: tuple[str, ...]
    """Time texts of its first and last unit, or one text when they are equal."""

    @property
    def time_text(self) -> str:
        """The time texts as one, `first – last`."""
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
    """True when no reply was usable and the text is the fallback."""


@dataclass(slots=True)
class Tree:
    """The nodes of every level in stream order, and the open segment, session and windows."""

    nodes: dict[int, list[Node]] = field(default_factory=lambda: {level: [] for level in STEPS})
    placed: Counter[int] = field(default_factory=Counter)
    """Number of nodes of each level that have a parent; the others wait for their window to close."""
    pending: list[Unit] = field(default_factory=list)
    """Units of the open segment."""
    turns: int = 0
    """Number of turns of the open session before the open segment."""
    session: str | None = None
    windows: Mapping[int, Window | None] = field(default_factory=dict)
    """The open day, week and month by level; None for units without a time."""
    clock: datetime | None = None
    """Time of the last unit."""

    def copy(self) -> Tree:
        """Copy the tree, so that either can grow without the other."""
        nodes = {level: list(level_nodes) for level, level_nodes in self.nodes.items()}
        return replace(self, nodes=nodes, placed=self.placed.copy(), pending=list(self.pending))

    def waiting(self, level: int) -> list[Node]:
        """The nodes of a level without a parent."""
        return self.nodes[level][self.placed[level] :]


class View:
    """A read-only view of a tree: its nodes in one list, with arrays of levels, parents and vectors."""

    def __init__(self, tree: Tree) -> None:
        self.clock = tree.clock
        self.nodes = [node for level in STEPS for node in tree.nodes[level]]
        self.levels = np.array([node.level for node in self.nodes], dtype=np.intp)
        self.matrix = np.stack([node.vector for node in self.nodes]) if self.nodes else np.empty((0, 0), np.float32)
        """Vectors of the nodes, float32 [n, d]."""
        self.parents = np.full(len(self.nodes), -1)
        """Index of each node's parent, [n]; -1 for none."""
        first = 0
        for level in list(STEPS)[:-1]:
            above = first + len(tree.nodes[level])
            counts = np.array([parent.span.children for parent in tree.nodes[level + 1]], dtype=np.intp)
            owners = np.repeat(np.arange(len(counts)) + above, counts)
            self.parents[first : first + len(owners)] = owners
            first = above

    def ancestors(self, index: int) -> Iterator[int]:
        """Indices of a node's ancestors, from its parent up."""
        while (index := int(self.parents[index])) >= 0:
            yield index


def calendar(now: datetime | None) -> dict[int, Window | None]:
    """The windows of levels 3, 4 and 5 that contain a time: its day, its ISO week cut to the month, and its month."""
    if now is None:
        return {3: None, 4: None, 5: None}
    day = now.date()
    month = Window(day.replace(day=1), day + relativedelta(day=31))
    monday = day - timedelta(days=day.weekday())
    week = Window(max(monday, month.first), min(monday + timedelta(days=6), month.last))
    return {3: Window(day, day), 4: week, 5: month}


def midnight(day: date) -> datetime:
    """Time 00:00 of a day."""
    return datetime(day.year, day.month, day.day)


def period(level: int, window: Window | None) -> str:
    """Text of a window in the prompts."""
    if window is None:
        return "time unknown"
    span = f"{written(window.first)} to {written(window.last)}"
    year, week, _ = window.first.isocalendar()
    month = f"{MONTHS[window.first.month - 1]} {window.first.year}"
    return {3: written(window.first), 4: f"week {week} of {year}, {span}", 5: f"{month}, {span}"}[level]


def ends(texts: Iterable[str]) -> tuple[str, ...]:
    """The first and the last text that is not empty; one text when they are equal."""
    filled = [text for text in texts if text]
    return tuple(dict.fromkeys([*filled[:1], *filled[-1:]]))


_K1, _B = 1.5, 0.75


def words(text: str) -> list[str]:
    """Split a text into lower-case words for the lexical channel."""
    return re.findall(r"\w+", text.lower())


def lexical(documents: Sequence[Mapping[str, int]], query: Sequence[str]) -> np.ndarray:
    """BM25 scores of documents (word -> count), float64 [n], with the idf ln(N/df) without smoothing: a word in all documents adds 0.

    `memsys.systems.bm25` cannot be used here, because the searched documents depend on settings of the read.
    """
    lengths = np.array([sum(document.values()) for document in documents], dtype=np.float64)
    penalty = _K1 * (1 - _B + _B * lengths / max(1.0, float(lengths.mean())))
    scores = np.zeros(len(documents))
    for word in query:
        counts = np.array([document.get(word, 0) for document in documents], dtype=np.float64)
        if holding := np.count_nonzero(counts):
            scores += math.log(len(documents) / holding) * counts * (_K1 + 1) / (counts + penalty)
    return scores


def fused(semantic: np.ndarray, keywords: np.ndarray, weight: float, top: int | None) -> np.ndarray:
    """Weighted sum of both channels, each divided by its maximum (TiMem Eq. 7), float64 [n].

    Args:
        semantic: cosines, [n].
        keywords: BM25 scores, [n].
        weight: weight of the cosines; the BM25 scores have the rest.
        top: if given, a channel counts only for its best `top` segments, and segments in neither list score minus infinity (as
            released). None scores all segments by both channels.
    """
    top = len(semantic) if top is None else top
    scores = np.full(len(semantic), -math.inf)
    lists = [
        (weight, semantic, best(semantic, top)),
        (1 - weight, keywords, [index for index in best(keywords, top) if keywords[index] > 0]),
    ]
    for _, _, listed in lists:
        scores[listed] = 0.0
    for share, channel, listed in lists:
        if listed:
            peak = channel[listed[0]]
            scores[listed] += share * (channel[listed] / peak if peak > 0 else channel[listed])
    return scores
