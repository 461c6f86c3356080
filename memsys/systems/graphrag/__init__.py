"""GraphRAG: a graph of entities, its communities and a report on each, built offline (Edge et al., 2024; github.com/microsoft/graphrag).

The history is cut into text units. A model extracts entities and relationships from each; equal ones are merged and their descriptions
joined. Hierarchical Leiden divides the largest connected component into communities, and a model writes a report on every community, the
smallest first. A `local` search recalls texts connected to the entities nearest to the question. A `global` search puts the question to
batches of reports and combines the resulting points into an answer.

`mode="paper"` is release 0.3.6, the release of MemTree's time. `mode="code"` is release 3.1.2, where it differs:

- Tokens are those of o200k instead of cl100k.
- Relationships with an unknown end are dropped; 0.3.6 makes an empty entity of that end.
- The tables for a report show at most one relationship of an entity, and reports of sub-communities never replace tables that are too
  long (defects of the release).
- Both searches use the reports of all levels down to `level`; 0.3.6 uses for each entity the report of its deepest community only.

Both releases start a local search from twice `top_entities`: they request twice as many, in order to exclude some, and never shorten the
list. The share of reports in a local search is .15 in both modes, as in 3.1.2; in 0.3.6 it was .10, so that one long report leaves no room.

Deviations and decisions:

- `format="json"` asks for a JSON object with a schema; `records` for the released delimited records, where a bad record is lost alone.
- A gleaning shows the text and the extracts so far in one prompt; in the release it is the second turn of the same conversation.
- The prompts of an extraction state the time of the text, which the release leaves out.
- Text units do not cross sessions. The window stops once the text is covered, in both modes; 0.3.6 could add a unit that only repeats.
- A weight that is not a positive number is 1. A relationship of an entity with itself is dropped.
- Where a sub-community's report replaces tables, relationships that touch the sub-community leave the table.
- A graph without relationships is searched as it is; the release stops. Where a description cannot be read, its parts are joined and
  cut. Where a report cannot be read, it is missing, as released.
- A global search without points has a fixed answer, as released: an abstention. It is aborted if its answer could not be read, or if it
  has no points and a batch could not be read; the release takes such a batch for one without points.
- Points of a global search name their reports in a field of their own, so that they have sources; a point that names none of the shown
  reports has the sources of the whole batch. The prompt asks for a short answer.
- Left out: claims, drift and basic search, dynamic choice of communities, graph embeddings, incremental update.
- The next `consolidate` after a write builds everything again; a `read` before it uses the last build.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from importlib.util import find_spec
from typing import Any, ClassVar, Literal

import numpy as np

from data_loaders.schema import Question
from memsys.interface import Item, NodeView, Positive, Recall, Settings, dated, period_text, union
from memsys.llm import meter
from memsys.llm.ask import ask, ask_all
from memsys.llm.protocol import LLM
from memsys.prompts import Option, Prompts, lettered
from memsys.systems.graphrag.graph import (
    Community,
    Entity,
    Relationship,
    Tables,
    TextUnit,
    communities,
    extract,
    extracts_text,
    finalised,
    merged,
    text_units,
)
from memsys.systems.rebuilt import RebuiltMemory
from memsys.tokens import count_tokens, first_within, truncate
from memsys.vectors import Embedder, best, cosines


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


def _report(reply: Mapping[str, Any]) -> Report:
    parts = [f"# {reply['title']}", reply["summary"]]
    for finding in reply["findings"]:
        parts += [f"## {finding['summary']}", finding["explanation"]]
    return Report(float(reply["rating"]), "\n\n".join(parts))


NO_ANSWER = "No information available: the memory holds nothing that answers this question."
SHUFFLE_SEED = 86
"""The seed of the releases. They use Python's generator and we use NumPy's, so the order differs."""
OVERSAMPLED = 2
"""A local search starts from this many times `top_entities`."""


@dataclass(frozen=True)
class GraphRagReading(Settings):
    """Settings of a read.

    Raises:
        ValueError: an unknown choice, or a number out of range.
    """

    search: Literal["local", "global"] = "local"
    """`local`, with no call, or `global`, with a call for each batch of reports and a call for the answer, which is part of the recall."""
    top_entities: Positive = 10
    """Half the number of entities that a local search starts from."""
    top_relationships: int = 10
    """Relationships to entities outside the selection, for each of its entities."""
    max_tokens: int = 12000
    """Maximum number of tokens of a local search's recall; of a batch of reports, and of all points, in a global search."""
    community_share: float = 0.15
    """Share of `max_tokens` for reports."""
    text_share: float = 0.5
    """Share of `max_tokens` for text units; the rest is for entities and relationships."""
    level: int = 2
    """Deepest level of communities whose reports are used."""

    def __post_init__(self) -> None:
        super().__post_init__()
        shares = self.community_share, self.text_share
        if min(shares) < 0 or sum(shares) > 1:
            raise ValueError(
                "community_share and text_share must be at least 0 and at most 1 together, "
                f"found {shares[0]} and {shares[1]}"
            )


