"""GraphRAG's communities: hierarchical Leiden over the graph, and the tables from which the report on a community is written."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from memsys.systems.graphrag.graph import Entity, Relationship
from memsys.tokens import count_tokens

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
        count = sum(size <= self._budget for size in itertools.accumulate(map(self._count, child_reports)))
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
