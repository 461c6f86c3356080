"""The graph of GraphRAG: text units, what is found in them, and how the findings of all are merged into entities and relationships."""

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
from memsys.interface import union
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
    """What was found in one text unit."""

    entities: tuple[tuple[str, str, str], ...] = ()
    """Title, type, description."""
    relationships: tuple[tuple[str, str, str, float], ...] = ()
    """Source, target, description, weight."""


@dataclass(slots=True)
class Gathered:
    """What all text units say of one entity or relationship."""

    descriptions: list[str] = field(default_factory=list)
    units: dict[int, None] = field(default_factory=dict)
    weight: float = 0.0

    def add(self, description: str, unit: int, weight: float = 0.0) -> None:
        self.descriptions.append(description)
        self.units[unit] = None
        self.weight += weight


Entities = dict[tuple[str, str], Gathered]
"""By title and type."""
Relationships = dict[tuple[str, str], Gathered]
"""By source and target."""


@dataclass(frozen=True, slots=True)
class Entity:
    """A node; `units` are the text units that name it, `degree` is the number of other entities that it is related to."""

    title: str
    description: str
    units: tuple[int, ...]
    degree: int


@dataclass(frozen=True, slots=True)
class Relationship:
    """A directed edge between two entities, given by their places; `combined_degree` is the sum of its ends' degrees."""

    source: int
    target: int
    description: str
    weight: float
    units: tuple[int, ...]
    combined_degree: int


def text_units(units: Sequence[Unit], size: int | None, overlap: int, encoding: str) -> list[TextUnit]:
    """Windows of `size` tokens over each session's text, `overlap` of them repeated from the window before.

    A window stands for the turns of which it holds a character. Size None makes every unit a window.
    """
    if size is None:
        return [TextUnit(unit.text, unit.turn_ids, unit, unit) for unit in units]
    sessions = (list(group) for _, group in itertools.groupby(units, key=lambda unit: unit.session_id))
    return [window for session in sessions for window in _windows(session, size, overlap, encoding)]


def _windows(session: Sequence[Unit], size: int, overlap: int, encoding: str) -> Iterable[TextUnit]:
    turns = [turn for unit in session for turn in unit.turns]
    lines = [f"{turn.speaker}: {turn.text}" if turn.speaker else turn.text for turn in turns]
    ends = list(itertools.accumulate(len(line) + 1 for line in lines))
    # Windows are made of pieces of the largest size that divides both numbers, so that their places in the text are known.
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


def found_so_far(replies: Sequence[Any]) -> str:
    """What earlier passes found, as a prompt shows it."""
    shown = [reply if isinstance(reply, str) else json.dumps(reply, ensure_ascii=False) for reply in replies if reply]
    return "\n".join(shown) or "(nothing)"


def extract(replies: Sequence[Any]) -> Extract:
    """What all passes over one text unit found: each reply is a JSON object, delimited records, or None."""
    passes = [parse_records(reply) if isinstance(reply, str) else _parse_json(reply) for reply in replies if reply]
    return Extract(
        tuple(entity for found in passes for entity in found.entities),
        tuple(relationship for found in passes for relationship in found.relationships),
    )


def _parse_json(reply: Mapping[str, Any]) -> Extract:
    return _regular(
        [(one["title"], one["type"], one["description"]) for one in reply["entities"]],
        [(one["source"], one["target"], one["description"], one.get("strength")) for one in reply["relationships"]],
    )


def parse_records(text: str) -> Extract:
    """The extract that delimited records hold (`##` between records, `<|>` between fields); what is none is ignored."""
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
    """The extract with names, types and weights made regular; what has no name is left out."""
    nodes = [(_name(title), _name(kind), _clean(text)) for title, kind, text in entities]
    edges = [(_name(one), _name(other), _clean(text), _weight(weight)) for one, other, text, weight in relationships]
    return Extract(tuple(node for node in nodes if node[0]), tuple(edge for edge in edges if edge[0] and edge[1]))


def _clean(text: str) -> str:
    return _CONTROL.sub("", html.unescape(text)).strip()


def _name(text: str) -> str:
    return _clean(text).upper()


def _weight(value: Any) -> float:
    try:
        weight = float(value)
    except (TypeError, ValueError):
        return 1.0
    return weight if math.isfinite(weight) and weight > 0 else 1.0


def merged(found: Sequence[Extract], blank_ends: bool) -> tuple[Entities, Relationships]:
    """Entities by (title, type) and relationships by (source, target), gathered from all text units; weights are summed.

    Args:
        found: one extract for each text unit.
        blank_ends: an end that nobody described becomes an entity without type; else its relationships are dropped.
    """
    entities: Entities = {}
    relationships: Relationships = {}
    for unit, one in enumerate(found):
        for title, kind, description in one.entities:
            entities.setdefault((title, kind), Gathered()).add(description, unit)
    titles = {title for title, _ in entities}
    for unit, one in enumerate(found):
        for source, target, description, weight in one.relationships:
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
    """The nodes, of each title the first type only, and the edges; `descriptions` are of the entities, then of the relationships."""
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