class GraphRag(RebuiltMemory):
    """Recalls reports, entities, relationships and text units around the entities nearest to the question; or answers from all reports.

    Raises:
        ImportError: graspologic-native is not installed.
    """

    READ_KNOBS: ClassVar = tuple(setting.name for setting in fields(GraphRagReading))
    MODES: ClassVar = ("paper", "code")
    PROMPTS: ClassVar = ("graphrag",)
    INDEPENDENT_CALLS: ClassVar = True

    def __init__(
        self,
        llm: LLM,
        embedder: Embedder,
        prompts: Prompts,
        indexing: Indexing = Indexing(),
        reading: GraphRagReading = GraphRagReading(),
    ) -> None:
        if find_spec("graspologic_native") is None:
            raise ImportError("GraphRAG needs graspologic-native: pip install memsys-bench[graph]")
        super().__init__()
        self.llm, self.embedder, self.prompts = llm, embedder, prompts
        self.indexing, self.reading = indexing, reading
        self._graph = Graph()
        self._failures: Counter[str] = Counter()

    def _build(self) -> None:
        """Build the graph of the whole history; `_failures` counts the replies that could not be used, by step."""
        self._failures = Counter()
        units = text_units(self._units, self.indexing.chunk_tokens, self.indexing.overlap, self.indexing.encoding)
        extracts = [extract(replies) for replies in self._all_replies(units)]
        entities, relationships = merged(extracts, blank_ends=self.indexing.mode == "paper")
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
        divided = communities(nodes, edges, self.indexing.max_cluster_size, self.indexing.use_lcc)
        tables = Tables(
            nodes, edges, divided, self.indexing.report_tokens, self.indexing.encoding, self.indexing.mode == "code"
        )
        reports = self._reports(tables, divided)
        vectors = self.embedder.embed([f"{node.title}:{node.description}" for node in nodes]) if nodes else None
        deepest = max((community.level for community in divided.values()), default=0)
        self._graph = Graph(tuple(units), nodes, edges, tuple(map(tuple, incident)), divided, reports, vectors, deepest)

    def _all_replies(self, units: Sequence[TextUnit]) -> list[list[Any]]:
        """The replies of all extraction passes over each text unit."""
        types = ", ".join(self.indexing.entity_types)
        fields = [{"text": unit.text, "time": unit.first.time_text or "unknown", "types": types} for unit in units]
        replies = [[reply] for reply in self._extraction_replies("extract", fields)]
        active = list(range(len(units)))
        for left in range(self.indexing.gleanings - 1, -1, -1):
            glean_fields = [fields[unit] | {"found": extracts_text(replies[unit])} for unit in active]
            for unit, reply in zip(active, self._extraction_replies("glean", glean_fields), strict=True):
                replies[unit].append(reply)
            if left:
                active = self._with_more(active, [(fields[unit], replies[unit]) for unit in active])
        return replies

    def _extraction_replies(self, step: str, fields: Sequence[Mapping[str, str]]) -> list[Any]:
        """The replies to one extraction step for several text units, or a `ParseFailure` each."""
        prompt = self.prompts[f"graphrag/{step}_records" if self.indexing.format == "records" else f"graphrag/{step}"]
        asks, event = [(prompt, unit_fields) for unit_fields in fields], "graphrag.no_extract"
        return ask_all(self.llm, asks, noted=event, counts=self._failures)

    def _with_more(self, active: Sequence[int], passes: Sequence[tuple[Mapping[str, str], Sequence[Any]]]) -> list[int]:
        """The text units about which the model answers exactly Y, so that they contain more.

        Args:
            active: numbers of the text units.
            passes: the prompt fields and the replies so far of each.
        """
        prompt = self.prompts["graphrag/more"]
        asks = [
            (prompt, {**fields, "query": fields["text"], "options": (), "found": extracts_text(replies)})
            for fields, replies in passes
        ]
        return [unit for unit, reply in zip(active, ask_all(self.llm, asks), strict=True) if reply == "Y"]

    def _joined(self, names: Sequence[str], descriptions: Sequence[Iterable[str]]) -> list[str]:
        """A description for each name: one alone is kept; a model joins several, in a call as many as a prompt takes, at least two."""
        prompt, limit = self.prompts["graphrag/describe"], self.indexing.description_tokens
        count = partial(count_tokens, encoding=self.indexing.encoding)
        waiting = [sorted({text for text in texts if text}) for texts in descriptions]
        while active := [place for place, texts in enumerate(waiting) if len(texts) > 1]:
            packs = [waiting[place][: max(2, len(first_within(waiting[place], limit, count)))] for place in active]
            fields = [
                {"name": names[place], "texts": pack, "words": self.indexing.description_words}
                for place, pack in zip(active, packs, strict=True)
            ]
            asks, event = [(prompt, pack_fields) for pack_fields in fields], "graphrag.joined_descriptions"
            replies = ask_all(self.llm, asks, noted=event, counts=self._failures)
            for place, pack, reply in zip(active, packs, replies, strict=True):
                joined = reply or truncate(" ".join(pack), prompt.max_tokens, self.indexing.encoding)
                waiting[place] = [joined, *waiting[place][len(pack) :]]
        return [texts[0] if texts else "" for texts in waiting]

    def _reports(self, tables: Tables, divided: Mapping[int, Community]) -> dict[int, Report]:
        """The reports on all communities, written from the deepest level up; a report that cannot be read is missing."""
        prompt, reports = self.prompts["graphrag/report"], dict[int, Report]()
        upward = sorted(divided.values(), key=lambda community: (-community.level, community.id))
        for _, group in itertools.groupby(upward, key=lambda community: community.level):
            level, below = list(group), {place: report.content for place, report in reports.items()}
            fields = [
                {"texts": tables.context(community, below), "words": self.indexing.report_words} for community in level
            ]
            asks = [(prompt, community_fields) for community_fields in fields]
            replies = ask_all(self.llm, asks, noted="graphrag.no_report", counts=self._failures)
            reports |= {each.id: _report(reply) for each, reply in zip(level, replies, strict=True) if reply}
        return reports

    @property
    def uses_asker(self) -> bool:
        return self.reading.search == "global"  # which answers itself

    def read(self, question: Question) -> Recall:
        return Recall(self._local(question)) if self.reading.search == "local" else self._global(question)

    def nodes(self) -> Iterator[NodeView]:
        """The last build: text units (level 0), entities (1) and communities (from 2).

        The parents of a text unit are entities; of an entity and of a community, a community.
        """
        graph, finest = self._graph, self._finest()
        entities_of: list[list[str]] = [[] for _ in graph.units]
        for place, entity in enumerate(graph.entities):
            for unit in entity.units:
                entities_of[unit].append(f"entity-{place}")
        for place in range(len(graph.units)):
            yield self._view(self._text_item(place, 0.0), entities_of[place], (place,))
        for place, entity in enumerate(graph.entities):
            above = [f"report-{finest[place]}"] if place in finest else []
            vector = None if graph.vectors is None else graph.vectors[place].copy()
            yield self._view(self._entity_item(place, 0.0), above, entity.units, vector)
        for community in graph.communities.values():
            above = [] if community.parent is None else [f"report-{community.parent}"]
            yield self._view(self._report_item(community, 0.0), above, self._text_units(community))

    @property
    def held(self) -> int:
        graph = self._graph
        return len(graph.units) + len(graph.entities) + len(graph.relationships) + len(graph.reports)

    def report(self) -> dict[str, Any]:
        """Counts of the last build: its parts, communities by level, entities outside all communities, and failures by step."""
        graph = self._graph
        levels = Counter(community.level for community in graph.communities.values())
        return {
            "text_units": len(graph.units),
            "entities": len(graph.entities),
            "relationships": len(graph.relationships),
            "communities": [levels[level] for level in sorted(levels)],
            "reports": len(graph.reports),
            "outside": len(graph.entities) - len(self._finest()),
            **{step: self._failures[step] for step in ("no_extract", "joined_descriptions", "no_report")},
        }

    def _local(self, question: Question) -> tuple[Item, ...]:
        """Reports, entities, relationships and text units around the entities nearest to the question."""
        if self._graph.vectors is None:
            return ()
        similarities = cosines(self._graph.vectors, self.embedder.embed([question.text], query=True)[0])
        chosen = best(similarities, self.reading.top_entities * OVERSAMPLED)
        report_budget, text_budget = (
            int(self.reading.max_tokens * self.reading.community_share),
            int(self.reading.max_tokens * self.reading.text_share),
        )
        reports = first_within(self._nearby_reports(chosen), report_budget, self._tokens)
        tables = self._tables(chosen, similarities, self.reading.max_tokens - report_budget - text_budget)
        return (*reports, *tables, *first_within(self._nearby_texts(chosen, similarities), text_budget, self._tokens))

    def _tokens(self, item: Item) -> int:
        return count_tokens(item.text, self.indexing.encoding)

    def _nearby_reports(self, chosen: Sequence[int]) -> Iterator[Item]:
        """Reports of the chosen entities' communities; first those with most chosen entities, then those with higher ratings."""
        graph, usable = self._graph, self._usable()
        matches = Counter(place for entity in chosen for place in usable.get(entity, ()) if place in graph.reports)
        for place in sorted(matches, key=lambda place: (-matches[place], -graph.reports[place].rating, place)):
            yield self._report_item(graph.communities[place], matches[place])

    def _tables(self, chosen: Sequence[int], similarities: np.ndarray, budget: int) -> list[Item]:
        """The chosen entities that fit the budget, and the relationships of the first of them, as many as still fit."""
        items = (self._entity_item(entity, float(similarities[entity])) for entity in chosen)
        entities = first_within(items, budget, self._tokens)
        budget -= sum(map(self._tokens, entities))
        relationships: list[Item] = []
        for size in range(1, len(entities) + 1):
            more = [self._relationship_item(edge) for edge in self._around(set(chosen[:size]))]
            if sum(map(self._tokens, more)) > budget:
                break
            relationships = more
        return [*entities, *relationships]

    def _around(self, selected: set[int]) -> list[int]:
        """Relationships among the selected entities, then `top_relationships` per entity of those that lead outside.

        The latter are ordered by the number of selected entities their outer end is related to, then by combined degree.
        """
        graph = self._graph
        near = sorted({edge for entity in selected for edge in graph.incident[entity]})
        ends = {edge: {graph.relationships[edge].source, graph.relationships[edge].target} for edge in near}
        outside = {edge: min(ends[edge] - selected) for edge in near if not ends[edge] <= selected}
        pairs = {frozenset(ends[edge]): outer for edge, outer in outside.items()}
        links = Counter(pairs.values())
        ranked = sorted(
            outside, key=lambda edge: (-links[outside[edge]], -graph.relationships[edge].combined_degree, edge)
        )
        inside = [edge for edge in near if edge not in outside]
        return inside + ranked[: self.reading.top_relationships * len(selected)]

    def _nearby_texts(self, chosen: Sequence[int], similarities: np.ndarray) -> Iterator[Item]:
        """Text units of the chosen entities, in the order of the entities; of one entity, those with most of its relationships first."""
        graph, seen = self._graph, set[int]()
        for entity in chosen:
            related = Counter(unit for edge in graph.incident[entity] for unit in graph.relationships[edge].units)
            for unit in sorted(set(graph.entities[entity].units) - seen, key=lambda unit: (-related[unit], unit)):
                seen.add(unit)
                yield self._text_item(unit, float(similarities[entity]))

    def _global(self, question: Question) -> Recall:
        """The points that batches of reports give for the question, and an answer from the best of them."""
        options = lettered(question.options)
        choices = [f"({option.label}) {option.text}" for option in options]
        date = f"(Current date: {question.time_text})" if question.time_text else ""
        asked = "\n".join(filter(None, (question.text, *choices, question.asked_by, question.instruction, date)))
        fields: dict[str, Any] = {
            "question": question.text,
            "options": options,
            "now": question.time_text,
            "asked": asked,
        }
        found, unread = self._all_points(fields)
        points = first_within(sorted(found, key=lambda point: -point.score), self.reading.max_tokens, self._tokens)
        if not points:
            return Recall((), aborted="a batch of reports could not be read") if unread else Recall((), NO_ANSWER)
        lines = [f"(analyst {point.id.split('-')[1]}, importance {point.score:.0f}) {point.text}" for point in points]
        answer = ask(self.llm, self.prompts["graphrag/reduce"], memories=lines, noted="graphrag.no_answer", **fields)
        if not answer:
            return Recall(tuple(points), aborted="the answer could not be read")
        return Recall(tuple(points), answer)

    def _all_points(self, fields: Mapping[str, Any]) -> tuple[list[Item], int]:
        """The points of all batches of reports, one call per batch; and the number of batches whose reply could not be read."""
        batches = self._batches()
        prompt, reports = self.prompts["graphrag/map"], self._graph.reports
        memories = [
            [Option(str(community.id), reports[community.id].content) for community in batch] for batch in batches
        ]
        asks = [(prompt, {**fields, "memories": options}) for options in memories]
        replies = ask_all(self.llm, asks, noted="graphrag.no_points")
        points = [
            point
            for number, (batch, reply) in enumerate(zip(batches, replies, strict=True), start=1)
            if reply
            for point in self._points(number, batch, reply["points"])
        ]
        return points, sum(not reply for reply in replies)

    def _batches(self) -> list[list[Community]]:
        """Communities whose reports are used, shuffled and packed by tokens; in each batch those with most text units come first."""
        graph = self._graph
        usable = {place for places in self._usable().values() for place in places}
        used = [graph.communities[number] for number in sorted(usable.intersection(graph.reports))]
        batches: list[list[Community]] = []
        left = 0
        shuffled = np.random.default_rng(SHUFFLE_SEED)
        for community in (used[place] for place in shuffled.permutation(len(used))):
            tokens = count_tokens(f"[{community.id}] {graph.reports[community.id].content}\n", self.indexing.encoding)
            if tokens > left or not batches:
                batches.append([])
                left = self.reading.max_tokens
            batches[-1].append(community)
            left -= tokens
        for batch in batches:
            batch.sort(
                key=lambda community: (
                    -len(self._text_units(community)), -graph.reports[community.id].rating, community.id,
                )
            )  # fmt: skip
        return batches

    def _points(self, number: int, batch: Sequence[Community], points: Sequence[Mapping[str, Any]]) -> Iterator[Item]:
        """The points of one reply that have a text and a score above 0.

        Their sources are those of the reports that they name, else those of the whole batch.
        """
        for place, point in enumerate(points):
            if point["score"] > 0 and (text := point["description"].strip()):
                named = [community for community in batch if community.id in point.get("reports", ())] or batch
                sources = self._sources({unit for community in named for unit in self._text_units(community)})
                level = 1 + max(map(self._height, named))
                yield Item(f"point-{number}-{place}", text, float(point["score"]), sources, "point", level)

    def _usable(self) -> dict[int, list[int]]:
        """The ids of the communities whose reports each entity gives to a search: its deepest down to `level`, or (3.1.2) all."""
        if self.indexing.mode == "paper":
            return {entity: [place] for entity, place in self._finest(self.reading.level).items()}
        usable: dict[int, list[int]] = {}
        for community in self._graph.communities.values():
            if community.level <= self.reading.level:
                for entity in community.entities:
                    usable.setdefault(entity, []).append(community.id)
        return usable

    def _finest(self, level: int | None = None) -> dict[int, int]:
        """The id of the deepest community, down to `level`, of each entity that is in one."""
        finest: dict[int, int] = {}
        for community in sorted(self._graph.communities.values(), key=lambda community: community.level):
            if level is None or community.level <= level:
                finest.update(dict.fromkeys(community.entities, community.id))
        return finest

    def _text_units(self, community: Community) -> list[int]:
        """The text units of a community's entities."""
        return sorted({unit for entity in community.entities for unit in self._graph.entities[entity].units})

    def _height(self, community: Community) -> int:
        """The community's level among the nodes: 2 for the deepest, more for its ancestors."""
        return 2 + self._graph.deepest - community.level

    def _sources(self, units: Iterable[int]) -> tuple[str, ...]:
        return union(self._graph.units[unit].sources for unit in sorted(units))

    def _text_item(self, unit: int, score: float) -> Item:
        return self._dated_item(f"text-{unit}", "text", self._graph.units[unit].text, score, (unit,), 0)

    def _entity_item(self, place: int, score: float) -> Item:
        entity = self._graph.entities[place]
        text = f"{entity.title} ({entity.degree} related): {entity.description}"
        return self._dated_item(f"entity-{place}", "entity", text, score, entity.units, 1)

    def _relationship_item(self, place: int) -> Item:
        edge, entities = self._graph.relationships[place], self._graph.entities
        text = f"{entities[edge.source].title} – {entities[edge.target].title}: {edge.description}"
        return self._dated_item(f"relationship-{place}", "relationship", text, edge.weight, edge.units, 1)

    def _report_item(self, community: Community, score: float) -> Item:
        report = self._graph.reports.get(community.id, Report(0.0, ""))
        level, units = self._height(community), self._text_units(community)
        return self._dated_item(f"report-{community.id}", "report", report.content, score, units, level)

    def _dated_item(self, name: str, kind: str, text: str, score: float, units: Sequence[int], level: int) -> Item:
        """A text with the period and the sources of its text units."""
        first, last = self._graph.units[min(units)].first, self._graph.units[max(units)].last
        return Item(name, dated(text, period_text(first, last)), score, self._sources(units), kind, level)

    def _view(
        self, item: Item, parents: Iterable[str], units: Sequence[int], vector: np.ndarray | None = None
    ) -> NodeView:
        first, last = self._graph.units[min(units)].first, self._graph.units[max(units)].last
        return NodeView(
            item.id, tuple(parents), item.level, item.kind, item.text, vector, item.sources, first.time, last.time
        )
