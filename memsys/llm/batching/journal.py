"""The journal of batched calls: three tables in the cache file, written before anything is sent.

A call is named by its cache key. It is *open* until a batch holds it. A batch is written to the journal before it is sent, so a process
that was killed and started again knows what it has sent and resends nothing. A reply stays until its call is answered in the cache.

Several processes may use one journal. Calls and batches have an owner: a lock file next to the cache, which the owning process holds
until it ends. Only the owner sends a call and polls a batch; other processes take over the calls and batches of an owner that has
ended. All processes read the replies.
"""

from __future__ import annotations

import glob
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from memsys.folders import Held, hold_file, is_alive
from memsys.jsons import decoded, encoded
from memsys.llm.store import JOURNAL, SCHEMA, UNSOUND, CacheFile, add_columns, check_schema, usable

Reply = tuple[int, bytes]
"""HTTP status and body of a reply."""


@dataclass(frozen=True, slots=True)
class JournalledCall:
    """A call as a batch file holds it."""

    name: str
    """The `custom_id`: hexadecimal cache key."""
    path: str
    """Path below the base URL, such as `/chat/completions`."""
    body: bytes
    """The request as JSON."""
    attempts: int = 0
    """Number of batches that have held the call."""

    def line(self) -> bytes:
        """The call as a line of a batch file."""
        line = {"custom_id": self.name, "method": "POST", "url": f"/v1{self.path}", "body": decoded(self.body)}
        return encoded(line) + b"\n"


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch that the provider has, or may have, and that has not ended."""

    id: str
    """Our own name of the batch, which the provider keeps in its metadata."""
    path: str
    at_provider: str | None
    """The provider's name of the batch; None when the process ended before it received the name."""
    begun: float | None = None
    """Seconds since the epoch; None in journals of older versions."""


ANSWERED = "name IN (SELECT lower(hex(key)) FROM answers)"
"""Of replies: the cache holds the answer; the next command removes them."""


