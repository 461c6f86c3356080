"""The graph of GraphRAG: text units, the extract of each, the entities and relationships merged from all extracts, their communities by
hierarchical Leiden, and the tables from which the report on a community is written.
"""

from __future__ import annotations

import html
import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from data_loaders.schema import Unit
from memsys.interface import spoken, union
from memsys.tokens import count_tokens, first_within, split_tokens

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class TextUnit:
    """A window of one session."""

    text: str
    sources: tuple[str, ...]
    first: Unit
    last: Unit


@dataclass(frozen=True, slots=True)
class Extract:
    """The entities and relationships extracted from one text unit."""

    entities: tuple[tuple[str, str, str], ...] = ()
    """Title, type, description."""
    relationships: tuple[tuple[str, str, str, float], ...] = ()
    """Source, target, description, weight."""


@dataclass(slots=True)
class Gathered:
    """The descriptions of one entity or relationship in all text units, and its summed weight."""

    descriptions: list[str] = field(default_factory=list)
    units: dict[int, None] = field(default_factory=dict)
    """Numbers of the text units, in order (the values are unused)."""
    weight: float = 0.0

    def add(self, description: str, unit: int, weight: float = 0.0) -> None:
        """Add the description that one text unit gives."""
        self.descriptions.append(description)
        self.units[unit] = None
        self.weight += weight


Entities = dict[tuple[str, str], Gathered]
"""Entities by title and type."""
Relationships = dict[tuple[str, str], Gathered]
"""Relationships by source and target."""


@dataclass(frozen=True, slots=True)
class Entity:
    """A node. `units` are the text units that name it; `degree` is the number of other entities it is related to."""

    title: str
    description: str
    units: tuple[int, ...]
    degree: int


@dataclass(frozen=True, slots=True)
class Relationship:
    """A directed edge between two entities, given by their numbers. `combined_degree` is the sum of the degrees of its ends."""

    source: int
    target: int
    description: str
    weight: float
    units: tuple[int, ...]
    combined_degree: int


def text_units(units: Sequence[Unit], size: int | None, overlap: int, encoding: str) -> list[TextUnit]:
    """Windows of `size` tokens over the text of each session; `overlap` of them repeat the end of the window before.

    The sources of a window are the turns with at least one character in it. Size None makes every unit a window.
    """
    if size is None:
        return [TextUnit(unit.text, unit.turn_ids, unit, unit) for unit in units]
    sessions = (list(group) for _, group in itertools.groupby(units, key=lambda unit: unit.session_id))
    return [window for session in sessions for window in _windows(session, size, overlap, encoding)]


