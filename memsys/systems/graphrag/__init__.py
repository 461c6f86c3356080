"""GraphRAG: a graph of entities, its communities and a report on each, built offline (Edge et al., 2024; github.com/microsoft/graphrag).

The history is cut into text units. A model finds entities and relationships in each; the same ones are merged and their descriptions
joined; hierarchical Leiden divides the largest connected component into communities, and a model reports on every community, the
smallest first. A `local` search shows what hangs on the entities nearest to the question; a `global` one puts the question to batches
of reports and joins the points that they yield into an answer.

`mode="paper"` is release 0.3.6, the one of MemTree's time. `mode="code"` is release 3.1.2 where it differs: tokens of o200k for cl100k;
relationships with an unknown end are dropped instead of making a blank entity; the tables for a report show at most one relationship of
an entity, and reports of sub-communities never stand in for tables that are too long (defects of the release); both searches use the
reports of all levels down to `level`, where 0.3.6 keeps of each entity its deepest community only. Both releases start a local search
from twice `top_entities`: they ask for twice as many, to have some to exclude, and never cut back. The share of reports in a local search
is .15 in both modes, as in 3.1.2; in 0.3.6 it was .10, so little that one long report leaves none.

Deviations and decisions:

- `format="json"` asks for a JSON object with a schema; `records` for the released delimited records, where a bad record costs only itself.
- A gleaning shows the text and what was found so far in one prompt, for the release's second turn of the same conversation.
- Text units do not cross sessions. The window stops once the text is covered in both modes (0.3.6 could add a tail of overlap alone).
- A weight that is no positive number is 1. A relationship of an entity with itself is dropped.
- Where a sub-community's report stands in, relationships that touch the sub-community leave the table.
- A graph without relationships is searched as it is (the release stops), a description that fails is its pieces, cut off, and a report
  that fails is missing, as released.
- Points of a global search name their reports in a field of their own, so that they have sources; those that name none that was shown
  stand for the whole batch. Its answer is asked for in few words.
- Left out: claims, drift and basic search, dynamic choice of communities, graph embeddings, incremental update.
- Everything is built anew by the next `consolidate` after a write; a `read` before it sees the last build.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from string import ascii_uppercase
from typing import Any, ClassVar, Literal

import numpy as np

from data_loaders.schema import Question, Unit
from memsys.embed import Embedder
from memsys.interface import Item, MemorySystem, NodeView, Recall, dated, known_mode, positive, union
from memsys.llm import meter
from memsys.llm.ask import ask, ask_all
from memsys.llm.parsing import ParseFailure
from memsys.llm.protocol import LLM
from memsys.prompts import Option, Prompts
from memsys.systems.graphrag.communities import Community
from memsys.systems.graphrag.index import Graph, Index, Indexing, Report
from memsys.tokens import count_tokens
from memsys.vectors import best

NO_ANSWER = "No information available: the memory holds nothing that answers this question."
SHUFFLE_SEED = 86
"""The releases' own; their generator is Python's, ours NumPy's, so the order is another."""
OVERSAMPLED = 2
"""How many times `top_entities` a local search takes."""
_CHOICES = {"search": ("local", "global"), "format": ("json", "records")}
_ENCODINGS = {"paper": "cl100k_base", "code": "o200k_base"}


