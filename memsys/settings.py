"""Settings of memories as records: one or more frozen dataclasses, for parts of the build and for the settings that only reads use.

A file of `conf/memory` states their fields flat, next to the other parameters of the constructor.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge

Positive = Annotated[int, Ge(1)]
NotNegative = Annotated[int, Ge(0)]
Made = TypeVar("Made")
Record = TypeVar("Record", bound="Settings")


@dataclass(frozen=True)
class Settings:
    """Base class of a memory's settings records. Each record is a parameter of the constructor, with a default, and an attribute of the
    memory under the same name.

    Raises:
        ValueError: a word is not one of its `Literal`, or a number is below its minimum.
    """

    def __post_init__(self) -> None:
        for name, annotation in _hints(type(self)).items():  # type: ignore[arg-type]
            value, union = getattr(self, name), get_origin(annotation) in (Union, UnionType)
            kinds = get_args(annotation) if union else (annotation,)
            words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
            if value is None and type(None) in kinds:
                continue
            if words and value not in words and (value is None or isinstance(value, str) or len(kinds) == 1):
                raise ValueError(f"{name} must be one of {', '.join(map(str, words))}, found {value!r}")
            for least in [bound.ge for kind in kinds for bound in get_args(kind)[1:] if isinstance(bound, Ge)]:
                if isinstance(value, int) and value < least:  # type: ignore[operator]
                    raise ValueError(f"{name} must be at least {least}, found {value}")


_hints = cache(partial(get_type_hints, include_extras=True))
"""The annotations of a record's fields, evaluated only once, because every read may make a record."""


def parameters(target: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The values that a file states for a class or a function: its parameters, each record replaced by its fields."""
    constructor = vars(target).get("__init__", target) if isinstance(target, type) else target
    try:
        hints = get_type_hints(constructor, include_extras=True)
    except (NameError, TypeError):  # some annotations exist only for type checkers
        hints = {}
    flat: dict[str, inspect.Parameter] = {}
    for name, parameter in inspect.signature(target).parameters.items():
        if isinstance(record := parameter.default, Settings):
            fields_of = parameters(type(record)).items()
            flat |= {field: own.replace(default=getattr(record, field)) for field, own in fields_of}
        else:
            flat[name] = parameter.replace(annotation=hints.get(name, Any))
    return flat


def with_settings(target: Callable[..., Made], stated: Mapping[str, Any]) -> partial[Made]:
    """A constructor with its settings, given flat in `stated`; services are still to be passed.

    Raises:
        ValueError: a record refuses a setting.
    """
    rest, records = dict(stated), {}
    for name, parameter in inspect.signature(target).parameters.items():
        if isinstance(record := parameter.default, Settings):
            records[name] = _changed(record, rest)
    return partial(target, **rest, **records)


def _changed(record: Settings, rest: dict[str, Any]) -> Settings:
    """The record with its fields set from these settings, which are removed from `rest`."""
    return replace(record, **{field.name: rest.pop(field.name) for field in fields(record) if field.name in rest})


def filled(record: Record, values: Mapping[str, Any]) -> Record:
    """The record with these values where it holds None."""
    return replace(record, **{name: value for name, value in values.items() if getattr(record, name) is None})


def setting(memory: Any, name: str) -> Any:
    """The value of a setting, which is an attribute of the memory or of one of its records."""
    held = [record for record in vars(memory).values() if isinstance(record, Settings) and hasattr(record, name)]
    return getattr(held[0] if held else memory, name)


def tuned(memory: Made, knobs: Mapping[str, Any]) -> Made:
    """A shallow copy of a memory with these read settings: the same build, read differently.

    Raises:
        ValueError: a record refuses a setting of the copy.
    """
    view, rest = copy(memory), dict(knobs)
    for name, record in vars(memory).items():
        if isinstance(record, Settings):
            setattr(view, name, _changed(record, rest))
    for name, value in rest.items():
        setattr(view, name, value)
    return view
