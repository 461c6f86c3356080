"""Building GraphRAG's graph: extraction from the text units, joined descriptions, communities, and a report on each."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from data_loaders.schema import Unit
from memsys.embed import Embedder
from memsys.llm import meter
from memsys.llm.ask import ParseFailure, ask_all
from memsys.llm.protocol import LLM
from memsys.prompts import Prompts
from memsys.settings import Positive, Settings
from memsys.systems.graphrag.communities import Community, Tables, communities
from memsys.systems.graphrag.graph import (
    Entity,
    Relationship,
    TextUnit,
    extract,
    extracts_text,
    finalised,
    merged,
    text_units,
)
from memsys.tokens import count_tokens, truncate


@dataclass(frozen=True)
class Indexing(Settings):
    """Settings of a build.

    Raises:
        ValueError: an unknown choice, or an overlap that is not smaller than a text unit.
    """

    mode: Literal["paper", "code"] = "paper"
    """`paper` or `code`, see the package."""
    format: Literal["json", "records"] = "json"
    """Format of the extraction's replies, `json` or `records`."""
    chunk_tokens: int | None = 1200
    """Tokens of a text unit; None makes every unit a text unit."""
    overlap: int = 100
    """Number of tokens that a text unit repeats from the unit before."""
    entity_types: Sequence[str] = ("organization", "person", "geo", "event")
    """Types of entities that the extraction asks for."""
    gleanings: int = 1
    """Number of further extractions from the same text unit."""
    description_tokens: int = 4000
    """Maximum number of tokens of the descriptions that one call joins."""
    description_words: int = 500
    """Length of a joined description that the prompt asks for."""
    max_cluster_size: Positive = 10
    """Communities with more entities are divided again, where Leiden finds a division."""
    use_lcc: bool = True
    """Find communities in the largest connected component only."""
    report_tokens: int = 8000
    """Maximum number of tokens of the tables from which a report is written."""
    report_words: int = 2000
    """Length of a report that the prompt asks for."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chunk_tokens is not None and not 0 <= self.overlap < self.chunk_tokens:
            raise ValueError(
                f"overlap {self.overlap} must be at least 0 and smaller than chunk_tokens {self.chunk_tokens}"
            )

    @property
    def encoding(self) -> str:
        """The tokenizer of the releases: 3.1.2 for `code`, 0.3.6 for `paper`."""
        return "o200k_base" if self.mode == "code" else "cl100k_base"


@dataclass(frozen=True, slots=True)
class Report:
    """A model's report on a community."""

    rating: float
    content: str


@dataclass(frozen=True, slots=True)
class Graph:
    """The result of one build."""

    units: tuple[TextUnit, ...] = ()
    entities: tuple[Entity, ...] = ()
    relationships: tuple[Relationship, ...] = ()
    incident: tuple[tuple[int, ...], ...] = ()
    """Numbers of the relationships of each entity."""
    communities: Mapping[int, Community] = field(default_factory=dict)
    reports: Mapping[int, Report] = field(default_factory=dict)
    vectors: np.ndarray | None = None
    """Vectors of the entities, float32 [entities, d]."""
    deepest: int = 0
    """Level of the finest communities."""


