"""What the fields of a run's files hold, by name: a value of another type is a damaged file, and is said before anything is computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

Check = Callable[[Any], bool]


def text(value: Any) -> bool:
    return type(value) is str


def whole(value: Any) -> bool:
    return type(value) is int


def number(value: Any) -> bool:
    return type(value) is int or type(value) is float


def texts(value: Any) -> bool:
    return type(value) is list and all(map(text, value))


def numbers(value: Any) -> bool:
    return type(value) is list and all(map(number, value))


def counts(value: Any) -> bool:
    return type(value) is dict and all(map(whole, value.values()))


def counts_by_name(value: Any) -> bool:
    return type(value) is dict and all(map(counts, value.values()))


def mapping(value: Any) -> bool:
    return type(value) is dict


def score(value: Any) -> bool:
    return value is None or number(value)


def outcome(value: Any) -> bool:
    return type(value) is str and value in ("answered", "recalled", "error", "aborted")


def phase(value: Any) -> bool:
    return type(value) is str and value in ("embed", "write", "consolidate", "read", "answer", "judge")


def flag(value: Any) -> bool:
    return type(value) is bool


FIELDS: Mapping[str, Check] = {
    **dict.fromkeys(("case_id", "question_id", "answer", "error", "subject", "why", "key", "id", "text"), text),
    **dict.fromkeys(("items", "sources", "parents"), texts),
    **dict.fromkeys(("calls", "attempts", "failures", "parse_failures", "notes"), counts),
    **dict.fromkeys(("held", "sent", "tokens_in", "tokens_out", "tokens_cached", "tokens_reasoning"), whole),
    **dict.fromkeys(
        ("embedding_calls", "embedding_tokens", "context_tokens", "dropped_items", "level", "repeat"), whole
    ),
    **dict.fromkeys(("provider_seconds", "provider_seconds_sum", "own_cpu_seconds"), number),
    **{
        "phase": phase,
        "cut": flag,
        "kind": text,
        "scores": numbers,
        "value": score,
        "detail": mapping,
        "roles": counts_by_name,
        "outcome": outcome,
    },
}
"""Of `predictions`, `items`, `effort`, `nodes` and score files; a name means the same in all of them."""


EVIDENCE: Mapping[str, Check] = {"verbatim": number, "ndcg": number, "sources_per_item": score}
"""Of the `detail` of an evidence score that has a value."""


TYPES: Mapping[Check, frozenset[type]] = {
    text: frozenset([str]),
    whole: frozenset([int]),
    number: frozenset([int, float]),
    mapping: frozenset([dict]),
    score: frozenset([int, float, type(None)]),
    flag: frozenset([bool]),
}
"""Checks of a value's type alone."""

CONTENTS: Mapping[Check, tuple[type, frozenset[type]]] = {
    texts: (list, frozenset([str])),
    numbers: (list, frozenset([int, float])),
    counts: (dict, frozenset([int])),
}
"""Checks of a value's type and of the types that it holds."""


def wrong_field(records: Sequence[Mapping[str, Any]]) -> tuple[int, str] | None:
    """The place of the first record with a field that holds something else than it should, from 1, and the field; None without any.

    Fields are looked at one after another over all records of one shape, which is faster than record by record.
    """
    shapes: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for record in records:
        shapes.setdefault(tuple(record), []).append(record)
    if all(_holds(name, alike) for names, alike in shapes.items() for name in names):
        return None
    for place, record in enumerate(records, 1):
        for name in record:
            if not _holds(name, [record]):
                return place, name
    raise AssertionError("a field is wrong in no record")


def _holds(name: str, records: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all records hold in a field what it should hold."""
    if (check := FIELDS.get(name)) is None:
        return True
    values = [record[name] for record in records]
    if (types := TYPES.get(check)) is not None:
        return types.issuperset(map(type, values))
    if (contents := CONTENTS.get(check)) is not None:
        outer, inner = contents
        if not all(type(value) is outer for value in values):
            return False
        held = (value.values() if outer is dict else value for value in values)
        return inner.issuperset(map(type, chain.from_iterable(held)))
    return all(map(check, values))
