"""Files of a run: one folder per run and per case, with JSON lines that are appended during the run.

A last line that was cut when the process died is dropped when the file is read.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from eval.files.fields import check_fields, wrong_field
from memsys.folders import alone
from memsys.interface import Item
from memsys.jsons import canonical, decoded, encoded, fields_of
from memsys.llm.secrets import redact_bytes


class RunError(RuntimeError):
    """An experiment cannot continue; the message says what to do."""


AGAIN = "delete the file and run the same command again"


def read_record(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        RunError: the file holds anything else, or may not be read.
    """
    try:
        record = decoded(_content(path))
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise RunError(f"{path} is damaged: it holds no JSON object; {AGAIN}")
    return record


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except PermissionError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}") from error


def safe_name(identifier: str) -> str:
    """A file name for an id from the data: letters, digits and `._-` only; a hash keeps different ids apart.

    Ids that differ only in upper and lower case get different names on every file system.
    """
    # Not hidden, and no option of `rm *`.
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", identifier).rstrip("._").lstrip("._-") or "case"
    if plain == identifier.lower() and len(plain) <= 80:  # on many file systems `A` and `a` are the same name
        return plain
    return f"{plain[:60]}-{hashlib.sha256(identifier.encode()).hexdigest()[:8]}"


def read_lines(path: Path, *, fields: tuple[str, ...] = (), finished: bool = False) -> list[dict[str, Any]]:
    """The JSON objects of a file, one per line; empty when there is no file.

    Args:
        fields: keys that every line must have.
        finished: whether the file was completed: its last line cannot be one that was being written when the process died.

    Raises:
        RunError: a line is not JSON (a last line that was cut is dropped unless the file is finished), lacks a field, or holds one of
            another type or outside its range; the file may not be read, or a folder is in its place.
    """
    if not path.is_file():
        if path.exists():
            raise RunError(f"{path} is a folder, and should be a file; remove it and run the same command again")
        return []
    pieces = _content(path).split(b"\n")
    lines = [piece for piece in pieces if piece.strip()]
    try:  # all lines at once, which is faster and lets the records share their keys
        records: list[dict[str, Any]] = decoded(b"[" + b",".join(lines) + b"]")
        if len(records) != len(lines) or not all(isinstance(record, dict) for record in records):
            raise ValueError("some line is no object")
    except ValueError:
        records = list(_one_by_one(path, pieces, finished))
    needed, checked = set(fields), path.suffix == ".jsonl"
    for number, record in enumerate(records, 1):
        if checked and (name := wrong_field(record)) is not None:
            raise RunError(f"{path}: line {number} holds no {name}, but {str(record[name])[:40]!r}; {AGAIN}")
        if not record.keys() >= needed:
            raise RunError(f"{path}: line {number} has no {min(needed - record.keys())}; {AGAIN}")
    return records


def _one_by_one(path: Path, pieces: Sequence[bytes], finished: bool) -> Iterator[dict[str, Any]]:
    for number, piece in enumerate(pieces, 1):
        if not piece.strip():
            continue
        try:
            record = decoded(piece)
        except ValueError:
            # The last piece has no newline: it was being written when the process died.
            if finished or number < len(pieces):
                raise RunError(f"{path}: line {number} is not JSON; {AGAIN}") from None
            return
        if not isinstance(record, dict):
            raise RunError(f"{path}: line {number} is no JSON object; {AGAIN}")
        yield record


def write_lines(path: Path, records: Iterable[Any]) -> None:
    """Replace a file by these lines, atomically."""
    replace_file(path, b"".join(map(line, records)))


def linked(stored: Path, place: Path, content: bytes) -> bool:
    """Make `place` a hard link to `stored` and return whether it is: both must have the same content, and the file system hard links."""
    try:
        if stored.read_bytes() != content:
            return False
        place.unlink(missing_ok=True)
        place.hardlink_to(stored)
    except (OSError, NotImplementedError):
        return False
    return True