def _windows(session: Sequence[Unit], size: int, overlap: int, encoding: str) -> Iterable[TextUnit]:
    turns = [turn for unit in session for turn in unit.turns]
    lines = list(map(spoken, turns))
    ends = list(itertools.accumulate(len(line) + 1 for line in lines))
    # Windows are joined from pieces whose size divides both numbers, so that their places in the text are known.
    step = math.gcd(size, overlap)
    pieces = split_tokens("\n".join(lines), step, 0, encoding)
    edges = [0, *itertools.accumulate(map(len, pieces))]
    for first in range(0, max(1, len(pieces) - overlap // step), (size - overlap) // step):
        window = pieces[first : first + size // step]
        start, end = edges[first], edges[first + len(window)]
        held = [
            turn.id for turn, line, stop in zip(turns, lines, ends, strict=True) if start + 1 < stop <= end + len(line)
        ]
        if held:
            yield TextUnit("".join(window), union([held]), session[0], session[-1])


def extracts_text(replies: Sequence[Any]) -> str:
    """The replies of earlier passes as a prompt shows them."""
    texts = [reply if isinstance(reply, str) else json.dumps(reply, ensure_ascii=False) for reply in replies if reply]
    return "\n".join(texts) or "(nothing)"


def extract(replies: Sequence[Any]) -> Extract:
    """The extract of one text unit from all its replies; each is a JSON object, delimited records, or false."""
    passes = [parse_records(reply) if isinstance(reply, str) else _parse_json(reply) for reply in replies if reply]
    return Extract(
        tuple(entity for part in passes for entity in part.entities),
        tuple(relationship for part in passes for relationship in part.relationships),
    )


def _parse_json(reply: Mapping[str, Any]) -> Extract:
    return _regular(
        [(entity["title"], entity["type"], entity["description"]) for entity in reply["entities"]],
        [
            (edge["source"], edge["target"], edge["description"], edge.get("strength"))
            for edge in reply["relationships"]
        ],
    )


def parse_records(text: str) -> Extract:
    """The extract in delimited records (`##` between records, `<|>` between fields); other text is ignored."""
    entities, relationships = [], []
    for record in text.replace("<|COMPLETE|>", "").split("##"):
        fields = [part.strip() for part in re.sub(r"^\(|\)$", "", record.strip()).split("<|>")]
        kind = fields[0].strip("\"'")
        if kind == "entity" and len(fields) >= 4:
            entities.append((fields[1], fields[2], fields[3]))
        elif kind == "relationship" and len(fields) >= 5:
            relationships.append((fields[1], fields[2], fields[3], fields[-1]))
    return _regular(entities, relationships)


def _regular(entities: Iterable[tuple[str, str, str]], relationships: Iterable[tuple[str, str, str, Any]]) -> Extract:
    """An extract with cleaned names, types and weights; entities and relationships without a name are left out."""
    nodes = [(_name(title), _name(kind), _clean(text)) for title, kind, text in entities]
    edges = [
        (_name(source), _name(target), _clean(text), _weight(weight)) for source, target, text, weight in relationships
    ]
    return Extract(tuple(node for node in nodes if node[0]), tuple(edge for edge in edges if edge[0] and edge[1]))


def _clean(text: str) -> str:
    """The text without control characters and HTML entities."""
    return _CONTROL.sub("", html.unescape(text)).strip()


def _name(text: str) -> str:
    return _clean(text).upper()


def _weight(value: Any) -> float:
    """A weight; 1 where the value is not a positive number."""
    try:
        weight = float(value)
    except (TypeError, ValueError):
        return 1.0
    return weight if math.isfinite(weight) and weight > 0 else 1.0


def merged(extracts: Sequence[Extract], blank_ends: bool) -> tuple[Entities, Relationships]:
    """Entities by (title, type) and relationships by (source, target), gathered from all text units; weights are summed.

    Args:
        extracts: one for each text unit.
        blank_ends: an end that is not an extracted entity becomes an entity without a type; if False, its relationships are dropped.
    """
    entities: Entities = {}
    relationships: Relationships = {}
    for unit, part in enumerate(extracts):
        for title, kind, description in part.entities:
            entities.setdefault((title, kind), Gathered()).add(description, unit)
    titles = {title for title, _ in entities}
    for unit, part in enumerate(extracts):
        for source, target, description, weight in part.relationships:
            unknown = [end for end in (source, target) if end not in titles]
            if source == target or (unknown and not blank_ends):
                continue
            for end in unknown:
                entities.setdefault((end, ""), Gathered()).add("", unit)
            relationships.setdefault((source, target), Gathered()).add(description, unit, weight)
    return entities, relationships


def finalised(
    entities: Entities, relationships: Relationships, descriptions: Sequence[str]
) -> tuple[tuple[Entity, ...], tuple[Relationship, ...]]:
    """The nodes (of each title only the first type) and the edges.

    Args:
        descriptions: of the entities, then of the relationships.
    """
    neighbours: dict[str, set[str]] = {}
    for source, target in relationships:
        neighbours.setdefault(source, set()).add(target)
        neighbours.setdefault(target, set()).add(source)
    nodes: dict[str, Entity] = {}
    for ((title, _), gathered), text in zip(entities.items(), descriptions, strict=False):
        nodes.setdefault(title, Entity(title, text, tuple(gathered.units), len(neighbours.get(title, ()))))
    places = {title: place for place, title in enumerate(nodes)}
    edges = [
        Relationship(
            places[source],
            places[target],
            text,
            gathered.weight,
            tuple(gathered.units),
            len(neighbours[source]) + len(neighbours[target]),
        )
        for ((source, target), gathered), text in zip(relationships.items(), descriptions[len(entities) :], strict=True)
    ]
    return tuple(nodes.values()), tuple(edges)


LEIDEN_SEED = 0xDEADBEEF
HEADINGS = (
    "Reports:",
    "Entities (id | title | description | degree):",
    "Relationships (id | source | target | description | combined degree):",
)


@dataclass(frozen=True, slots=True)
class Community:
    """A community of the hierarchy. Level 0 is the coarsest; ids are unique over all levels."""

    id: int
    level: int
    parent: int | None
    entities: tuple[int, ...]
    relationships: tuple[int, ...]
    """Relationships with both ends inside."""


def communities(
    nodes: Sequence[Entity], edges: Sequence[Relationship], max_size: int, largest_only: bool = True
) -> dict[int, Community]:
    """Communities found by hierarchical Leiden (modularity, resolution 1), by id; those without a relationship inside are left out.

    A relationship and its reverse are one edge, with the weight of the later relationship.

    Args:
        max_size: a community with more entities is divided again, where Leiden finds a division.
        largest_only: leave out all but the largest connected component.

    Raises:
        ImportError: graspologic-native is not installed.
    """
    kept = _largest_component(len(nodes), edges) if largest_only else np.ones(len(nodes), dtype=bool)
    weights: dict[tuple[str, str], float] = {}
    for edge in edges:
        if kept[edge.source]:
            first, second = sorted((nodes[edge.source].title, nodes[edge.target].title))
            weights[first, second] = edge.weight
    places = {node.title: place for place, node in enumerate(nodes)}
    members: dict[int, list[int]] = {}
    origin: dict[int, tuple[int, int | None]] = {}
    for title, cluster, parent, level in _leiden([(*ends, weights[ends]) for ends in sorted(weights)], max_size):
        members.setdefault(cluster, []).append(places[title])
        origin[cluster] = (level, parent)
    inside = _inside(members, origin, edges, len(nodes))
    return {
        cluster: Community(cluster, *origin[cluster], tuple(sorted(members[cluster])), tuple(inside[cluster]))
        for cluster in sorted(inside)
    }


def _largest_component(size: int, edges: Sequence[Relationship]) -> np.ndarray:
    """Whether each node is in the largest connected component, bool [size]; a tie goes to the component whose first node comes first."""
    if not edges:
        return np.zeros(size, dtype=bool)
    sources, targets = np.array([(edge.source, edge.target) for edge in edges]).T
    links = coo_array((np.ones(len(edges)), (sources, targets)), shape=(size, size))
    labels = connected_components(links, directed=False)[1]
    kept: np.ndarray = labels == np.argmax(np.bincount(labels))
    return kept


def _leiden(edges: list[tuple[str, str, float]], max_size: int) -> list[tuple[str, int, int | None, int]]:
    """(node, cluster, parent cluster, level) for every cluster of every node."""
    if not edges:
        return []
    from graspologic_native import hierarchical_leiden

    rows = hierarchical_leiden(
        edges=edges,
        starting_communities=None,
        resolution=1.0,
        randomness=0.001,
        iterations=1,
        use_modularity=True,
        max_cluster_size=max_size,
        seed=LEIDEN_SEED,
    )
    return [(row.node, row.cluster, row.parent_cluster, row.level) for row in rows]


def _inside(
    members: Mapping[int, Sequence[int]],
    origin: Mapping[int, tuple[int, int | None]],
    edges: Sequence[Relationship],
    size: int,
) -> dict[int, list[int]]:
    """The edges with both ends in a cluster, by cluster."""
    edges_of: dict[int, list[int]] = {}
    for level in {level for level, _ in origin.values()}:
        cluster_of = np.full(size, -1)
        for cluster, places in members.items():
            if origin[cluster][0] == level:
                cluster_of[places] = cluster
        for index, edge in enumerate(edges):
            if cluster_of[edge.source] == cluster_of[edge.target] != -1:
                edges_of.setdefault(int(cluster_of[edge.source]), []).append(index)
    return edges_of


class Tables:
    """Writes the tables for the reports of one graph. The tokens of every row are counted once.

    Args:
        budget: maximum number of tokens of the tables for one report.
        as_released: show at most one relationship of an entity, and never replace long tables by reports (release 3.1.2).
    """

    def __init__(
        self,
        nodes: Sequence[Entity],
        edges: Sequence[Relationship],
        divided: Mapping[int, Community],
        budget: int,
        encoding: str,
        as_released: bool = False,
    ) -> None:
        self._edges, self._encoding, self._as_released = edges, encoding, as_released
        self._budget = budget - sum(map(self._count, HEADINGS))
        self._node_rows = self._rows(
            f"{place} | {node.title} | {node.description} | {node.degree}" for place, node in enumerate(nodes)
        )
        self._edge_rows = self._rows(
            f"{place} | {nodes[edge.source].title} | {nodes[edge.target].title} | {edge.description} | {edge.combined_degree}"
            for place, edge in enumerate(edges)
        )
        self._children: dict[int, list[Community]] = {}
        for community in divided.values():
            if community.parent is not None:
                self._children.setdefault(community.parent, []).append(community)

    def context(self, community: Community, reports: Mapping[int, str]) -> str:
        """The tables of a community. Where they are too long, reports of sub-communities replace parts of them, or they are cut.

        Args:
            community: the community to report on.
            reports: the reports already written, by community.
        """
        edges = self._ordered(community)
        fitting, complete = self._fitting(edges, self._budget)
        children = [child for child in self._children.get(community.id, ()) if child.id in reports]
        if complete or self._as_released or not children:
            return self._text((), fitting)
        children.sort(key=lambda child: (-self._size(child), child.id))
        child_reports = [reports[child.id] for child in children]
        covered: set[int] = set()
        for count, child in enumerate(children, start=1):
            covered.update(child.entities)
            rest = [edge for edge in edges if covered.isdisjoint(self._ends(edge))]
            left = self._budget - sum(map(self._count, child_reports[:count]))
            fitting_rest, complete = self._fitting(rest, left)
            if complete:
                return self._text(child_reports[:count], fitting_rest)
        count = len(first_within(child_reports, self._budget, self._count))
        return self._text(child_reports[:count], ()) if count else self._text((), fitting)

    def _count(self, text: str) -> int:
        return count_tokens(text + "\n", self._encoding)

    def _rows(self, lines: Iterable[str]) -> list[tuple[str, int]]:
        return [(line, self._count(line)) for line in lines]

    def _ends(self, edge: int) -> tuple[int, int]:
        return self._edges[edge].source, self._edges[edge].target

    def _ordered(self, community: Community) -> list[int]:
        """The community's relationships, those with the highest combined degree first."""
        edges: Iterable[int] = community.relationships
        if self._as_released:
            outgoing = {self._edges[edge].source: edge for edge in reversed(community.relationships)}
            incoming = {self._edges[edge].target: edge for edge in reversed(community.relationships)}
            edges = set((incoming | outgoing).values())
        return sorted(edges, key=lambda edge: (-self._edges[edge].combined_degree, edge))

    def _fitting(self, edges: Sequence[int], budget: int) -> tuple[Sequence[int], bool]:
        """The first edges whose rows, with the rows of their ends, fit the budget; and whether these are all edges."""
        seen: set[int] = set()
        for count, edge in enumerate(edges):
            new = set(self._ends(edge)) - seen
            budget -= self._edge_rows[edge][1] + sum(self._node_rows[end][1] for end in new)
            if budget < 0:
                return edges[:count], False
            seen |= new
        return edges, budget >= 0

    def _size(self, community: Community) -> int:
        """Tokens of all rows of a community's tables."""
        edges = self._ordered(community)
        ends = {end for edge in edges for end in self._ends(edge)}
        return sum(self._edge_rows[edge][1] for edge in edges) + sum(self._node_rows[end][1] for end in ends)

    def _text(self, reports: Sequence[str], edges: Sequence[int]) -> str:
        """Reports, entities and relationships under their headings; empty tables are left out."""
        ends = dict.fromkeys(end for edge in edges for end in self._ends(edge))
        blocks = (reports, [self._node_rows[end][0] for end in ends], [self._edge_rows[edge][0] for edge in edges])
        return "\n".join("\n".join((heading, *rows)) for heading, rows in zip(HEADINGS, blocks, strict=True) if rows)
