"""One walk of MemWalker down its tree: the nodes, the state of the search, and the parsing of an action from a reply."""

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
class WalkNode:
    """A segment (level 1) or the summary of a run of nodes of the level below."""

    id: str
    level: int
    start: int
    """Index of the first unit that it covers."""
    stop: int
    """Index after the last unit that it covers."""
    summary: str
    text: str = ""
    """The passage itself; empty for inner nodes."""
    children: tuple[WalkNode, ...] = ()
    truncated: bool = False
    """True when no summary could be parsed; the summary is then the start of the texts."""


@dataclass(slots=True)
class Walk:
    """The state of one search from the root."""

    question: Question
    path: list[WalkNode]
    """Nodes from the root to the present node."""
    outcome: str = ""
    """The outcome of the walk; empty while it goes on."""
    answer: str = ""
    """The answer at the first segment to which the walk committed."""
    visits: list[str] = field(default_factory=list)
    """Ids of the nodes in order of visit, with repetitions."""
    background: list[WalkNode] = field(default_factory=list)
    """The working memory: nodes passed and segments rejected, the root first."""
    closed: set[str] = field(default_factory=set)
    """Ids of the nodes that are not offered again."""
    leaves: list[WalkNode] = field(default_factory=list)
    """Segments read, in order of their first visit."""
    kept: list[WalkNode] = field(default_factory=list)
    """Segments to which the walk has committed."""
    counts: Counter[str] = field(default_factory=Counter)
    """Numbers of `calls` (without retries), `reverts`, `forced` moves and `invalid` replies."""

    def move(self, child: WalkNode) -> None:
        """Move to a child; the present node enters the working memory."""
        self.remember(self.path[-1])
        self.path.append(child)
        self.visits.append(child.id)

    def leave(self) -> None:
        """Go back to the parent; at the root, the search ends."""
        self.path.pop()
        if self.path:
            self.visits.append(self.path[-1].id)
        else:
            self.outcome = "exhausted"

    def remember(self, node: WalkNode) -> None:
        """Add a node to the working memory, once."""
        if all(other.id != node.id for other in self.background):
            self.background.append(node)


def action_of(text: str) -> tuple[int | None, str]:
    """Parse the action (None if there is none) and the answer from a reply.

    The reply is a JSON object with the keys action and answer, or labelled text, in which the last labelled number counts.
    """
    value = read_json(text)
    if isinstance(value, dict) and isinstance(action := value.get("action"), int) and not isinstance(action, bool):
        answer = value.get("answer", "")
        return action, str(answer).strip() if isinstance(answer, str | int | float) else ""
    labels = list(_ACTION.finditer(text))
    if not labels:
        return None, ""
    answer = _ANSWER.search(text, labels[-1].end())
    return int(labels[-1][1].replace("−", "-")), answer[1].strip() if answer else ""
