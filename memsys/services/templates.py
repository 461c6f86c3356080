"""Placeholders and paths of a description in YAML: `{text}` in a request, `results.*.memory` in a reply.

Paths are plain dotted names. A JSONPath library would bring filters, scripts and a grammar to learn, which are not needed for a reply whose
list of hits has a name; this module refuses other syntax.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

_PLACE = re.compile(r"\{(\w+)\}")
LEFT_OUT = object()
"""Marks a field whose value is unknown; the field is not sent."""


def filled(template: Any, values: Mapping[str, Any]) -> Any:
    """The template with its placeholders replaced.

    A text that is one placeholder becomes the value itself, with its type; a field whose value is None is left out.
    `{each: turns, as: …}` becomes a list with an entry for each mapping in `values["turns"]`.
    """
    value = _filled(template, values)
    return None if value is LEFT_OUT else value


def _filled(template: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(template, str):
        return _text(template, values)
    if isinstance(template, Mapping):
        if set(template) == {"each", "as"}:
            return [filled(template["as"], {**values, **entry}) for entry in values[template["each"]]]
        fields = {name: _filled(inner, values) for name, inner in template.items()}
        return {name: inner for name, inner in fields.items() if inner is not LEFT_OUT}
    if isinstance(template, Sequence):
        return [entry for entry in (_filled(inner, values) for inner in template) if entry is not LEFT_OUT]
    return template


def _text(template: str, values: Mapping[str, Any]) -> Any:
    if (whole := _PLACE.fullmatch(template)) is not None:
        value = values[whole[1]]
        return LEFT_OUT if value is None else value
    return _PLACE.sub(lambda place: _plain(values[place[1]]), template)


def filled_path(template: str, values: Mapping[str, Any]) -> str:
    """The path of a URL with its placeholders replaced; values are escaped, so that each stays between its two slashes."""
    return _PLACE.sub(lambda place: quote(_plain(values[place[1]]), safe="").replace(".", "%2E"), template)


def _plain(value: Any) -> str:
    return "" if value is None else str(value)


def placeholders(template: Any) -> set[str]:
    """Names of the placeholders of a template."""
    if isinstance(template, str):
        return set(_PLACE.findall(template))
    if isinstance(template, Mapping):
        inner = set().union(*(placeholders(value) for value in template.values()), set())
        return inner | ({template["each"]} if set(template) == {"each", "as"} else set())
    if isinstance(template, Sequence):
        return set().union(*(placeholders(value) for value in template), set())
    return set()


def reached(value: Any, path: str) -> list[Any]:
    """All values at a path of names and places in lists, such as `results.0.id`; `*` means all entries, the empty path the whole."""
    values = [value]
    for name in path.split(".") if path else ():
        values = [inner for outer in values for inner in _inside(outer, name)]
    return values


def _inside(value: Any, name: str) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values()) if name == "*" else [value[name]] if name in value else []
    if isinstance(value, list):
        if name == "*":
            return value
        return [value[int(name)]] if name.isdigit() and int(name) < len(value) else []
    return []


@dataclass(frozen=True, slots=True)
class Condition:
    """The condition on a reply: one of `equals` at `path`."""

    path: str
    equals: tuple[Any, ...]

    def holds(self, reply: Any) -> bool:
        """Whether a value at the path is one of those named. True and 1 are different values, as in JSON."""
        return any(
            type(value) is type(wanted) and value == wanted
            for value in reached(reply, self.path)
            for wanted in self.equals
        )


def condition(where: str, given: Any) -> Condition | None:
    """A condition as YAML gives it, `{path: status, equals: [done]}`; None for none.

    Raises:
        ValueError: it has another form.
    """
    if given is None:
        return None
    given = mapping(where, given, {"path", "equals"})
    if set(given) != {"path", "equals"} or not isinstance(given["equals"], list) or not given["equals"]:
        raise ValueError(f"{where} must be {{path: …, equals: [value, …]}}, found {given!r}")
    return Condition(str(given["path"]), tuple(given["equals"]))


def mapping(where: str, given: Any, known: set[str]) -> dict[str, Any]:
    """A mapping that has known keys only.

    Raises:
        ValueError: it is none, or has another key.
    """
    if not isinstance(given, Mapping):
        raise ValueError(f"{where} must be a mapping, found {given!r}")
    if unknown := sorted(set(map(str, given)) - known):
        raise ValueError(f"{where}: {unknown[0]} is no setting of it; there are {', '.join(sorted(known))}")
    return dict(given)