def replace_file(path: Path, content: bytes | str) -> None:
    """Replace a file, atomically; if two processes do, the later one wins. In text, secrets are redacted; `?` replaces a lone surrogate.

    Raises:
        RunError: its folder is a link in a results folder: results from another source could redirect the file to a place of their choice.
    """
    if path.parent.is_symlink() and (path.parent.parent / "runs").is_dir():
        raise RunError(f"{path.parent} is a link, so nothing is written there; remove it")
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
    try:
        draft.write_bytes(content if isinstance(content, bytes) else redact_bytes(content.encode(errors="replace")))
        os.replace(draft, path)
    except OSError:  # a full disk: no half file stays
        draft.unlink(missing_ok=True)
        raise


def line(record: Any) -> bytes:
    """A mapping, or a dataclass with slots, as one JSON line without secrets."""
    return redact_bytes(encoded(record if isinstance(record, Mapping) else fields_of(record))) + b"\n"


MOST_OPEN = 96
"""Maximum number of files that all appenders of a process hold open; macOS allows a process 256 by default."""
STALE = 1.0
"""Seconds after which lines that wait are flushed with the next one, so that `watch` sees a run that moves."""
_opened: dict[Appender, BinaryIO] = {}
"""The open files of appenders, in the order in which they were opened."""
_opening = threading.Lock()


class Appender:
    """A file that several threads append lines to. A line is flushed at once, or, if it may wait, with a later one or by `flush`.

    A flush takes 0.08 ms, longer than the rest of the work on a line, and lets another thread take the interpreter.

    Hundreds of cells have appenders at the same time, so a file is closed when the limit is reached, and opened again for the next line.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._lock = path, threading.Lock()
        self._flushed = time.monotonic()
        with self._lock:
            self._writable()

    def add(self, record: Any, *, waits: bool = False) -> None:
        """Append a line. One that waits is flushed only if the last flush is `STALE` seconds ago.

        Raises:
            TypeError: a field is of a wrong type.
        """
        plain = record if isinstance(record, Mapping) else fields_of(record)
        check_fields(plain)
        text = line(plain)
        with self._lock:
            file = self._writable()
            file.write(text)
            if not waits or time.monotonic() >= self._flushed + STALE:
                file.flush()
                self._flushed = time.monotonic()

    def flush(self) -> None:
        """Write out the lines that wait."""
        with self._lock:
            if self in _opened:
                _opened[self].flush()

    def close(self) -> None:
        with self._lock:
            with _opening:
                file = _opened.pop(self, None)
            if file is not None:  # closed outside the lock of all files: the last lines go to disk
                file.close()

    def _writable(self) -> BinaryIO:
        """The open file; the caller holds the lock."""
        if self not in _opened:  # only the holder of an appender's lock opens or closes its file
            file = self._path.open("ab")
            with _opening:
                _opened[self] = file
                for other in list(_opened)[: max(0, len(_opened) - MOST_OPEN)]:
                    if other is not self and other._lock.acquire(blocking=False):  # a writing one keeps its file
                        _opened.pop(other).close()
                        other._lock.release()
        return _opened[self]


def locked(folder: Path) -> AbstractContextManager[None]:
    """Lock a run folder against other processes; while another process holds it, say so on standard error and wait.

    To avoid deadlocks, several folders must be locked in the order of their paths.
    """
    said = f"waiting for another process that is writing {folder}"
    return alone(folder, partial(print, said, file=sys.stderr, flush=True))


def item_score(item: Item) -> float:
    """The memory's own score of a recalled item, as predictions hold it."""
    return round(float(item.score), 4)


def item_record(item: Item) -> dict[str, Any]:
    """An item as a line of `items.jsonl`; its key is a hash of the other fields."""
    own = {name: getattr(item, name) for name in ("id", "text", "sources", "kind", "level")}
    return {"key": hashlib.sha256(canonical([*own.values()])).hexdigest()[:16], **own}
