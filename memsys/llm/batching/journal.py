"""The journal of batched calls: three tables in the cache file, written before anything is sent.

A call is named by its cache key. It is *open* until a batch holds it; a batch stands in the journal before the provider hears of it, so
a killed process finds on its return what it has sent, and sends none of it again. A reply stays until its call is answered in the cache.
"""

from __future__ import annotations

import sqlite3
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memsys.jsons import decoded, encoded
from memsys.llm.store import REMEDY, DamagedCache
from memsys.llm.store import SCHEMA as ANSWERS

SCHEMA = """
CREATE TABLE IF NOT EXISTS batch_calls (
  name TEXT PRIMARY KEY, path TEXT NOT NULL, body BLOB NOT NULL, batch TEXT, attempts INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS calls_of_batch ON batch_calls (batch);
CREATE TABLE IF NOT EXISTS batches (
  id TEXT PRIMARY KEY, server TEXT NOT NULL, path TEXT NOT NULL, at_provider TEXT, state TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS batch_replies (name TEXT PRIMARY KEY, status INTEGER NOT NULL, body BLOB NOT NULL) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Call:
    """One call as it stands in a batch file."""

    name: str
    """The `custom_id`: hexadecimal cache key."""
    path: str
    """Path below the base URL, such as `/chat/completions`."""
    body: bytes
    """The request as JSON."""
    attempts: int = 0
    """Batches that have held it."""

    def line(self) -> bytes:
        """The call as a line of a batch file."""
        line = {"custom_id": self.name, "method": "POST", "url": f"/v1{self.path}", "body": decoded(self.body)}
        return encoded(line) + b"\n"


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that the provider has, or may have, and that has not ended."""

    id: str
    """Our own name of it, which the provider keeps in the batch's metadata."""
    path: str
    at_provider: str | None
    """The provider's name; None when the process ended before it learned of it."""


