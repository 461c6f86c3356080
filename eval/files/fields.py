"""Types and ranges of the fields of a run's files, by name: another value means a damaged file, reported before anything is computed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, get_args

from eval.files.records import Effort, Outcome, Prediction, Score

LARGEST = 2.0**53
"""A number beyond it is damage: a page in a browser could not hold it exactly."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The types that a field may have, and the range of its numbers."""

    types: frozenset[type]
    inside: Kind | None = None
    """For a list or a mapping: the kind of its items or values."""
    least: float | None = None
    """For numbers: the smallest one; the largest is `LARGEST`. None allows any value of the types, also one that is no number."""
    among: frozenset[str] | None = None
    """The only values; None allows all of the types."""

    def holds(self, value: Any) -> bool:
        """Whether the field may hold this value."""
        if type(value) not in self.types or not (self.among is None or value in self.among):
            return False
        if self.least is not None:  # also false for NaN, and for infinities
            return value is None or self.least <= value <= LARGEST
        return self.inside is None or all(map(self.inside.holds, value.values() if type(value) is dict else value))


TEXT, MAPPING = Kind(frozenset([str])), Kind(frozenset([dict]))
WHOLE, AMOUNT = (Kind(frozenset(types), least=0.0) for types in ([int], [int, float]))
NUMBER, SCORE = (Kind(frozenset(types), least=-LARGEST) for types in ([int, float], [int, float, type(None)]))
COUNTS = Kind(frozenset([dict]), WHOLE)
TEXTS, NUMBERS = (Kind(frozenset([list, tuple]), each) for each in (TEXT, NUMBER))
PER_QUESTION = ("read", "answer")
"""Phases whose effort lines belong to a question."""
PHASES = frozenset(["embed", "write", "consolidate", "read", "answer", "judge"])

BY_TYPE: Mapping[Any, Kind] = {
    "str": TEXT,
    "bool": Kind(frozenset([bool])),
    "int": WHOLE,
    "float": AMOUNT,
    "float | None": SCORE,
    "tuple[str, ...]": TEXTS,
    "tuple[float, ...]": NUMBERS,
    "Mapping[str, int]": COUNTS,
    "Mapping[str, Any]": MAPPING,
    "Mapping[str, Mapping[str, int]]": Kind(frozenset([dict]), COUNTS),
    "Outcome": Kind(frozenset([str]), among=frozenset(get_args(Outcome))),
}
"""By the annotation of a record's field: what a line may hold there."""
FIELDS: Mapping[str, Kind] = {
    **{each.name: BY_TYPE[each.type] for record in (Prediction, Effort, Score) for each in fields(record)},
    **dict.fromkeys(("key", "id", "text", "kind"), TEXT),
    **dict.fromkeys(("sources", "parents"), TEXTS),
    "level": WHOLE,
    "phase": Kind(frozenset([str]), among=PHASES),
}
"""Fields of `predictions`, `items`, `effort`, `nodes` and score files; a name means the same in all of them."""


EVIDENCE: Mapping[str, Kind] = {"verbatim": SCORE, "ndcg": NUMBER, "sources_per_item": SCORE}
"""Fields of the `detail` of an evidence score that has a value."""


def check_fields(record: Mapping[str, Any]) -> None:
    """Check what a memory or a metric returned before it is written: a file with another value would be refused whenever it is read.

    Raises:
        TypeError: a field is of a wrong type, or outside its range.
    """
    if (name := wrong_field(record)) is not None:
        raise TypeError(f"{name} cannot be {record[name]!r}"[:200])


def wrong_field(record: Mapping[str, Any]) -> str | None:
    """The first field of a record with a value that it may not hold; None if all are right."""
    for name, value in record.items():  # faster than `next` on a generator, and every line of every run is checked
        kind = FIELDS.get(name)
        if kind is not None and not kind.holds(value):
            return name
    return None
