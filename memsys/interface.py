"""The interface of a memory system: the methods `write`, `consolidate` and `read`, and the records that they exchange.

A new memory is built for every case. It receives, by keyword, the services that its `__init__` names:
`llm` (`memsys.llm.protocol.LLM`), `probe` (an LLM that returns log-probabilities), `embedder` (`memsys.vectors.Embedder`),
`prompts` (`memsys.prompts.Prompts`) and `rng` (`numpy.random.Generator`, seeded per case). All other parameters are settings, or records
of settings: one or more frozen dataclasses (`Settings`), for parts of the build and for the settings that only reads use. Their values come
from `conf/memory/<name>.yaml`, which states the fields of records flat, next to the other parameters.
"""

from __future__ import annotations

import inspect
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, fields, replace
from datetime import datetime
from functools import cache, partial
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from annotated_types import Ge, Gt, Le

from data_loaders.schema import Question, Role, Turn, Unit


@dataclass(frozen=True, slots=True)
class Item:
    """One piece of recalled text."""

    id: str
    text: str
    """The text that the reader shows; `dated` puts the time in front, if there is one."""
    score: float
    """The memory's own ranking score; scores of different memories are not comparable."""
    sources: tuple[str, ...]
    """Ids of the turns that the text comes from, also when it is rewritten: a summary has the union of its descendants' ids."""
    kind: str = "leaf"
    level: int = 0
    """0 for a raw unit; higher for a more abstract text."""


@dataclass(frozen=True, slots=True)
class Recall:
    """A memory's result for a question."""

    items: tuple[Item, ...]
    """In the order in which the reader shows them."""
    answer: str | None = None
    """The answer itself, only from systems that answer in their own loop."""
    aborted: str = ""
    """The reason why the search ended without a result; else empty. Aborted searches are a separate outcome, not abstentions."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node of a memory's structure, for the structure tools."""

    id: str
    parents: tuple[str, ...]
    """Ids of the parent nodes: several with soft clusters, none for a root."""
    level: int
    kind: str
    text: str
    vector: np.ndarray | None
    """float32 [d], unit length; None for a node without a vector."""
    sources: tuple[str, ...]
    """Ids of the turns that the node's text comes from."""
    start: datetime | None = None
    """Time of its earliest turn, if known."""
    end: datetime | None = None
    """Time of its latest turn, if known."""


