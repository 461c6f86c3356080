"""Builds a value that satisfies a prompt's JSON schema from the texts that the offline engine has selected."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

from memsys.llm.offline.reading import content_words


@dataclass(frozen=True, slots=True)
class Found:
    """The engine's result for a prompt, before it is put into the form that the prompt asks for."""

    text: str
    strength: float = 0.0
    """Strength of the match in [0, 1]; the log-probabilities are computed from it."""
    parts: tuple[str, ...] = ()
    """Texts for the elements of an array."""
    labels: tuple[str, ...] = ()
    """Chosen labels, best first."""
    prefers: tuple[str, ...] = ()
    """Labels to choose if the schema allows them; they are not used as text."""
    rest: tuple[str, ...] = ()
    """Labels that were not chosen, best first."""
    ratings: tuple[tuple[str, float], ...] = ()
    """A rating in [0, 1] for each label."""
    rating: float | None = None
    """In [0, 1]; None if the result has no rating, so that numbers get the least allowed value."""
    flag: bool | None = None
    """Value of a boolean; None if the result has none."""
    title: str = ""
    time: date | None = None


# The purpose of a property, by its name.
_EXPLAINS = re.compile(r"reason|justif|thought|explan|rationale|analysis|evidence|summary|description", re.IGNORECASE)
_TITLES = re.compile(r"title|name|headline", re.IGNORECASE)
_TIMES = re.compile(r"(?:^|_)(?:time|date|timestamp|at)$", re.IGNORECASE)
_RATES = re.compile(r"score|rating|relevance|importance|confidence|weight", re.IGNORECASE)
_IDS = re.compile(r"(?:^|_)(?:ids?|index|indices|ranking|labels?|numbers?)$", re.IGNORECASE)


def form(schema: Mapping[str, Any], found: Found, name: str = "") -> Any:
    """A value that satisfies a JSON schema, filled with the engine's result; `name` is the property that the value belongs to.

    Supports const, enum, anyOf/oneOf (the first), type, properties, items, prefixItems, minimum, maximum, minItems, maxItems, minLength
    and maxLength.

    Raises:
        ValueError: the schema has no supported type.
    """
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return labelled(schema["enum"], found)
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return form(choices[0], found, name)
    kinds = schema.get("type", "object" if "properties" in schema else None)
    kind = next((each for each in kinds if each != "null"), "null") if isinstance(kinds, list) else kinds
    if kind == "object" and (ends := _ends_by_key(schema, found.text)):
        by_key = {key: replace(found, text=ends.get(key, found.text), title="") for key in schema["properties"]}
        return {key: form(part, by_key[key], key) for key, part in schema["properties"].items()}
    if kind == "object":
        return {key: form(part, found, key) for key, part in schema.get("properties", {}).items()}
    if kind == "array":
        return _array(schema, found, name)
    if kind == "string":
        return _string(schema, found, name)
    if kind in ("integer", "number"):
        number = _number(schema, found, name)
        return round(number) if kind == "integer" else round(number, 4)
    if kind == "boolean":
        return bool(found.flag)
    if kind == "null":
        return None
    raise ValueError(f"the extractive engine cannot fill a schema of type {kind!r} ({name or 'reply'})")


def _ends(text: str) -> tuple[str, str]:
    """The first and the last content word of a statement, taken as the two ends of a relation."""
    words = content_words(text) or [text]
    return words[0], words[-1]


def _ends_by_key(schema: Mapping[str, Any], text: str) -> dict[str, str]:
    """The ends of a relation by the properties that name them (`source`, `target_name` …); empty if the object is not a relation."""
    sides = {key.partition("_")[0]: key for key in schema.get("properties", {})}
    if not {"source", "target"} <= set(sides):
        return {}
    return {sides[side]: end for side, end in zip(("source", "target"), _ends(text), strict=True)}


def labelled(labels: Sequence[Any], found: Found) -> Any:
    """The first chosen label that is allowed; else a label by rating or flag (the first label is the favourable one); else a label that
    belongs to no option.
    """
    numbers = sorted(label for label in labels if isinstance(label, int | float) and not isinstance(label, bool))
    if found.rating is not None and (numbers or found.flag is None):
        return (numbers or labels)[round(found.rating * (len(numbers or labels) - 1))]
    by_name = {str(label): label for label in labels}
    if chosen := [by_name[label] for label in (*found.labels, *found.prefers) if label in by_name]:
        return chosen[0]
    if found.flag is not None:
        return labels[0] if found.flag else labels[-1]
    without_option = [label for label in labels if str(label) not in found.rest]
    return without_option[0] if without_option else by_name[found.rest[0]]


def _array(schema: Mapping[str, Any], found: Found, name: str) -> list[Any]:
    if len(tuple_items := schema.get("prefixItems", ())) == 3:  # a triplet: subject, relation, object
        subject, target = _ends(found.text)
        texts = (subject, found.text, target)
        return [form(part, replace(found, text=text), name) for part, text in zip(tuple_items, texts, strict=True)]
    if tuple_items:
        return [form(part, found, name) for part in tuple_items]
    items = schema.get("items", {"type": "string"})
    if found.rating is not None and found.labels and items.get("type") in ("integer", "number"):
        return [form(items, found, "id"), form(items, found, "score")]  # a pair inside a list of ratings
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    elements = [form(items, element, name) for element in _elements(found, name)][:most]
    spare = [form(items, replace(found, text=label, labels=(label,)), name) for label in found.rest]
    spare += [form(items, replace(found, parts=(), ratings=()), name)] * least
    return elements + spare[: max(0, least - len(elements))]


def _elements(found: Found, name: str) -> list[Found]:
    """The results that an array's elements are filled from, one per rating, chosen label or part."""
    if found.ratings:
        rated = [Found(label, rating, labels=(label,), rating=rating) for label, rating in found.ratings]
        return sorted(rated, key=lambda element: -element.strength) if _IDS.search(name) else rated
    if found.labels:
        return [replace(found, labels=(label,)) for label in found.labels]
    return [replace(found, text=part, title="", parts=(part,)) for part in found.parts]


def _string(schema: Mapping[str, Any], found: Found, name: str) -> str:
    if found.labels and not _EXPLAINS.search(name):
        text = found.labels[0]
    elif _TIMES.search(name) and found.time is not None:
        text = found.time.isoformat()
    elif _TITLES.search(name) and found.title:
        text = found.title
    else:
        text = found.text
    return text[: schema.get("maxLength")].ljust(schema.get("minLength", 0), ".")


def _number(schema: Mapping[str, Any], found: Found, name: str) -> float:
    """A rating scaled to the schema's bounds (0 to 1 without bounds), else the number in the chosen label, else the least allowed."""
    least = schema.get("minimum", 0)
    rating = found.strength if found.rating is None and _RATES.search(name) else found.rating
    labels = found.labels or (found.rest if str(least) in found.rest else ())
    digits = re.search(r"-?\d+", labels[0]) if labels else None
    if rating is not None and not (digits and _IDS.search(name)):
        value: float = least + rating * (schema.get("maximum", least + 1) - least)
    else:
        value = float(digits.group()) if digits else least
    return float(min(max(value, least), schema.get("maximum", math.inf)))
