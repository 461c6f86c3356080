"""The graph of GraphRAG: text units, the extract of each, and the entities and relationships merged from all extracts."""

from __future__ import annotations

import html
import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from data_loaders.schema import Unit
from memsys.interface import spoken, union
from memsys.tokens import split_tokens

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
    """The extract of one text unit from all its replies; each is a JSON object, delimited records, or None."""
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