class Journal:
    """The tables of one cache file. Thread-safe.

    Raises:
        DamagedCache: the file cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._lock = path, threading.Lock()
        self._held: Held | None = None
        with usable(path), ExitStack() as opened:
            self._cache = CacheFile(path, SCHEMA + JOURNAL)
            opened.callback(self._cache.close)
            self._file = self._cache.connection
            add_columns(self._file)
            check_schema(self._file)
            for table, wrong in UNSOUND.items():
                if self._file.execute(f"SELECT 1 FROM {table} WHERE {wrong} LIMIT 1").fetchone():
                    raise sqlite3.DatabaseError(f"a row of {table} has values of other types")
            opened.pop_all()

    def owner(self) -> str:
        """Name of this journal as an owner. The first call of this method locks its file, and removes the files of owners that have ended.

        Raises:
            OSError: the lock file cannot be made.
        """
        with self._lock:
            if self._held is None:
                for file in self.path.parent.glob(f"{glob.escape(self.path.name)}.owner-*"):
                    is_alive(file)
                self._held = hold_file(self._owner_file(uuid.uuid4().hex))
            return self._held.path.name.rpartition("-")[2]

    def release(self) -> None:
        """Release what this journal owns, for the next process to take over."""
        with self._lock:
            held, self._held = self._held, None
        if held is not None:
            held.path.unlink(missing_ok=True)
            held.handle.close()

    def take_over(self, server: str) -> None:
        """Become the owner of a server's batches whose owner has ended, and forget calls that such an owner had not sent yet."""
        ours = self.owner()
        rows = self._rows(
            "SELECT DISTINCT owner FROM batches WHERE state != 'ended' AND server = ? "
            "UNION SELECT DISTINCT owner FROM batch_calls WHERE batch IS NULL",
            (server,),
        )
        for owner in {row[0] for row in rows} - {ours}:
            if owner is not None and is_alive(self._owner_file(owner)):
                continue
            with self._transaction():
                self._file.execute(
                    "UPDATE batches SET owner = ? WHERE owner IS ? AND server = ? AND state != 'ended'",
                    (ours, owner, server),
                )
                self._file.execute("DELETE FROM batch_calls WHERE batch IS NULL AND owner IS ?", (owner,))

    def _owner_file(self, owner: str) -> Path:
        # The name comes from the file: only letters and digits may lead to a path.
        return self.path.with_name(f"{self.path.name}.owner-{''.join(filter(str.isalnum, str(owner)))[:64]}")

    def reply(self, name: str) -> tuple[int, Any] | None:
        """HTTP status and decoded body of the reply to a call; None when there is none yet."""
        rows = self._rows("SELECT status, body FROM batch_replies WHERE name = ?", (name,))
        return (int(rows[0][0]), decoded(rows[0][1])) if rows else None

    def replied(self) -> set[str]:
        """Names of the calls that have a reply."""
        return {name for (name,) in self._rows("SELECT name FROM batch_replies")}

    def noted(self) -> set[str]:
        """Names of the calls that are open or in a batch, of all owners."""
        return {name for (name,) in self._rows("SELECT name FROM batch_calls")}

    def add(self, calls: Sequence[JournalledCall]) -> None:
        """Note calls as open and ours; calls already in the journal stay unchanged, whichever process owns them."""
        if not calls:
            return
        owner = self.owner()
        rows = [(call.name, call.path, call.body, call.attempts, owner) for call in calls]
        with self._transaction():
            self._file.executemany(
                "INSERT OR IGNORE INTO batch_calls (name, path, body, attempts, owner) VALUES (?, ?, ?, ?, ?)", rows
            )

    def open_calls(self, *, ours: bool = False) -> list[JournalledCall]:
        """Calls that no batch holds, of all owners or ours alone, in the order of their names."""
        owner = self.owner() if ours else None
        rows = self._rows(
            "SELECT name, path, body, attempts FROM batch_calls "
            "WHERE batch IS NULL AND (?1 IS NULL OR owner = ?1) ORDER BY name",
            (owner,),
        )
        return [JournalledCall(*row) for row in rows]

    def begin(self, calls: Sequence[JournalledCall], server: str) -> Batch:
        """Put open calls of one path into a new batch, before it is sent to the provider."""
        batch = Batch(uuid.uuid4().hex, calls[0].path, None, time.time())
        owner = self.owner()
        with self._transaction():
            self._file.execute(
                "INSERT INTO batches (id, server, path, state, owner, begun) VALUES (?, ?, ?, 'begun', ?, ?)",
                (batch.id, server, batch.path, owner, batch.begun),
            )
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
        return replace(batch, at_provider=at_provider)

    def under_way(self, server: str | None = None, *, ours: bool = False) -> list[Batch]:
        """Batches that have not ended: of one server or all, of all owners or ours alone."""
        owner = self.owner() if ours else None
        rows = self._rows(
            "SELECT id, path, at_provider, iif(typeof(begun) = 'real', begun, NULL) FROM batches WHERE state != 'ended' "
            "AND (?1 IS NULL OR server = ?1) AND (?2 IS NULL OR owner = ?2) ORDER BY id",
            (server, owner),
        )
        return [Batch(*row) for row in rows]

    def calls_of(self, batch: Batch) -> list[JournalledCall]:
        """The calls that a batch holds."""
        rows = self._rows(
            "SELECT name, path, body, attempts FROM batch_calls WHERE batch = ? ORDER BY name", (batch.id,)
        )
        return [JournalledCall(*row) for row in rows]

    def end(self, batch: Batch, replies: Mapping[str, Reply], again: Sequence[str]) -> None:
        """Keep a batch's replies and end it: the calls in `again` are open again, its other calls are done."""
        with self._transaction():
            self._keep(replies)
            self._file.executemany("UPDATE batch_calls SET batch = NULL WHERE name = ?", [(name,) for name in again])
            self._file.execute("DELETE FROM batch_calls WHERE batch = ?", (batch.id,))
            self._file.execute("UPDATE batches SET state = 'ended' WHERE id = ?", (batch.id,))

    def keep(self, replies: Mapping[str, Reply]) -> None:
        """Keep replies that did not come in a batch; their calls are done."""
        with self._transaction():
            self._keep(replies)
            self._file.executemany("DELETE FROM batch_calls WHERE name = ?", [(name,) for name in replies])

    def forget(self, name: str) -> None:
        """Remove a reply, such as an error that a later run must not take as the answer."""
        with self._transaction():
            self._file.execute("DELETE FROM batch_replies WHERE name = ?", (name,))

    def drop(self, name: str) -> int:
        """Forget a batch, named by us or by the provider, and its calls; return the number of calls.

        Raises:
            KeyError: no batch under way has this name.
            BlockingIOError: a running process owns the batch.
        """
        rows = self._rows("SELECT id, owner FROM batches WHERE state != 'ended' AND ? IN (id, at_provider)", (name,))
        if not rows:
            raise KeyError(name)
        number, owner = rows[0]
        if owner is not None and is_alive(self._owner_file(owner)):
            raise BlockingIOError(name)
        batch = Batch(number, "", None)
        calls = self.calls_of(batch)
        self.end(batch, {}, [])
        return len(calls)

    def forget_answered(self) -> None:
        """Remove replies whose answer the cache holds, unless another process is alive, which may wait for one of them."""
        owners = self._rows("SELECT owner FROM batches UNION SELECT owner FROM batch_calls")
        ours = self.owner()
        if any(owner not in (None, ours) and is_alive(self._owner_file(owner)) for (owner,) in owners):
            return
        with self._transaction():
            self._file.execute(f"DELETE FROM batch_replies WHERE {ANSWERED}")

    def counts(self) -> dict[str, int]:
        """Content of the tables."""
        queries = {
            "open calls": "SELECT count(*) FROM batch_calls WHERE batch IS NULL",
            "calls in batches": "SELECT count(*) FROM batch_calls WHERE batch IS NOT NULL",
            "batches under way": "SELECT count(*) FROM batches WHERE state != 'ended'",
            "batches ended": "SELECT count(*) FROM batches WHERE state = 'ended'",
            "replies not yet in the cache": f"SELECT count(*) FROM batch_replies WHERE NOT {ANSWERED}",
        }
        return {name: int(self._rows(query)[0][0]) for name, query in queries.items()}

    def close(self) -> None:
        """Close the file; afterwards everything is in that single file. A second call does nothing."""
        self.release()
        with self._lock:
            self._cache.close()

    def _keep(self, replies: Mapping[str, Reply]) -> None:
        """Keep replies; a failure never takes the place of a good reply."""
        rows = [(name, status, body) for name, (status, body) in replies.items()]
        self._file.executemany(
            "INSERT INTO batch_replies VALUES (?, ?, ?) ON CONFLICT (name) DO UPDATE "
            "SET status = excluded.status, body = excluded.body WHERE batch_replies.status != 200",
            rows,
        )

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        with usable(self.path), self._lock:
            return self._file.execute(query, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with usable(self.path), self._lock, self._file:
            self._file.execute("BEGIN IMMEDIATE")
            yield
