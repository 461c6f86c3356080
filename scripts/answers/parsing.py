"""Parse files of the kinds in which answers are published: JSON, JSON Lines, CSV, each plain or compressed by gzip."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data_loaders.raw import parse_json, parse_lines
from data_loaders.schema import DataError

GZIP = b"\x1f\x8b"
MAX_BYTES = 512 << 20
"""Maximum number of bytes of one unpacked file."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """One file."""

    name: str
    """File name without folders and without `.gz`."""
    content: Any
    sha256: str
    """sha256 of the unpacked bytes: the owner's file and a compressed copy agree."""


def digest(files: Sequence[Parsed]) -> str:
    """The sha256 of a file; for several files, of the list of their sha256."""
    sums = [file.sha256 for file in files]
    return sums[0] if len(sums) == 1 else hashlib.sha256("\n".join(sums).encode()).hexdigest()


def parsed(path: Path) -> Parsed:
    """Read and parse a file.

    Raises:
        DataError: it cannot be read, is too large unpacked, or is in none of the kinds.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path.name}: expected a readable file, found: {error.strerror or error}") from error
    data = unpacked(raw, path.name) if raw.startswith(GZIP) else raw
    name = path.name.removesuffix(".gz")
    return Parsed(name, parse(data.removeprefix(b"\xef\xbb\xbf"), name), hashlib.sha256(data).hexdigest())


def unpacked(raw: bytes, name: str) -> bytes:
    """The content of a gzip file; of all its members, if it was put together from several.

    Raises:
        DataError: it is damaged, cut off, followed by other bytes than zeros, or unpacks to more than MAX_BYTES.
    """
    try:
        data = gzip.GzipFile(fileobj=io.BytesIO(raw)).read(MAX_BYTES + 1)
    except EOFError as error:
        raise DataError(f"{name}: expected a whole gzip file, found one that is cut off") from error
    except (OSError, zlib.error) as error:
        raise DataError(f"{name}: expected a whole gzip file, found: {error}") from error
    if len(data) > MAX_BYTES:
        raise DataError(f"{name}: expected at most {MAX_BYTES:,} bytes unpacked, found more")
    return data


def parse(data: bytes, name: str) -> Any:
    """The value of a JSON text, or a list of the values of JSON Lines, or a list of the rows of a CSV with a header.

    Raises:
        DataError: the text is none of these.
    """
    lines = [line for line in data.split(b"\n") if line.strip()]
    if not lines:
        raise DataError(f"{name}: expected JSON, JSON Lines or CSV, found an empty file")
    if lines[0].lstrip()[:1] not in (b"{", b"["):
        return _rows(data, name)
    if len(lines) > 1 and lines[0].strip().endswith(b"}") and lines[1].lstrip().startswith(b"{"):
        return [value for _, value in parse_lines(data, name)]
    value = parse_json(data, name)
    return [value] if name.endswith(".jsonl") and isinstance(value, dict) else value


def _rows(data: bytes, name: str) -> list[dict[str, str]]:
    csv.field_size_limit(MAX_BYTES)  # recalled texts may exceed the default limit
    try:
        reader = csv.DictReader(io.StringIO(data.decode("utf-8"), newline=""), strict=True)
        rows = list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{name}: expected JSON, JSON Lines or CSV, found an error: {error}") from error
    if not rows or len(rows[0]) < 2 or None in rows[0]:
        raise DataError(f"{name}: expected JSON, JSON Lines or a CSV with a header, found another kind of text")
    if longer := [number for number, row in enumerate(rows, 1) if None in row]:
        raise DataError(
            f"{name}: expected as many fields as the header has, found more in record {longer[0]}; a comma needs quotes"
        )
    names = Counter(reader.fieldnames or ())
    if twice := [column for column, count in names.items() if count > 1]:
        raise DataError(f"{name}: expected columns of different names, found {names[twice[0]]} called {twice[0]!r}")
    return [{key: value for key, value in row.items() if value is not None} for row in rows]