class MemorySystem(ABC):
    """A memory system: the run writes a history into it unit by unit and reads it with questions.

    A memory uses neither the system clock nor global random state: times come from units and questions, randomness from `rng`.
    """

    READ_KNOBS: ClassVar[tuple[str, ...]] = ()
    """Settings that only reads use: a sweep reads one build with several values of them (`memsys.interface.tuned`)."""
    PROMPTS: ClassVar[tuple[str, ...]] = ()
    """Folders of `memsys/prompts` that it uses; their contents are part of a run's identity."""
    MODES: ClassVar[tuple[str, ...]] = ()
    """Valid values of its setting `mode`, the default first; empty if it has no such setting."""
    UNIT: ClassVar[dict[str, Any]] = {}
    """Its own unit rule, e.g. `{"rule": "utterance"}`; empty for the data set's default. A table may override it."""
    ENTRIES: ClassVar[str] = ""
    """Name of its attribute with the entries from which a read selects, where that is one collection (`held`)."""
    EMBEDS_UNITS: ClassVar[bool] = True
    """Whether it embeds the text of units. If not, the run loop does not embed them in advance."""
    OFFLINE: ClassVar[bool] = False
    """Whether `consolidate` rebuilds the whole structure, so that one new unit costs a complete build."""
    INDEPENDENT_CALLS: ClassVar[bool] = False
    """Whether its build submits its calls in large groups that do not wait for each other, so that the batch API suits them."""
    HIDDEN_ROOT: ClassVar[bool] = False
    """Whether its topmost nodes have a common root that `nodes` does not yield."""
    REHEARSED: ClassVar[bool] = True
    """Whether the run makes a short build with offline engines before it times the first build. False if writes leave this process."""
    PLANNED_WITH: ClassVar[Mapping[str, Any]] = {}
    """Settings that replace its own when a build is only counted for a plan: quicker, with about as many calls."""
    REPLAYABLE: ClassVar[bool] = True
    """Whether a run can be repeated from the cache of model calls. False if its state is in a program outside the cache."""
    PAST_K: ClassVar[str] = ""
    """The reason why a recall may hold more items than the setting `k`; empty if it may not."""

    WAITS_TO_READ: ClassVar[bool] = False
    """Whether its reads wait for a service, so that the run loop reads several questions at once although no model is called."""
    WAIVED: ClassVar[Mapping[str, str]] = {}
    """Promises of the memory contract and checks of conformance that it cannot keep, with the reasons; a file of `conf/memory` may add to
    them (`waived`). Those of programs outside this process are printed under their tables."""

    @abstractmethod
    def write(self, unit: Unit) -> None:
        """Add the next unit of the history."""

    def end_session(self, session_id: str) -> None:  # noqa: B027 - an optional hook
        """Called after the last unit of a session."""

    def consolidate(self) -> None:  # noqa: B027 - an optional hook
        """Called before questions are read. Further writes may follow, and must work as if it had not been called."""

    @property
    def uses_asker(self) -> bool:
        """Whether its recalls and answers may depend on `Question.asker`. The contract forbids that for every other memory."""
        return False

    @abstractmethod
    def read(self, question: Question) -> Recall:
        """Recall the texts that are relevant to the question. Does not change the memory; several threads may call it at once."""

    def clear_up(self) -> str:
        """Remove data that killed runs left outside this process; return a sentence about it, empty if there was nothing.

        Called once before the cases of a run are built, on a memory that is used for nothing else.
        """
        return ""

    def nodes(self) -> Iterator[NodeView]:
        """The nodes of the current structure; none for a memory without structure."""
        return iter(())

    @property
    def held(self) -> int:
        """Number of entries that a read selects from (reported as memory size); 0 if the memory does not count them."""
        return len(getattr(self, self.ENTRIES)) if self.ENTRIES else 0

    @property
    def asks_logprobs(self) -> bool:
        """Whether its reads need log-probabilities from the service `probe`; used only if its `__init__` takes that service."""
        return True

    def close(self) -> None:  # noqa: B027 - an optional hook
        """Called once after the last read, also when the build has failed: ends processes and closes connections."""

    @classmethod
    def outside(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Identity of the programs outside this process that a memory with these settings runs; part of a run's identity.

        Raises:
            ValueError: such a program is not installed.
        """
        return {}

    def report(self) -> dict[str, Any]:
        """Statistics of the build (node counts, fallback rates …), JSON-serialisable; written once per case."""
        return {}


def positive(name: str, value: int) -> int:
    """Return the value of the setting `name`, which must be at least 1.

    Raises:
        ValueError: the value is below 1; the message names the setting.
    """
    if value < 1:
        raise ValueError(f"{name} must be at least 1, found {value}")
    return value


def dated(text: str, time_text: str) -> str:
    """The text with its time in front, `[time] text`: the form in which all memories show dates to the reader."""
    return f"[{time_text}] {text}" if time_text else text


def period_text(first: Unit, last: Unit) -> str:
    """The times of two units as one text, `first – last`; a single time where both are the same or one is unknown."""
    return " – ".join(dict.fromkeys(unit.time_text for unit in (first, last) if unit.time_text))


def period(units: Iterable[Unit]) -> tuple[datetime | None, datetime | None]:
    """The earliest and the latest known time of the units; (None, None) where none is known."""
    times = [unit.time for unit in units if unit.time is not None]
    return min(times, default=None), max(times, default=None)


def spoken(turn: Turn) -> str:
    """A turn as `speaker: text`, or its text alone where the speaker has no name."""
    return f"{turn.speaker}: {turn.text}" if turn.speaker else turn.text


def unit_item(unit: Unit, score: float = 0.0, *, kind: str = "leaf") -> Item:
    """A raw unit as a recalled item."""
    return Item(unit.id, dated(unit.text, unit.time_text), score, unit.turn_ids, kind)


def union(sources: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """The union of several lists of turn ids: each id once, in order of first occurrence."""
    return tuple(dict.fromkeys(turn_id for turn_ids in sources for turn_id in turn_ids))


SIDES: Mapping[str, tuple[Role, ...]] = {"both": ("user", "assistant"), "user": ("user",)}
"""For each value of the setting `views`, the sides that are the user in turn."""


def shares(k: int, count: int) -> list[int]:
    """`k` divided into `count` (at least 1) parts that differ by at most 1, the larger parts first."""
    share, rest = divmod(k, count)
    return [share + (place < rest) for place in range(count)]


Positive = Annotated[int, Ge(1)]
NotNegative = Annotated[int, Ge(0)]
Share = Annotated[float, Ge(0), Le(1)]
SomeOf = Annotated[float, Gt(0), Le(1)]
"""A share that is not zero."""
_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
"""In words, each of the bounds that a number's annotation may have; a key is also the name of its operator."""
Made = TypeVar("Made")
Record = TypeVar("Record", bound="Settings")


@dataclass(frozen=True)
class Settings:
    """Base class of a memory's settings records. Each record is a parameter of the constructor, with a default, and an attribute of the
    memory under the same name.

    Raises:
        ValueError: a word is not one of its `Literal`, or a number is out of its range.
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
            marks = [mark for kind in kinds for mark in get_args(kind)[1:]]
            bounds = [(how, getattr(mark, how)) for mark in marks for how in _BOUNDS if hasattr(mark, how)]
            if isinstance(value, int | float) and not all(getattr(operator, how)(value, end) for how, end in bounds):
                said = " and ".join(f"{_BOUNDS[how]} {end}" for how, end in bounds)
                raise ValueError(f"{name} must be {said}, found {value}")


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
    """A shallow copy of a memory with these read settings: the same build, read differently; without settings the memory itself.

    Raises:
        ValueError: a record refuses a setting of the copy.
    """
    if not knobs:
        return memory
    view, rest = copy(memory), dict(knobs)
    for name, record in vars(memory).items():
        if isinstance(record, Settings):
            setattr(view, name, _changed(record, rest))
    for name, value in rest.items():
        setattr(view, name, value)
    return view
