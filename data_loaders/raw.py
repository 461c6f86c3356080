"""Reading and checking raw JSON: every defect becomes a `DataError` that names file, record and field.

`LazyCases` are cases that are parsed on access, so that a data set larger than memory can be iterated over and scheduled.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, TypeVar, get_args, overload

from data_loaders.schema import Case, DataError

MAX_TEXT = 1_000_000
"""Maximum number of characters of a text. A longer one comes from a damaged file, for example one with a missing quote."""

T = TypeVar("T")


def read_raw(path: Path) -> Raw:
    """The content of a JSON file, whose place is the file's name. Raises DataError if it is not one strict JSON document in UTF-8."""
    return Raw(parse_json(read_bytes(path), path.name), path.name)


def read_lines(path: Path) -> list[Raw]:
    """The lines of a JSONL file with their places, `<file>: line <number from 1>`; blank lines are skipped.

    Raises DataError that names the line.
    """
    return [Raw(value, place) for place, value in parse_lines(read_bytes(path), path.name)]


def read_records(path: Path) -> list[Raw]:
    """The records of a JSONL file, or of a JSON file that is a list, with their places, `<file>: record <number from 0>`.

    Raises DataError.
    """
    listed = read_lines(path) if path.suffix != ".json" else read_raw(path).each()
    return [Raw(record.value, f"{path.name}: record {number}") for number, record in enumerate(listed)]


def parse_lines(data: bytes, name: str) -> list[tuple[str, Any]]:
    """The places and values of `read_lines` for the content of the file `name`. Raises DataError that names the line."""
    # Split at newlines only: str.splitlines would also cut at U+2028, which JSON allows inside strings.
    places = {f"{name}: line {number}": line for number, line in enumerate(data.split(b"\n"), 1) if line.strip()}
    return [(place, parse_json(line, place)) for place, line in places.items()]


def scan_lines(path: Path) -> Iterator[tuple[int, Raw]]:
    """Position in the file and content of each line of a JSONL file, read as a stream; blank lines are skipped.

    `line_at` parses a single line again, so that a file larger than memory can be indexed. Raises DataError as `read_lines` does.
    """
    with readable(path), path.open("rb") as file:
        at = 0
        for number, line in enumerate(file, 1):
            if line.strip():
                place = f"{path.name}: line {number}"
                yield at, Raw(parse_json(line, place), place)
            at += len(line)


def line_at(path: Path, position: int, where: str) -> Raw:
    """The line that begins at a position given by `scan_lines`. Raises DataError."""
    with readable(path), path.open("rb") as file:
        file.seek(position)
        return Raw(parse_json(file.readline(), where), where)


def parse_json(data: bytes, where: str) -> Any:
    """The value of one strict JSON text in UTF-8; `where` is its place, for error messages.

    Raises DataError if it is not, also for NaN, infinite numbers, too deep nesting, integers too long to convert and objects with a key
    twice.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = f"byte 0x{data[error.start]:02x} at offset {error.start}"
        raise DataError(f"{where}: expected UTF-8, found {byte}") from error
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_each_key_once)
    except RecursionError as error:
        raise DataError(f"{where}: expected a JSON value, found nesting too deep to parse") from error
    except ValueError as error:  # JSONDecodeError, a refused number, or an integer of thousands of digits
        raise DataError(f"{where}: expected valid JSON, found an error: {error}") from error


@dataclass(frozen=True, slots=True)
class Raw:
    """A value of a raw file with its place. Its methods check what they return; they raise DataError "<place>: expected X, found Y"."""

    value: Any
    where: str

    @overload
    def of(self, types: type[T], key: str = "") -> T: ...
    @overload
    def of(self, types: tuple[type, ...], key: str = "") -> Any: ...
    def of(self, types: type | tuple[type, ...], key: str = "") -> Any:
        """The field's value, else the value itself, which has one of the types; a JSON `true` is no integer, only a bool."""
        held = self.at(key) if key else self
        accepted = types if isinstance(types, tuple) else (types,)
        is_other = isinstance(held.value, bool) and bool not in accepted and object not in accepted
        if is_other or not isinstance(held.value, accepted):
            text, kind = repr(held.value), _names((type(held.value),))
            found = text if len(text) <= 60 else f"{text[:57]}..."
            raise DataError(f"{held.where}: expected {_names(accepted)}, found {kind} {found}")
        return held.value

    def has(self, key: str) -> bool:
        return key in self.of(dict)

    def at(self, key: str) -> Raw:
        """The field of this name, which must exist."""
        record, where = self.of(dict), f"{self.where}.{key}"
        if key not in record:
            raise DataError(f"{where}: expected a value, found no such field")
        return Raw(record[key], where)

    def text(self, key: str = "") -> str:
        """A text of at most MAX_TEXT characters that UTF-8 can encode: the field, else the value itself.

        JSON can contain a lone surrogate. Without this check it would fail much later, when the text is first hashed, sent or saved.
        """
        held = self.at(key) if key else self
        text = held.of(str)
        if len(text) > MAX_TEXT:
            raise DataError(f"{held.where}: expected at most {MAX_TEXT:,} characters, found {len(text):,}")
        try:
            _ = text.isascii() or text.encode("utf-8")
        except UnicodeEncodeError as error:
            found = f"a lone surrogate at character {error.start}"
            raise DataError(f"{held.where}: expected Unicode text, found {found}") from error
        return text

    def optional(self, key: str) -> str:
        """A field that is a text; empty where it is missing or null."""
        return "" if self.of(dict).get(key) is None else self.text(key)

    def choice(self, known: Collection[str], key: str = "") -> str:
        """One of the known texts: the field, else the value itself."""
        text = self.text(key)
        if text not in known:
            where = f"{self.where}.{key}" if key else self.where
            raise DataError(f"{where}: expected one of {', '.join(known)}, found {text[:60]!r}")
        return text

    def each(self, key: str = "") -> list[Raw]:
        """The members of a list with their places, `<where>[<number from 0>]`: of the field, else of the value itself."""
        listed = self.at(key) if key else self
        return [Raw(value, f"{listed.where}[{number}]") for number, value in enumerate(listed.of(list))]

    def texts(self, key: str = "") -> tuple[str, ...]:
        """The members of a list of texts: of the field, else of the value itself."""
        return tuple(each.text() for each in self.each(key))


