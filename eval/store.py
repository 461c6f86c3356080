"""Where a run lives on disk: one folder a run, one a case, JSON lines appended as things happen.

A line that a kill cut short is dropped when the file is read; a torn tail is never mistaken for data.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from eval.fields import wrong_field
from eval.records import Prediction
from memsys.interface import Item
from memsys.jsons import canonical, decoded, encoded
from memsys.llm.secrets import redact_bytes


class RunError(RuntimeError):
    """An experiment that cannot go on; the message says what to do."""


AGAIN = "delete the file and run the same command again"


def read_record(path: Path) -> dict[str, Any]:
    """The JSON object that a file holds.

    Raises:
        RunError: it holds something else.
    """
    try:
        record = decoded(path.read_bytes())
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise RunError(f"{path} is damaged: it holds no JSON object; {AGAIN}")
    return record


def safe_name(identifier: str) -> str:
    """A file name for an id that came from data: nothing but letters, digits, `._-`; a hash keeps different ids apart.

    Ids that differ in case only have names that differ in more.
    """
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", identifier).strip("._") or "case"
    if plain == identifier.lower() and len(plain) <= 80:  # many file systems take `A` and `a` for one name
        return plain
    return f"{plain[:60]}-{hashlib.sha256(identifier.encode()).hexdigest()[:8]}"


def read_lines(path: Path, *, again: bool = True, fields: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """The whole JSON lines of a file; none where there is no file.

    Args:
        again: it may soon be read again, as a row's predictions and scores are by run, checks and table: keep its lines in memory.
        fields: what every line must hold.

    Raises:
        RunError: a line that is not JSON, other than a torn last one, or that lacks a field or holds one of another type.
    """
    if not path.is_file():
        return []
    known = path.stat()
    lines = list(_kept_lines(path, known.st_size, known.st_mtime_ns) if again else _lines(path))
    needed = set(fields)
    for number, record in enumerate(lines, 1):
        if not record.keys() >= needed:
            raise RunError(f"{path}: line {number} has no {min(needed - record.keys())}; {AGAIN}")
    return lines


@lru_cache(maxsize=16)
def _kept_lines(path: Path, size: int, changed: int) -> tuple[dict[str, Any], ...]:
    """The lines of a file as it stood."""
    return tuple(_lines(path))


def _lines(path: Path) -> list[dict[str, Any]]:
    pieces = path.read_bytes().split(b"\n")
    lines = [piece for piece in pieces if piece.strip()]
    try:  # in one go, which is faster, and the records share their keys
        records = decoded(b"[" + b",".join(lines) + b"]")
        if len(records) != len(lines) or not all(isinstance(record, dict) for record in records):
            raise ValueError("some line is no object")
    except ValueError:
        records = list(_one_by_one(path, pieces))
    for number, record in enumerate(records if path.suffix == ".jsonl" else (), 1):
        if name := wrong_field(record):
            raise RunError(f"{path}: line {number} holds no {name}, but {str(record[name])[:40]!r}; {AGAIN}")
    return list(records)


def _one_by_one(path: Path, pieces: Sequence[bytes]) -> Iterator[dict[str, Any]]:
    for number, piece in enumerate(pieces, 1):
        if not piece.strip():
            continue
        try:
            record = decoded(piece)
        except ValueError:
            # The last piece has no newline behind it: it was being written when the process died.
            if number < len(pieces):
                raise RunError(f"{path}: line {number} is not JSON; {AGAIN}") from None
            return
        if not isinstance(record, dict):
            raise RunError(f"{path}: line {number} is no JSON object; {AGAIN}")
        yield record


def write_lines(path: Path, records: Iterable[Any]) -> None:
    """Replace a file by these lines, at once or not at all."""
    replace_file(path, b"".join(map(line, records)))


def replace_file(path: Path, content: bytes | str) -> None:
    """Replace a file, at once or not at all; of two processes that do, the later one is right."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
    draft.write_bytes(content if isinstance(content, bytes) else redact_bytes(content.encode()))
    os.replace(draft, path)


def line(record: Any) -> bytes:
    """One JSON line: of a mapping, or of a dataclass with slots."""
    # dataclasses.asdict copies deeply, which costs more than writing the line
    plain = record if isinstance(record, Mapping) else {name: getattr(record, name) for name in record.__slots__}
    return redact_bytes(encoded(plain)) + b"\n"


class Appender:
    """A file that lines are appended to from several threads, each written through at once."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        self._lock = threading.Lock()

    def add(self, record: Any) -> None:
        text = line(record)
        with self._lock:
            self._file.write(text)
            self._file.flush()

    def close(self) -> None:
        with self._lock:
            self._file.close()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a run folder against other processes; while another holds it, say so and wait.

    Whoever takes several takes them in the order of their paths, so that two never wait for each other.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another process that is writing {folder}", file=sys.stderr, flush=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def item_key(item: Item) -> str:
    """The hash under which a recalled item stands in `items.jsonl`."""
    parts = [item.id, item.text, item.sources, item.kind, item.level]
    return hashlib.sha256(canonical(parts)).hexdigest()[:16]


def item_record(key: str, item: Item) -> dict[str, Any]:
    """An item as a line of `items.jsonl`."""
    return {
        "key": key,
        "id": item.id,
        "text": item.text,
        "sources": item.sources,
        "kind": item.kind,
        "level": item.level,
    }


def read_predictions(case_folder: Path) -> dict[str, Prediction]:
    """Predictions of a case by question id; a later line replaces an earlier one.

    Raises:
        RunError: a line that is no prediction.
    """
    path = case_folder / "predictions.jsonl"
    try:
        return {record["question_id"]: prediction(record) for record in read_lines(path)}
    except (KeyError, TypeError) as error:
        raise RunError(f"{path}: a line is no prediction ({error}); {AGAIN}") from error


def prediction(record: Mapping[str, Any]) -> Prediction:
    """A line of `predictions.jsonl` as a record."""
    if len(record["items"]) != len(record["scores"]):
        raise TypeError(f"{len(record['items'])} items with {len(record['scores'])} scores")
    return Prediction(**{**record, "items": tuple(record["items"]), "scores": tuple(record["scores"])})


def read_items(case_folder: Path) -> dict[str, dict[str, Any]]:
    """Recalled items of a case by their hash.

    Raises:
        RunError: a line that is no item.
    """
    path = case_folder / "items.jsonl"
    records = read_lines(path, fields=("key", "id", "text", "sources", "kind", "level"))
    return Items(path, {record["key"]: record for record in records})


class Items(dict[str, dict[str, Any]]):
    """Recalled items by their hash; a prediction that names another says that the file is damaged."""

    def __init__(self, path: Path, items: Mapping[str, dict[str, Any]]) -> None:
        super().__init__(items)
        self._path = path

    def __missing__(self, key: str) -> dict[str, Any]:
        folder = self._path.parent
        raise RunError(f"{self._path} lacks the item {key} that a prediction names; delete {folder} and run again")
