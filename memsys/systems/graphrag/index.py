"""Building GraphRAG's graph: what a model finds in the text units, descriptions joined, communities, and a report on each."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from data_loaders.schema import Unit
from memsys.embed import Embedder
from memsys.llm import meter
from memsys.llm.ask import ask_all
from memsys.llm.parsing import ParseFailure
from memsys.llm.protocol import LLM
from memsys.prompts import Prompts
from memsys.systems.graphrag.communities import Community, Tables, communities
from memsys.systems.graphrag.graph import (
    Entity,
    Relationship,
    TextUnit,
    extract,
    finalised,
    found_so_far,
    merged,
    text_units,
)
from memsys.tokens import count_tokens, truncate


@dataclass(frozen=True, slots=True)
class Indexing:
    """How a graph is built; the settings of the same name are those of `memsys.systems.graphrag.GraphRag`."""

    released: bool
    """As release 3.1.2 has it (mode `code`), else as 0.3.6."""
    encoding: str
    records: bool
    """Whether replies are delimited records, not JSON."""
    chunk_tokens: int | None
    overlap: int
    entity_types: tuple[str, ...]
    gleanings: int
    description_tokens: int
    description_words: int
    max_cluster_size: int
    use_lcc: bool
    report_tokens: int
    report_words: int


@dataclass(frozen=True, slots=True)
class Report:
    """What a model wrote on a community."""

    rating: float
    content: str


@dataclass(frozen=True, slots=True)
class Graph:
    """One build."""

    units: tuple[TextUnit, ...] = ()
    entities: tuple[Entity, ...] = ()
    relationships: tuple[Relationship, ...] = ()
    incident: tuple[tuple[int, ...], ...] = ()
    """The relationships of each entity."""
    communities: Mapping[int, Community] = field(default_factory=dict)
    reports: Mapping[int, Report] = field(default_factory=dict)
    vectors: np.ndarray | None = None
    """Of the entities, float32 [entities, d]."""
    deepest: int = 0
    """Level of the finest communities."""


class Index:
    """One build of a graph; `failures` counts the replies that could not be used, by step."""

    def __init__(self, llm: LLM, embedder: Embedder, prompts: Prompts, how: Indexing) -> None:
        self._llm, self._embedder, self._prompts, self._how = llm, embedder, prompts, how
        self.failures: Counter[str] = Counter()

    def graph(self, history: Sequence[Unit]) -> Graph:
        """Everything that a search needs, of the whole history."""
        units = text_units(history, self._how.chunk_tokens, self._how.overlap, self._how.encoding)
        found = [extract(replies) for replies in self._extracted(units)]
        entities, relationships = merged(found, blank_ends=not self._how.released)
        if not relationships:
            meter.note("graphrag.no_relationships")
        names = [title for title, _ in entities] + [f"{source}, {target}" for source, target in relationships]
        gathered = [*entities.values(), *relationships.values()]
        texts = self._joined(names, [each.descriptions for each in gathered])
        nodes, edges = finalised(entities, relationships, texts)
        incident: list[list[int]] = [[] for _ in nodes]
        for place, edge in enumerate(edges):
            incident[edge.source].append(place)
            incident[edge.target].append(place)
        divided = communities(nodes, edges, self._how.max_cluster_size, self._how.use_lcc)
        tables = Tables(nodes, edges, divided, self._how.report_tokens, self._how.encoding, self._how.released)
        reports = self._reports(tables, divided)
        vectors = self._embedder.embed([f"{node.title}:{node.description}" for node in nodes]) if nodes else None
        deepest = max((community.level for community in divided.values()), default=0)
        return Graph(tuple(units), nodes, edges, tuple(map(tuple, incident)), divided, reports, vectors, deepest)

    def _extracted(self, units: Sequence[TextUnit]) -> list[list[Any]]:
        """The replies of all passes over each text unit; one that cannot be read is None."""
        types = ", ".join(self._how.entity_types)
        fields = [{"text": unit.text, "time": unit.first.time_text or "unknown", "types": types} for unit in units]
        replies = [[reply] for reply in self._asked("extract", fields)]
        active = list(range(len(units)))
        for left in range(self._how.gleanings - 1, -1, -1):
            again = [fields[at] | {"found": found_so_far(replies[at])} for at in active]
            for at, reply in zip(active, self._asked("glean", again), strict=True):
                replies[at].append(reply)
            if left:
                active = self._with_more(active, [(fields[at], replies[at]) for at in active])
        return replies

    def _asked(self, step: str, fields: Sequence[Mapping[str, str]]) -> list[Any]:
        prompt = self._prompts[f"graphrag/{step}_records" if self._how.records else f"graphrag/{step}"]
        replies = ask_all(self._llm, [(prompt, each) for each in fields])
        for reply in replies:
            if isinstance(reply, ParseFailure):
                self._failed("no_extract")
        return [None if isinstance(reply, ParseFailure) else reply for reply in replies]

    def _with_more(self, active: Sequence[int], said: Sequence[tuple[Mapping[str, str], Sequence[Any]]]) -> list[int]:
        """Those text units of which a model says, with exactly Y, that more is to be found in them."""
        prompt = self._prompts["graphrag/more"]
        asks = [
            (prompt, {**fields, "query": fields["text"], "options": (), "found": found_so_far(replies)})
            for fields, replies in said
        ]
        return [at for at, reply in zip(active, ask_all(self._llm, asks), strict=True) if reply == "Y"]

    def _failed(self, step: str) -> None:
        self.failures[step] += 1
        meter.note(f"graphrag.{step}")

    def _joined(self, names: Sequence[str], descriptions: Sequence[Iterable[str]]) -> list[str]:
        """One description for each name: a single one is kept, several are joined, as many at once as a prompt takes."""
        prompt = self._prompts["graphrag/describe"]
        waiting = [sorted({text for text in texts if text}) for texts in descriptions]
        while active := [place for place, texts in enumerate(waiting) if len(texts) > 1]:
            packs = [waiting[place][: self._taken(waiting[place])] for place in active]
            fields = [
                {"name": names[place], "texts": pack, "words": self._how.description_words}
                for place, pack in zip(active, packs, strict=True)
            ]
            replies = ask_all(self._llm, [(prompt, each) for each in fields])
            for place, pack, reply in zip(active, packs, replies, strict=True):
                if isinstance(reply, ParseFailure):
                    self._failed("joined_descriptions")
                    reply = truncate(" ".join(pack), prompt.max_tokens, self._how.encoding)
                waiting[place] = [reply, *waiting[place][len(pack) :]]
        return [texts[0] if texts else "" for texts in waiting]

    def _taken(self, texts: Sequence[str]) -> int:
        """How many of the texts one prompt takes, two at least."""
        return max(
            2, sum(size <= self._how.description_tokens for size in itertools.accumulate(map(self._count, texts)))
        )

    def _count(self, text: str) -> int:
        return count_tokens(text, self._how.encoding)

    def _reports(self, tables: Tables, divided: Mapping[int, Community]) -> dict[int, Report]:
        """The reports of all communities, written from the deepest level up; one that cannot be read is missing."""
        prompt, reports = self._prompts["graphrag/report"], dict[int, Report]()
        upward = sorted(divided.values(), key=lambda community: (-community.level, community.id))
        for _, group in itertools.groupby(upward, key=lambda community: community.level):
            level, below = list(group), {place: report.content for place, report in reports.items()}
            shown = [{"texts": tables.context(one, below), "words": self._how.report_words} for one in level]
            for community, reply in zip(level, ask_all(self._llm, [(prompt, each) for each in shown]), strict=True):
                if isinstance(reply, ParseFailure):
                    self._failed("no_report")
                else:
                    reports[community.id] = _written(reply)
        return reports


def _written(reply: Mapping[str, Any]) -> Report:
    parts = [f"# {reply['title']}", reply["summary"]]
    for finding in reply["findings"]:
        parts += [f"## {finding['summary']}", finding["explanation"]]
    return Report(float(reply["rating"]), "\n\n".join(parts))
