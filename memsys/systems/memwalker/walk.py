"""One walk of MemWalker down its tree: the nodes, what the search has seen and keeps, and the action that a reply names."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from data_loaders.schema import Question
from memsys.llm.parsing import read_json

BACK, COMMIT = -1, -2
_ACTION = re.compile(r"\baction\b[\s:=*\"'`(\[]*([-−]?\d+)(?![\d.]*\d)", re.IGNORECASE)
_ANSWER = re.compile(r"\banswer\b[*\"'`]*\s*[:=]\s*(.*)", re.IGNORECASE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Node:
    """A segment (level 1) or the summary of a run of nodes of the level below."""

    id: str
    level: int
    start: int
    stop: int
    """It covers the units from `start` up to, but without, `stop`."""
    summary: str
    text: str = ""
    """The passage itself; empty for inner nodes."""
    children: tuple[Node, ...] = ()
    truncated: bool = False
    """The summary could not be had: it is the start of the texts."""


@dataclass(slots=True)
class Walk:
    """One search from the root, as it went."""

    question: Question
    path: list[Node]
    """From the root to the node where the search is."""
    outcome: str = ""
    answer: str = ""
    """Of the first segment committed to."""
    visits: list[str] = field(default_factory=list)
    """Every node moved to, in order, each time."""
    background: list[Node] = field(default_factory=list)
    """The working memory: nodes passed and segments rejected, the root first."""
    closed: set[str] = field(default_factory=set)
    """Nodes that are not offered again."""
    leaves: list[Node] = field(default_factory=list)
    """Segments read, in order of their first visit."""
    kept: list[Node] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """`calls` (logical), `reverts`, `forced` moves, `invalid` replies."""

    def move(self, child: Node) -> None:
        self.remember(self.path[-1])
        self.path.append(child)
        self.visits.append(child.id)

    def leave(self) -> None:
        """Back to the parent; from the root there is no way back, and the search is over."""
        self.path.pop()
        if self.path:
            self.visits.append(self.path[-1].id)
        else:
            self.outcome = "exhausted"

    def remember(self, node: Node) -> None:
        if all(other.id != node.id for other in self.background):
            self.background.append(node)


def action_of(text: str) -> tuple[int | None, str]:
    """The action that a reply names, None where it names none, and the answer given with it.

    A JSON object with the keys action and answer, or labelled text, in which the last number after a label counts.
    """
    value = read_json(text)
    if isinstance(value, dict) and isinstance(action := value.get("action"), int) and not isinstance(action, bool):
        answer = value.get("answer", "")
        return action, str(answer).strip() if isinstance(answer, str | int | float) else ""
    found = list(_ACTION.finditer(text))
    if not found:
        return None, ""
    answer = _ANSWER.search(text, found[-1].end())
    return int(found[-1][1].replace("−", "-")), answer[1].strip() if answer else ""
