"""Raw JSON read with suspicion: whatever is wrong becomes a DataError that names file, record and field."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar, overload

from data_loaders.schema import DataError

MAX_TEXT = 1_000_000
"""Characters of one text. A longer "turn" is a damaged file (a quote lost somewhere), not dialogue."""

T = TypeVar("T")


def read_json(path: Path) -> Any:
    """The parsed file. Raises DataError for anything that is not one strict JSON document in UTF-8."""
    return parse_json(_read_bytes(path), path.name)


def read_jsonl(path: Path) -> list[Any]:
    """One parsed value per line; blank lines are skipped. Raises DataError naming the (1-based) line."""
    return [value for _, value in read_lines(path)]


def read_lines(path: Path) -> list[tuple[str, Any]]:
    """Per line of a JSONL file its place, `<file>: line <number from 1>`, and its parsed value; blank lines are skipped.

    Raises DataError naming the line.
    """
    # Split at newlines only: str.splitlines would also cut at U+2028, which JSON allows inside strings.
    lines = _read_bytes(path).split(b"\n")
    places = {f"{path.name}: line {number}": line for number, line in enumerate(lines, 1) if line.strip()}
    return [(place, parse_json(line, place)) for place, line in places.items()]


def parse_json(data: bytes, where: str) -> Any:
    """The value of one strict JSON text in UTF-8: no NaN, no Infinity, no number that overflows to infinity.

    Raises DataError, also for nesting too deep to parse and for integers too long to convert.
    """
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        found = f"byte 0x{data[error.start]:02x} at offset {error.start}"
        raise DataError(f"{where}: expected UTF-8, found {found}") from error
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError as error:
        raise DataError(f"{where}: expected a JSON value, found nesting too deep to parse") from error
    except ValueError as error:  # JSONDecodeError, a refused number, or an integer of thousands of digits
        raise DataError(f"{where}: expected valid JSON, found an error: {error}") from error


@overload
def expect(value: object, types: type[T], where: str) -> T: ...
@overload
def expect(value: object, types: tuple[type, ...], where: str) -> Any: ...
def expect(value: object, types: type | tuple[type, ...], where: str) -> Any:
    """The value itself when it is of a wanted type; otherwise DataError "<where>: expected X, found Y".

    A JSON `true` is not an integer here: bool passes only where bool is asked for.
    """
    wanted = types if isinstance(types, tuple) else (types,)
    if isinstance(value, bool) and bool not in wanted and object not in wanted:
        raise DataError(f"{where}: expected {_names(wanted)}, found {_shown(value)}")
    if not isinstance(value, wanted):
        raise DataError(f"{where}: expected {_names(wanted)}, found {_shown(value)}")
    return value


@overload
def get(record: object, key: str, types: type[T], where: str) -> T: ...
@overload
def get(record: object, key: str, types: tuple[type, ...], where: str) -> Any: ...
def get(record: object, key: str, types: type | tuple[type, ...], where: str) -> Any:
    """`record[key]` checked by `expect`; `where` is the record's place. Raises DataError also for a missing key."""
    fields = expect(record, dict, where)
    if key not in fields:
        raise DataError(f"{where}.{key}: expected a value, found no such field")
    wanted = types if isinstance(types, tuple) else (types,)
    return expect(fields[key], wanted, f"{where}.{key}")


def get_text(record: object, key: str, where: str) -> str:
    """`record[key]` as text to be ingested or asked: see `check_text`."""
    return check_text(get(record, key, str, where), f"{where}.{key}")


def check_text(value: object, where: str) -> str:
    """The string itself, at most MAX_TEXT characters and encodable. Raises DataError otherwise.

    A lone surrogate (JSON can write one) would fail much later, when the text is first hashed, sent or saved.
    """
    text = expect(value, str, where)
    if len(text) > MAX_TEXT:
        raise DataError(f"{where}: expected at most {MAX_TEXT:,} characters, found {len(text):,}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: expected Unicode text, found a lone surrogate at character {error.start}") from error
    return text


def check_unique(ids: Iterable[str], where: str) -> None:
    """Passes when no id occurs twice; raises DataError naming the first that does."""
    seen: set[str] = set()
    for each in ids:
        if each in seen:
            raise DataError(f"{where}: expected unique ids, found {each!r} twice")
        seen.add(each)


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: expected a readable file, found: {error.strerror or error}") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {digits[:40]} is out of range")
    return number


def _names(types: tuple[type, ...]) -> str:
    words: Mapping[type, str] = {dict: "object", list: "list", str: "string", bool: "true/false", type(None): "null"}
    return " or ".join(words.get(each, each.__name__) for each in types)


def _shown(value: object) -> str:
    text = repr(value)
    return f"{_names((type(value),))} {text if len(text) <= 60 else text[:57] + '...'}"
