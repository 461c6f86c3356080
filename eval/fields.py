"""What the fields of a run's files hold, by name: a value of another type is a damaged file, and is said before anything is computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    return type(value) is str and value in ("answered", "error", "aborted")


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


def wrong_field(record: Mapping[str, Any]) -> str:
    """The name of a field that holds something else than it should; empty when there is none."""
    for name, value in record.items():
        if (check := FIELDS.get(name)) is not None and not check(value):
            return name
    return ""