class Index:
    """Builds one graph; `failures` counts the replies that could not be used, by step."""

    def __init__(self, llm: LLM, embedder: Embedder, prompts: Prompts, settings: Indexing) -> None:
        self._llm, self._embedder, self._prompts, self._settings = llm, embedder, prompts, settings
        self.failures: Counter[str] = Counter()

    def graph(self, history: Sequence[Unit]) -> Graph:
        """The graph of the whole history."""
        units = text_units(history, self._settings.chunk_tokens, self._settings.overlap, self._settings.encoding)
        extracts = [extract(replies) for replies in self._all_replies(units)]
        entities, relationships = merged(extracts, blank_ends=self._settings.mode == "paper")
        if not relationships:
            meter.note("graphrag.no_relationships")
        names = [title for title, _ in entities] + [f"{source}, {target}" for source, target in relationships]
        gathered = [*entities.values(), *relationships.values()]
        texts = self._joined(names, [parts.descriptions for parts in gathered])
        nodes, edges = finalised(entities, relationships, texts)
        incident: list[list[int]] = [[] for _ in nodes]
        for place, edge in enumerate(edges):
            incident[edge.source].append(place)
            incident[edge.target].append(place)
        divided = communities(nodes, edges, self._settings.max_cluster_size, self._settings.use_lcc)
        tables = Tables(
            nodes, edges, divided, self._settings.report_tokens, self._settings.encoding, self._settings.mode == "code"
        )
        reports = self._reports(tables, divided)
        vectors = self._embedder.embed([f"{node.title}:{node.description}" for node in nodes]) if nodes else None
        deepest = max((community.level for community in divided.values()), default=0)
        return Graph(tuple(units), nodes, edges, tuple(map(tuple, incident)), divided, reports, vectors, deepest)

    def _all_replies(self, units: Sequence[TextUnit]) -> list[list[Any]]:
        """The replies of all extraction passes over each text unit; None for a reply that cannot be read."""
        types = ", ".join(self._settings.entity_types)
        fields = [{"text": unit.text, "time": unit.first.time_text or "unknown", "types": types} for unit in units]
        replies = [[reply] for reply in self._extraction_replies("extract", fields)]
        active = list(range(len(units)))
        for left in range(self._settings.gleanings - 1, -1, -1):
            glean_fields = [fields[unit] | {"found": extracts_text(replies[unit])} for unit in active]
            for unit, reply in zip(active, self._extraction_replies("glean", glean_fields), strict=True):
                replies[unit].append(reply)
            if left:
                active = self._with_more(active, [(fields[unit], replies[unit]) for unit in active])
        return replies

    def _extraction_replies(self, step: str, fields: Sequence[Mapping[str, str]]) -> list[Any]:
        """The replies to one extraction step for several text units; None for a reply that cannot be read."""
        prompt = self._prompts[f"graphrag/{step}_records" if self._settings.format == "records" else f"graphrag/{step}"]
        replies = ask_all(self._llm, [(prompt, unit_fields) for unit_fields in fields])
        for reply in replies:
            if isinstance(reply, ParseFailure):
                self._failed("no_extract")
        return [None if isinstance(reply, ParseFailure) else reply for reply in replies]

    def _with_more(self, active: Sequence[int], passes: Sequence[tuple[Mapping[str, str], Sequence[Any]]]) -> list[int]:
        """The text units about which the model answers exactly Y, so that they contain more.

        Args:
            active: numbers of the text units.
            passes: the prompt fields and the replies so far of each.
        """
        prompt = self._prompts["graphrag/more"]
        asks = [
            (prompt, {**fields, "query": fields["text"], "options": (), "found": extracts_text(replies)})
            for fields, replies in passes
        ]
        return [unit for unit, reply in zip(active, ask_all(self._llm, asks), strict=True) if reply == "Y"]

    def _failed(self, step: str) -> None:
        self.failures[step] += 1
        meter.note(f"graphrag.{step}")

    def _joined(self, names: Sequence[str], descriptions: Sequence[Iterable[str]]) -> list[str]:
        """A description for each name: a single description is kept; a model joins several, as many in a call as a prompt takes."""
        prompt = self._prompts["graphrag/describe"]
        waiting = [sorted({text for text in texts if text}) for texts in descriptions]
        while active := [place for place, texts in enumerate(waiting) if len(texts) > 1]:
            packs = [waiting[place][: self._taken(waiting[place])] for place in active]
            fields = [
                {"name": names[place], "texts": pack, "words": self._settings.description_words}
                for place, pack in zip(active, packs, strict=True)
            ]
            replies = ask_all(self._llm, [(prompt, pack_fields) for pack_fields in fields])
            for place, pack, reply in zip(active, packs, replies, strict=True):
                if isinstance(reply, ParseFailure):
                    self._failed("joined_descriptions")
                    reply = truncate(" ".join(pack), prompt.max_tokens, self._settings.encoding)
                waiting[place] = [reply, *waiting[place][len(pack) :]]
        return [texts[0] if texts else "" for texts in waiting]

    def _taken(self, texts: Sequence[str]) -> int:
        """Number of the first texts that one prompt takes, at least two."""
        return max(
            2, sum(size <= self._settings.description_tokens for size in itertools.accumulate(map(self._count, texts)))
        )

    def _count(self, text: str) -> int:
        return count_tokens(text, self._settings.encoding)

    def _reports(self, tables: Tables, divided: Mapping[int, Community]) -> dict[int, Report]:
        """The reports on all communities, written from the deepest level up; a report that cannot be read is missing."""
        prompt, reports = self._prompts["graphrag/report"], dict[int, Report]()
        upward = sorted(divided.values(), key=lambda community: (-community.level, community.id))
        for _, group in itertools.groupby(upward, key=lambda community: community.level):
            level, below = list(group), {place: report.content for place, report in reports.items()}
            fields = [
                {"texts": tables.context(community, below), "words": self._settings.report_words} for community in level
            ]
            for community, reply in zip(
                level, ask_all(self._llm, [(prompt, community_fields) for community_fields in fields]), strict=True
            ):
                if isinstance(reply, ParseFailure):
                    self._failed("no_report")
                else:
                    reports[community.id] = _report(reply)
        return reports


def _report(reply: Mapping[str, Any]) -> Report:
    parts = [f"# {reply['title']}", reply["summary"]]
    for finding in reply["findings"]:
        parts += [f"## {finding['summary']}", finding["explanation"]]
    return Report(float(reply["rating"]), "\n\n".join(parts))