def parsed_time(text: str, *forms: str) -> datetime | None:
    """The time that a text writes in one of the forms of `datetime.strptime`, without a time zone; None for other texts."""
    for form in forms:
        with suppress(ValueError):
            return datetime.strptime(text, form)
    return None


def python_literal(text: str, where: str) -> Any:
    """The value that a Python literal writes; it is parsed, never evaluated. Raises DataError for other texts."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise DataError(
            f"{where}: expected a Python literal, found {f'{type(error).__name__}: {error}'[:200]}"
        ) from error


def check_choice(name: str, value: object, choices: Any) -> None:
    """Raise ValueError if a loader's setting has none of the values of a Literal."""
    if value not in get_args(choices):
        raise ValueError(f"{name}: expected one of {get_args(choices)}, found {value!r}")


def check_unique(ids: Iterable[str], where: str) -> None:
    """Raise DataError if an id occurs twice; the message names the first such id."""
    seen: set[str] = set()
    for name in ids:
        if name in seen:
            raise DataError(f"{where}: expected unique ids, found {name!r} twice")
        seen.add(name)


def read_bytes(path: Path) -> bytes:
    """The content of a file. Raises DataError if it cannot be read."""
    with readable(path):
        return path.read_bytes()


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Raise a DataError where the block cannot read the file."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: expected a readable file, found: {error.strerror or error}") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {digits[:40]} is out of range")
    return number


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):  # the parser would keep the last value alone
        check_unique((name for name, _ in pairs), "the keys of an object")
    return record


def _names(types: tuple[type, ...]) -> str:
    words: Mapping[type, str] = {dict: "object", list: "list", str: "string", bool: "true/false", type(None): "null"}
    return " or ".join(words.get(kind, kind.__name__) for kind in types)


class LazyCases(Sequence[Case]):
    """A sequence of cases whose ids and sizes are known at once and whose contents are parsed on access.

    Parsed cases are not cached: accessing a case twice parses it twice. A slice is lazy too.
    """

    ids: tuple[str, ...]
    sizes: tuple[int, ...]
    """Approximate size of each case, in bytes or turns, comparable within one data set; the longest case is scheduled first."""

    def __init__(
        self, ids: Sequence[str], sizes: Sequence[int], parse: Callable[[int], Case], where: str = "case ids"
    ) -> None:
        """`parse(i)` returns the case `ids[i]`; `where` is the place of the ids in the raw data.

        Raises DataError for an id that occurs twice, ValueError for unequal lengths.
        """
        if len(ids) != len(sizes):
            raise ValueError(f"{len(ids)} ids but {len(sizes)} sizes")
        check_unique(ids, where)
        self.ids = tuple(ids)
        self.sizes = tuple(sizes)
        self._parse = parse

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> Case: ...
    @overload
    def __getitem__(self, index: slice) -> LazyCases: ...
    def __getitem__(self, index: int | slice) -> Case | LazyCases:
        if isinstance(index, slice):
            return self.select(range(len(self))[index])
        return self._parse(range(len(self))[index])

    def __iter__(self) -> Iterator[Case]:
        # Replaces Sequence's own, which takes an IndexError raised inside `parse` for the end of the data.
        return (self._parse(index) for index in range(len(self)))

    def mapped(self, change: Callable[[Case], Case]) -> LazyCases:
        """All cases, each changed on access."""
        return LazyCases(self.ids, self.sizes, lambda index: change(self[index]))

    def select(self, indices: Sequence[int]) -> LazyCases:
        """The cases at these positions, in this order, still unparsed."""
        kept = tuple(range(len(self))[index] for index in indices)
        return LazyCases(
            [self.ids[index] for index in kept],
            [self.sizes[index] for index in kept],
            lambda position: self._parse(kept[position]),
        )


def as_lazy(cases: Sequence[Case]) -> LazyCases:
    """The same cases as `LazyCases`; for another kind of sequence, sizes are numbers of turns."""
    if isinstance(cases, LazyCases):
        return cases
    return LazyCases(
        [case.id for case in cases],
        [sum(len(session.turns) for session in case.sessions) for case in cases],
        cases.__getitem__,
    )