class Journal:
    """The tables of one cache file. Thread-safe.

    Raises:
        DamagedCache: the file cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self._lock = path, threading.Lock()
        with self._guarded():
            self._file = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._file.execute("PRAGMA journal_mode=WAL")
            self._file.execute("PRAGMA busy_timeout=30000")
            self._file.executescript(ANSWERS + SCHEMA)

    def reply(self, name: str) -> tuple[int, Any] | None:
        """HTTP status and decoded body of the reply to a call; None when there is none yet."""
        with self._guarded():
            row = self._file.execute("SELECT status, body FROM batch_replies WHERE name = ?", (name,)).fetchone()
        return None if row is None else (int(row[0]), decoded(row[1]))

    def held(self, name: str) -> bool:
        """Whether a batch that has not ended holds a call."""
        with self._guarded():
            row = self._file.execute("SELECT batch FROM batch_calls WHERE name = ?", (name,)).fetchone()
        return row is not None and row[0] is not None

    def add(self, calls: Sequence[Call]) -> None:
        """Note calls as open; those that are there stay as they are."""
        rows = [(call.name, call.path, call.body, call.attempts) for call in calls]
        with self._transaction():
            self._file.executemany(
                "INSERT OR IGNORE INTO batch_calls (name, path, body, attempts) VALUES (?, ?, ?, ?)", rows
            )

    def open_calls(self) -> list[Call]:
        """Calls that no batch holds, in the order of their names."""
        with self._guarded():
            rows = self._file.execute(
                "SELECT name, path, body, attempts FROM batch_calls WHERE batch IS NULL ORDER BY name"
            ).fetchall()
        return [Call(*row) for row in rows]

    def begin(self, calls: Sequence[Call], server: str) -> Batch:
        """Put open calls of one path into a new batch, before the provider hears of it."""
        batch = Batch(uuid.uuid4().hex, calls[0].path, None)
        with self._transaction():
            self._file.execute("INSERT INTO batches VALUES (?, ?, ?, NULL, 'begun')", (batch.id, server, batch.path))
            self._file.executemany(
                "UPDATE batch_calls SET batch = ?, attempts = attempts + 1 WHERE name = ?",
                [(batch.id, call.name) for call in calls],
            )
        return batch

    def accepted(self, batch: Batch, at_provider: str) -> Batch:
        """Note the provider's name of a batch."""
        with self._transaction():
            self._file.execute(
                "UPDATE batches SET at_provider = ?, state = 'accepted' WHERE id = ?", (at_provider, batch.id)
            )
        return Batch(batch.id, batch.path, at_provider)

    def under_way(self, server: str) -> list[Batch]:
        """Batches of a server that have not ended, also those of an earlier process."""
        with self._guarded():
            rows = self._file.execute(
                "SELECT id, path, at_provider FROM batches WHERE server = ? AND state != 'ended' ORDER BY id", (server,)
            ).fetchall()
        return [Batch(*row) for row in rows]

    def calls_of(self, batch: Batch) -> list[Call]:
        """The calls that a batch holds."""
        with self._guarded():
            rows = self._file.execute(
                "SELECT name, path, body, attempts FROM batch_calls WHERE batch = ? ORDER BY name", (batch.id,)
            ).fetchall()
        return [Call(*row) for row in rows]

    def end(self, batch: Batch, replies: Mapping[str, tuple[int, bytes]], again: Sequence[str]) -> None:
        """Keep a batch's replies and end it: the calls in `again` are open once more, its other calls are done."""
        with self._transaction():
            self._keep(replies)
            self._file.executemany("UPDATE batch_calls SET batch = NULL WHERE name = ?", [(name,) for name in again])
            self._file.execute("DELETE FROM batch_calls WHERE batch = ?", (batch.id,))
            self._file.execute("UPDATE batches SET state = 'ended' WHERE id = ?", (batch.id,))

    def keep(self, replies: Mapping[str, tuple[int, bytes]]) -> None:
        """Keep replies that came by another way than a batch; their calls are done."""
        with self._transaction():
            self._keep(replies)
            self._file.executemany("DELETE FROM batch_calls WHERE name = ?", [(name,) for name in replies])

    def forget(self, names: Sequence[str]) -> None:
        """Remove replies, such as errors that are not to be taken for the answer of a later run."""
        with self._transaction():
            self._file.executemany("DELETE FROM batch_replies WHERE name = ?", [(name,) for name in names])

    def forget_open(self) -> None:
        """Remove calls that no batch holds: those of a process that ended before it sent them."""
        with self._transaction():
            self._file.execute("DELETE FROM batch_calls WHERE batch IS NULL")

    def forget_answered(self) -> None:
        """Remove replies whose answer the cache holds."""
        with self._transaction():
            self._file.execute("DELETE FROM batch_replies WHERE name IN (SELECT lower(hex(key)) FROM answers)")

    def counts(self) -> dict[str, int]:
        """What the tables hold."""
        queries = {
            "open calls": "SELECT count(*) FROM batch_calls WHERE batch IS NULL",
            "calls in batches": "SELECT count(*) FROM batch_calls WHERE batch IS NOT NULL",
            "batches under way": "SELECT count(*) FROM batches WHERE state != 'ended'",
            "batches ended": "SELECT count(*) FROM batches WHERE state = 'ended'",
            "replies not yet in the cache": "SELECT count(*) FROM batch_replies",
        }
        with self._guarded():
            return {name: int(self._file.execute(query).fetchone()[0]) for name, query in queries.items()}

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()

    def _keep(self, replies: Mapping[str, tuple[int, bytes]]) -> None:
        rows = [(name, status, body) for name, (status, body) in replies.items()]
        self._file.executemany("INSERT OR REPLACE INTO batch_replies VALUES (?, ?, ?)", rows)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            with self._lock:
                yield
        except sqlite3.DatabaseError as error:
            raise DamagedCache(f"{self.path} is not a usable cache ({error}); {REMEDY}") from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._guarded(), self._file:
            self._file.execute("BEGIN IMMEDIATE")
            yield