class GraphRag(MemorySystem):
    """Recalls reports, entities, relationships and text units around the entities nearest to the question; or answers from all reports.

    Args:
        search: `local`, with no call, or `global`, one call for each batch of reports and one for the answer, which comes with the recall.
        top_entities: half the number of entities that a local search starts from.
        top_relationships: relationships to entities outside the selection, for each of its entities.
        max_tokens: size of a local search's recall, and of a batch of reports and of the points of a global one.
        community_share, text_share: of `max_tokens`, for reports and text units; the rest is for entities and relationships.
        level: deepest level of communities whose reports are used.
        format: of the extraction's replies, `json` or `records`.
        chunk_tokens, overlap: size of a text unit and of what it repeats of the one before; None makes every unit a text unit.
        entity_types: types of entities asked for.
        gleanings: how many times the model is asked for what it missed.
        description_tokens: of the descriptions that one call joins.
        description_words, report_words: length asked for.
        max_cluster_size: communities with more entities are divided again, where Leiden can.
        use_lcc: communities are made of the largest connected component only.
        report_tokens: of the tables that a report is written from.

    Raises:
        ValueError: a setting that is none of the known choices, or out of range.
        ImportError: graspologic-native is not installed.
    """

    READ_KNOBS: ClassVar = (
        "search", "top_entities", "top_relationships", "max_tokens", "community_share", "text_share", "level",
    )  # fmt: skip
    MODES: ClassVar = ("paper", "code")
    PROMPTS: ClassVar = ("graphrag",)
    EMBEDS_UNITS: ClassVar = False
    OFFLINE: ClassVar = True

    def __init__(
        self,
        llm: LLM,
        embedder: Embedder,
        prompts: Prompts,
        mode: Literal["paper", "code"] = "paper",
        search: Literal["local", "global"] = "local",
        top_entities: int = 10,
        top_relationships: int = 10,
        max_tokens: int = 12000,
        community_share: float = 0.15,
        text_share: float = 0.5,
        level: int = 2,
        format: Literal["json", "records"] = "json",
        chunk_tokens: int | None = 1200,
        overlap: int = 100,
        entity_types: Sequence[str] = ("organization", "person", "geo", "event"),
        gleanings: int = 1,
        description_tokens: int = 4000,
        description_words: int = 500,
        max_cluster_size: int = 10,
        use_lcc: bool = True,
        report_tokens: int = 8000,
        report_words: int = 2000,
    ) -> None:
        self.llm, self.embedder, self.prompts = llm, embedder, prompts
        self.mode, self.search, self.format = known_mode(self, mode), search, format
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, found {getattr(self, name)!r}")
        if find_spec("graspologic_native") is None:
            raise ImportError("GraphRAG needs graspologic-native: pip install memsys-bench[graph]")
        if min(community_share, text_share) < 0 or community_share + text_share > 1:
            raise ValueError(
                "community_share and text_share must be at least 0 and at most 1 together, "
                f"found {community_share} and {text_share}"
            )
        if chunk_tokens is not None and not 0 <= overlap < chunk_tokens:
            raise ValueError(f"overlap {overlap} must be at least 0 and smaller than chunk_tokens {chunk_tokens}")
        self.top_entities, self.top_relationships = positive("top_entities", top_entities), top_relationships
        self.max_tokens, self.community_share, self.text_share = max_tokens, community_share, text_share
        self.level, self.chunk_tokens, self.overlap, self.use_lcc = level, chunk_tokens, overlap, use_lcc
        self.entity_types, self.gleanings = tuple(entity_types), gleanings
        self.description_tokens, self.description_words = description_tokens, description_words
        self.max_cluster_size = positive("max_cluster_size", max_cluster_size)
        self.report_tokens, self.report_words = report_tokens, report_words
        self._units: list[Unit] = []
        self._built = 0
        self._graph = Graph()
        self._failures: Counter[str] = Counter()

    def write(self, unit: Unit) -> None:
        self._units.append(unit)

    def consolidate(self) -> None:
        """Build everything anew when units have come since the last build."""
        if self._built < len(self._units):
            index = Index(self.llm, self.embedder, self.prompts, self._indexing())
            self._graph, self._failures = index.graph(self._units), index.failures
            self._built = len(self._units)

    def _indexing(self) -> Indexing:
        return Indexing(
            released=self.mode == "code",
            encoding=_ENCODINGS[self.mode],
            records=self.format == "records",
            chunk_tokens=self.chunk_tokens,
            overlap=self.overlap,
            entity_types=self.entity_types,
            gleanings=self.gleanings,
            description_tokens=self.description_tokens,
            description_words=self.description_words,
            max_cluster_size=self.max_cluster_size,
            use_lcc=self.use_lcc,
            report_tokens=self.report_tokens,
            report_words=self.report_words,
        )

    def read(self, question: Question) -> Recall:
        return Recall(self._local(question)) if self.search == "local" else self._global(question)

    def nodes(self) -> Iterator[NodeView]:
        """The last build: text units (level 0), entities (1) and communities (from 2); parents are entities, then communities."""
        graph, finest = self._graph, self._finest()
        naming: list[list[str]] = [[] for _ in graph.units]
        for place, entity in enumerate(graph.entities):
            for unit in entity.units:
                naming[unit].append(f"entity-{place}")
        for place in range(len(graph.units)):
            yield self._view(self._text_item(place, 0.0), naming[place], (place,))
        for place, entity in enumerate(graph.entities):
            above = [f"report-{finest[place]}"] if place in finest else []
            vector = None if graph.vectors is None else graph.vectors[place].copy()
            yield self._view(self._entity_item(place, 0.0), above, entity.units, vector)
        for community in graph.communities.values():
            above = [] if community.parent is None else [f"report-{community.parent}"]
            yield self._view(self._report_item(community, 0.0), above, self._members(community))

    @property
    def held(self) -> int:
        graph = self._graph
        return len(graph.units) + len(graph.entities) + len(graph.relationships) + len(graph.reports)

    def report(self) -> dict[str, Any]:
        """Size of the last build: its parts, communities by level, entities outside all of them, and how often each step failed."""
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

    # --- local search ---

    def _local(self, question: Question) -> tuple[Item, ...]:
        if self._graph.vectors is None:
            return ()
        similarities = self._graph.vectors @ self.embedder.embed([question.text], query=True)[0]
        chosen = best(similarities, self.top_entities * OVERSAMPLED)
        for_reports, for_texts = int(self.max_tokens * self.community_share), int(self.max_tokens * self.text_share)
        reports = self._fitting(self._nearby_reports(chosen), for_reports)
        tables = self._tables(chosen, similarities, self.max_tokens - for_reports - for_texts)
        return (*reports, *tables, *self._fitting(self._nearby_texts(chosen, similarities), for_texts))

    def _count(self, text: str) -> int:
        return count_tokens(text, _ENCODINGS[self.mode])

    def _fitting(self, items: Iterable[Item], budget: int) -> list[Item]:
        """The items before the first that would exceed the budget."""
        kept: list[Item] = []
        for item in items:
            budget -= self._count(item.text)
            if budget < 0:
                break
            kept.append(item)
        return kept

    def _nearby_reports(self, chosen: Sequence[int]) -> Iterator[Item]:
        """Reports of the chosen entities' communities, those with most of them first, then the higher rated."""
        graph, usable = self._graph, self._usable()
        matches = Counter(place for entity in chosen for place in usable.get(entity, ()) if place in graph.reports)
        for place in sorted(matches, key=lambda place: (-matches[place], -graph.reports[place].rating, place)):
            yield self._report_item(graph.communities[place], matches[place])

    def _tables(self, chosen: Sequence[int], similarities: np.ndarray, budget: int) -> list[Item]:
        """The chosen entities, and the relationships of as many of the first of them as the budget allows."""
        entities = self._fitting((self._entity_item(at, float(similarities[at])) for at in chosen), budget)
        budget -= sum(self._count(item.text) for item in entities)
        relationships: list[Item] = []
        for size in range(1, len(entities) + 1):
            grown = [self._relationship_item(edge) for edge in self._around(set(chosen[:size]))]
            if sum(self._count(item.text) for item in grown) > budget:
                break
            relationships = grown
        return [*entities, *relationships]

    def _around(self, selected: set[int]) -> list[int]:
        """Relationships among the selected entities, then the best connected of those that lead outside."""
        graph = self._graph
        near = sorted({edge for entity in selected for edge in graph.incident[entity]})
        ends = {edge: {graph.relationships[edge].source, graph.relationships[edge].target} for edge in near}
        outside = {edge: min(ends[edge] - selected) for edge in near if not ends[edge] <= selected}
        pairs = {frozenset(ends[edge]): stranger for edge, stranger in outside.items()}
        links = Counter(pairs.values())
        ranked = sorted(
            outside, key=lambda edge: (-links[outside[edge]], -graph.relationships[edge].combined_degree, edge)
        )
        inside = [edge for edge in near if edge not in outside]
        return inside + ranked[: self.top_relationships * len(selected)]

    def _nearby_texts(self, chosen: Sequence[int], similarities: np.ndarray) -> Iterator[Item]:
        """Text units of the chosen entities, each at its first entity's place, those with most of its relationships first."""
        graph, seen = self._graph, set[int]()
        for at in chosen:
            related = Counter(unit for edge in graph.incident[at] for unit in graph.relationships[edge].units)
            for unit in sorted(set(graph.entities[at].units) - seen, key=lambda unit: (-related[unit], unit)):
                seen.add(unit)
                yield self._text_item(unit, float(similarities[at]))

    # --- global search ---

    def _global(self, question: Question) -> Recall:
        options = tuple(Option(label, text) for label, text in zip(ascii_uppercase, question.options, strict=False))
        asked: dict[str, Any] = {"question": question.text, "options": options, "now": question.time_text}
        asked["asked"] = _whole(question, options)
        found: list[Item] = []
        batches = self._batches()
        shown = [[Option(str(one.id), self._graph.reports[one.id].content) for one in batch] for batch in batches]
        replies = ask_all(self.llm, [(self.prompts["graphrag/map"], asked | {"memories": one}) for one in shown])
        for number, (batch, reply) in enumerate(zip(batches, replies, strict=True), start=1):
            if isinstance(reply, ParseFailure):
                meter.note("graphrag.no_points")
            else:
                found += self._points(number, batch, reply["points"])
        points = self._fitting(sorted(found, key=lambda point: -point.score), self.max_tokens)
        if not points:
            return Recall((), NO_ANSWER)
        lines = [f"(analyst {point.id.split('-')[1]}, importance {point.score:.0f}) {point.text}" for point in points]
        answer = ask(self.llm, self.prompts["graphrag/reduce"], memories=lines, **asked)
        if isinstance(answer, ParseFailure):
            meter.note("graphrag.no_answer")
            answer = NO_ANSWER
        return Recall(tuple(points), answer)

    def _batches(self) -> list[list[Community]]:
        """Communities whose reports are used, shuffled, packed by tokens, and the weightiest first in each batch."""
        graph = self._graph
        usable = {place for places in self._usable().values() for place in places}
        used = [graph.communities[at] for at in sorted(usable.intersection(graph.reports))]
        batches: list[list[Community]] = []
        left = 0
        shuffled = np.random.default_rng(SHUFFLE_SEED)
        for community in (used[at] for at in shuffled.permutation(len(used))):
            tokens = self._count(f"[{community.id}] {graph.reports[community.id].content}\n")
            if tokens > left or not batches:
                batches.append([])
                left = self.max_tokens
            batches[-1].append(community)
            left -= tokens
        for batch in batches:
            batch.sort(key=lambda one: (-len(self._members(one)), -graph.reports[one.id].rating, one.id))
        return batches

    def _points(self, number: int, batch: Sequence[Community], points: Sequence[Mapping[str, Any]]) -> Iterator[Item]:
        """The points of one reply that are of any use; they stand for the reports that they name, else for the whole batch."""
        for place, point in enumerate(points):
            if point["score"] > 0 and (text := point["description"].strip()):
                named = [one for one in batch if one.id in point.get("reports", ())] or batch
                sources = self._sources({unit for one in named for unit in self._members(one)})
                level = 1 + max(map(self._height, named))
                yield Item(f"point-{number}-{place}", text, float(point["score"]), sources, "point", level)

    # --- pieces ---

    def _usable(self) -> dict[int, list[int]]:
        """The communities down to `level` by which a search knows each entity: the deepest only, or (release 3.1.2) all."""
        if self.mode == "paper":
            return {entity: [place] for entity, place in self._finest(self.level).items()}
        found: dict[int, list[int]] = {}
        for community in self._graph.communities.values():
            if community.level <= self.level:
                for entity in community.entities:
                    found.setdefault(entity, []).append(community.id)
        return found

    def _finest(self, level: int | None = None) -> dict[int, int]:
        """The deepest community (down to `level`) of each entity that is in any."""
        found: dict[int, int] = {}
        for community in sorted(self._graph.communities.values(), key=lambda one: one.level):
            if level is None or community.level <= level:
                found.update(dict.fromkeys(community.entities, community.id))
        return found

    def _members(self, community: Community) -> list[int]:
        """The text units of a community's entities."""
        return sorted({unit for entity in community.entities for unit in self._graph.entities[entity].units})

    def _height(self, community: Community) -> int:
        return 2 + self._graph.deepest - community.level

    def _sources(self, units: Iterable[int]) -> tuple[str, ...]:
        return union(self._graph.units[unit].sources for unit in sorted(units))

    def _text_item(self, unit: int, score: float) -> Item:
        return self._item(f"text-{unit}", "text", self._graph.units[unit].text, score, (unit,), 0)

    def _entity_item(self, place: int, score: float) -> Item:
        entity = self._graph.entities[place]
        text = f"{entity.title} ({entity.degree} related): {entity.description}"
        return self._item(f"entity-{place}", "entity", text, score, entity.units, 1)

    def _relationship_item(self, place: int) -> Item:
        edge, entities = self._graph.relationships[place], self._graph.entities
        text = f"{entities[edge.source].title} – {entities[edge.target].title}: {edge.description}"
        return self._item(f"relationship-{place}", "relationship", text, edge.weight, edge.units, 1)

    def _report_item(self, community: Community, score: float) -> Item:
        report = self._graph.reports.get(community.id, Report(0.0, ""))
        level, units = self._height(community), self._members(community)
        return self._item(f"report-{community.id}", "report", report.content, score, units, level)

    def _item(self, name: str, kind: str, text: str, score: float, units: Sequence[int], level: int) -> Item:
        first, last = self._graph.units[min(units)].first, self._graph.units[max(units)].last
        span = " – ".join(dict.fromkeys(time for time in (first.time_text, last.time_text) if time))
        return Item(name, dated(text, span), score, self._sources(units), kind, level)

    def _view(
        self, item: Item, parents: Iterable[str], units: Sequence[int], vector: np.ndarray | None = None
    ) -> NodeView:
        first, last = self._graph.units[min(units)].first, self._graph.units[max(units)].last
        return NodeView(
            item.id, tuple(parents), item.level, item.kind, item.text, vector, item.sources, first.time, last.time
        )


def _whole(question: Question, options: Sequence[Option]) -> str:
    """The question with its options as lettered lines, the benchmark's own instruction and the date."""
    date = f"(Current date: {question.time_text})" if question.time_text else ""
    lines = [question.text, *(f"({option.label}) {option.text}" for option in options), question.instruction, date]
    return "\n".join(line for line in lines if line)
