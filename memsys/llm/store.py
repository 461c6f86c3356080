"""The cache file: completions and vectors by key, committed before a caller gets them.

SQLite in WAL mode, so a killed process loses no answer that a caller has received. When a store is closed, at the end of the process at
the latest, the file holds everything and may be copied alone; after a kill, `python -m scripts cache pack` does that. On a network file
system use a cache from one machine only: WAL needs memory that all its processes share. A row that does not hold a valid answer is
replaced by the next valid one.

A cache may come from another person. Triggers, views, expressions and other columns in it could change or drop answers or run
without end, so a file with another schema than ours is refused before anything is read from it.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import orjson

from memsys.folders import network_file_system, open_lock, read_only
from memsys.jsons import decoded, fields_of
from memsys.llm import stopping
from memsys.llm.client import Embedded
from memsys.llm.protocol import Completion, EndOfRun, ModelError
from memsys.llm.replies import cleaned

KEY_BYTES = 32
"""Length of a key, a SHA-256."""
SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, completion TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS outcomes (key BLOB PRIMARY KEY, completion TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS vectors (
  key BLOB PRIMARY KEY, vector BLOB NOT NULL, tokens INTEGER NOT NULL, seconds REAL NOT NULL
) WITHOUT ROWID;
"""
JOURNAL = """
CREATE TABLE IF NOT EXISTS batch_calls (
  name TEXT PRIMARY KEY, path TEXT NOT NULL, body BLOB NOT NULL, batch TEXT, attempts INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS calls_of_batch ON batch_calls (batch);
CREATE TABLE IF NOT EXISTS batches (
  id TEXT PRIMARY KEY, server TEXT NOT NULL, path TEXT NOT NULL, at_provider TEXT, state TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS batch_replies (name TEXT PRIMARY KEY, status INTEGER NOT NULL, body BLOB NOT NULL) WITHOUT ROWID;
"""
"""Tables of `batching.journal`, as older versions made them."""
ADDED = (("batch_calls", "owner", "TEXT"), ("batches", "owner", "TEXT"), ("batches", "begun", "REAL"))
"""Columns that were added to the journal's tables later: table, name, type."""
UNSOUND = {
    "batch_calls": "typeof(name) || typeof(path) || typeof(body) || typeof(attempts) != 'texttextblobinteger'",
    "batches": "typeof(id) || typeof(server) || typeof(path) || typeof(state) != 'texttexttexttext' "
    "OR typeof(at_provider) NOT IN ('text', 'null')",
    "batch_replies": "typeof(name) || typeof(status) || typeof(body) != 'textintegerblob' OR NOT json_valid(CAST(body AS TEXT))",
}
"""By table of the journal: the condition of a row that no journal wrote. SQLite lets a column hold values of any type."""
ENDINGS = ("", "-wal", "-shm", "-journal")
"""Suffixes of the names of the files in which SQLite keeps a database."""

DAMAGE = (sqlite3.DatabaseError, UnicodeDecodeError)
"""Errors that a damaged file raises: Python cannot decode SQLite's message where that quotes broken bytes of the schema."""


class ForeignSchema(sqlite3.DatabaseError):
    """A file holds something that does not belong in a cache."""


def lock_of(cache: Path) -> Path:
    """The lock file next to a cache: processes that use the cache share the lock, a process that replaces the file holds it exclusively."""
    return cache.with_name(f"{cache.name}.lock")


def connected(path: Path) -> sqlite3.Connection:
    """A connection to a cache, for all threads and without Python's own transactions. The path may be a link to an existing cache.

    Raises:
        ForeignSchema: the path is a link to a missing or an empty file, which SQLite would turn into a database wherever the link leads;
            a file next to it that SQLite would read is a link; or one of them is a pipe, on which SQLite would wait.
    """
    if path.is_symlink() and not (path.exists() and path.stat().st_size):
        raise ForeignSchema(f"{path.name} is a link to no cache")
    for part in (path.resolve().with_name(path.resolve().name + ending) for ending in ENDINGS):
        if part.is_symlink() or (part.exists() and not part.is_file()):
            raise ForeignSchema(f"{part.name} is a link or no plain file")
    return sqlite3.connect(opened_as(path), check_same_thread=False, isolation_level=None, uri=True)


def opened_as(path: Path) -> str:
    """The name by which SQLite opens a cache. On a read-only file system it then makes no file beside it, which needs an empty log."""
    place = path.resolve()
    log = place.with_name(f"{place.name}-wal")
    if not place.exists() or not read_only(place) or (log.exists() and log.stat().st_size):
        return str(place)
    return f"{place.as_uri()}?immutable=1"


def check_schema(connection: sqlite3.Connection, schema: str = "main") -> None:
    """Disable everything in a file that SQLite would run by itself, and refuse a file that holds more than a cache's tables.

    Raises:
        ForeignSchema: the file has a trigger, a view, another table or index, or other columns.
        sqlite3.DatabaseError: the file is not a database.
    """
    try:
        connection.execute("PRAGMA trusted_schema=OFF")
        for kind, name, text in connection.execute(f"SELECT type, name, sql FROM {schema}.sqlite_master"):
            if " ".join(str(text).split()) not in _ours():
                raise ForeignSchema(f"its {kind} {str(name)[:40]!r} is no part of a cache, or has other columns")
    except UnicodeDecodeError as error:
        raise sqlite3.DatabaseError("malformed database schema") from error


def add_columns(connection: sqlite3.Connection) -> None:
    """Update a journal that an older version made."""
    for table, column, kind in ADDED:
        if column not in {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}:
            with suppress(sqlite3.OperationalError):  # another process has just added the column
                connection.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")


def checkpointed(connection: sqlite3.Connection, patience: int = 2) -> bool:
    """Move everything from the write-ahead log into the file; False when another process's reading or writing prevents it.

    Args:
        patience: seconds to wait for another process.
    """
    try:
        connection.execute(f"PRAGMA busy_timeout={1000 * patience}")
        (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error:
        return False
    return not busy


@lru_cache(maxsize=1)
def _ours() -> frozenset[str]:
    """The statements of our tables and indexes as SQLite keeps them, with and without the columns that were added."""
    statements: set[str] = set()
    with closing(sqlite3.connect(":memory:")) as empty:
        empty.executescript(SCHEMA + JOURNAL)
        for table, column, kind in (("", "", ""), *ADDED):
            if table:
                empty.execute(f"ALTER TABLE {table} ADD COLUMN {column} {kind}")
            statements |= {" ".join(text.split()) for (text,) in empty.execute("SELECT sql FROM sqlite_master")}
    return frozenset(statements)


PATIENCE = 30
"""Seconds that a process waits for another that has locked the file."""
SMALL = 16 << 20
"""Bytes of a file whose keys are read into memory at the first lookup; reading those of a larger file would take longer than it saves."""
REMEDY = (
    "move it away: nothing that is in the run folders is lost (`python -m scripts cache repair` keeps what can be read)"
)


class DamagedCache(EndOfRun):
    """The cache file can no longer be read or written."""


def keepable(completion: Completion) -> bool:
    """Whether a completion may answer later calls with the same key: it has an answer, complete or cut, and integers as token counts.

    A completion without an answer makes an errored question, which the next run tries again, so its request is sent again. That holds also
    for a completion that was cut in its reasoning: with the same limit another sample may reason for less long.
    """
    counts = (
        completion.prompt_tokens,
        completion.completion_tokens,
        completion.cached_prompt_tokens,
        completion.reasoning_tokens,
    )
    return bool(completion.text.strip()) and completion.usable and all(type(count) is int for count in counts)


def sound(vector: np.ndarray) -> bool:
    """Whether a vector is finite and not zero."""
    return bool(len(vector) and np.isfinite(vector).all() and vector.any())


Kept = tuple[bytes, Completion]
"""A completion with its key."""


Entry = tuple[tuple[Kept, ...], Future[None]]
"""Rows that are committed together, and the future that is done when they are."""


Row = tuple[Any, ...]
"""A row of the file; its first element is the key."""


@contextmanager
def usable(path: Path) -> Iterator[None]:
    """Raise a DamagedCache that names the remedy where the block cannot use the file as a cache."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        raise DamagedCache(
            f"{path} is not a usable cache ({error}); {_remedy(error)}, or name another with cache=…"
        ) from error


class CacheFile:
    """A cache in use: a connection in WAL mode, and the lock that all its users share.

    Args:
        tables: statements that make what is missing in it.

    Raises:
        DamagedCache: the file is not a cache, or cannot be written.
    """

    def __init__(self, path: Path, tables: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with usable(path), ExitStack() as opened:
            lock = open_lock(lock_of(path))
            opened.callback(os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_SH)  # waits while `memsys-bench cache repair` replaces the file
            self.connection = in_wal_mode(path)
            opened.callback(self.connection.close)
            self.connection.execute(f"PRAGMA busy_timeout={1000 * PATIENCE}")
            self.connection.executescript(tables)
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Move everything into the single file and close it. A second call does nothing."""
        checkpointed(self.connection)
        self._opened.close()


class CacheStore:
    """The cache file. One connection reads and another writes, so that a lookup never waits for a commit."""

    def __init__(self, path: Path) -> None:
        if path.is_dir():
            raise DamagedCache(f"{path} is a folder; name a file with cache=…")
        self.path = path
        self._reading, self._writing = threading.Lock(), threading.RLock()
        self._prefixes: set[bytes] | None = None  # first eight bytes of the keys; read when first needed
        self._prefixes_written: set[bytes] = set()
        self._unsound: set[bytes] = set()  # keys of invalid rows, which the next valid answer replaces
        self._theirs: set[bytes] = set()  # keys of rows of which another process may have committed some first
        self._broken: tuple[DamagedCache, tuple[Callable[[], None], ...]] | None = (
            None  # with what writes the refused rows again
        )
        self._next_check = 0.0
        self._closing, self._closed = threading.Lock(), False
        self._arrived: SimpleQueue[Entry | threading.Event | None] = SimpleQueue()
        with usable(path), ExitStack() as opened:
            self._file = CacheFile(path, SCHEMA)
            opened.callback(self._file.close)
            self._out = self._file.connection
            # In this mode a killed process loses nothing; a power failure may lose the last transactions, each as a whole.
            self._out.execute("PRAGMA synchronous=NORMAL")
            (self._version,) = self._out.execute("PRAGMA data_version").fetchone()
            self._in = connected(path)
            check_schema(self._in)
            self._only_writer = os.stat(path).st_size <= SMALL
            opened.pop_all()
        self._writer = threading.Thread(target=self._write, name="cache", daemon=True)
        self._writer.start()
        stopping.keepers.add(self)
        atexit.register(self.close)

    def answer(self, key: bytes) -> Completion | None:
        """The completion under a key; None when there is none or it is not valid. The next valid completion replaces an invalid one.

        Raises:
            DamagedCache: the file cannot be read.
        """
        if not self._may_hold(key):
            return None
        with self._reading_file(), self._reading:
            row = self._in.execute("SELECT completion FROM answers WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        completion = completion_of(row[0])
        if completion is None or not keepable(completion):
            self._unsound.add(key)
            return None
        return completion

    def outcome(self, key: bytes) -> Completion | None:
        """The last completion without an answer under a key; for replays, which cannot send the request again.

        Raises:
            DamagedCache: the file cannot be read.
        """
        # Older versions kept replies that were cut in their reasoning among the answers.
        query = "SELECT completion FROM outcomes WHERE key = ? UNION ALL SELECT completion FROM answers WHERE key = ?"
        with self._reading_file(), self._reading:
            row = self._in.execute(query, (key, key)).fetchone()
        return None if row is None else completion_of(row[0])

    @contextmanager
    def _reading_file(self) -> Iterator[None]:
        """Turn an error of SQLite into a `DamagedCache` that names the remedy."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise DamagedCache(f"{self.path} cannot be read ({error}); {REMEDY}") from error

    def _may_hold(self, key: bytes) -> bool:
        """Whether the file may hold an answer under a key, without asking SQLite, which would let other threads run first.

        Most calls of a first run are not cached, so this check saves most lookups. It compares the first eight bytes of the key with
        those of the keys that were in the file at the start and that were written since. For a large file, and once another process
        has written to the file, it returns True for every key.
        """
        if self._only_writer and time.monotonic() > self._next_check:  # twice a second
            self._next_check = time.monotonic() + 0.5
            with self._writing:
                (version,) = self._out.execute("PRAGMA data_version").fetchone()
            self._only_writer = version == self._version
        if not self._only_writer:
            return True
        if self._prefixes is None:
            with self._reading_file(), self._reading:
                rows = self._in.execute("SELECT substr(key, 1, 8) FROM answers WHERE length(key) = ?", (KEY_BYTES,))
                self._prefixes = {prefix for (prefix,) in rows}
        return key[:8] in self._prefixes_written or key[:8] in self._prefixes

    def keep_answer(self, key: bytes, completion: Completion, *beside: Kept) -> Future[None]:
        """Commit a completion; the future ends, in the writer's thread, when that is done. The first answer under a key is kept.

        A completion without an answer goes into a table of its own, as the outcome of this call only. Answers that arrive during a
        commit share the next transaction, because a commit takes longer than a call's other work.

        Args:
            beside: further completions with their keys, written in the same transaction.
        """
        written: Future[None] = Future()
        written.set_running_or_notify_cancel()  # from now on it cannot be cancelled
        with self._closing:
            if self._closed:
                written.set_exception(ModelError("the cache was closed before this answer came"))
            else:
                self._arrived.put((((key, completion), *beside), written))
        return written

    def first(self, key: bytes, completion: Completion) -> Completion:
        """What the file keeps of a committed completion: another process's answer where that came first, so that a replay is the same.

        Raises:
            DamagedCache: the file cannot be read.
        """
        return (self.answer(key) if key in self._theirs else None) or completion

    def _write(self) -> None:
        closing = False
        while not closing:
            batch = [self._arrived.get()]
            with suppress(Empty):
                while len(batch) < 256:
                    batch.append(self._arrived.get_nowait())
            closing = None in batch
            if answers := [entry for entry in batch if isinstance(entry, tuple)]:
                self._commit_batch(answers)
            for entry in batch:
                if isinstance(entry, threading.Event):
                    entry.set()

    def _commit_batch(self, batch: Sequence[Entry]) -> None:
        kept = [pair for pairs, _ in batch for pair in pairs]
        try:
            self._commit(kept)
        except Exception as error:
            if len(batch) == 1:
                batch[0][1].set_exception(self._unwritable(error, partial(self._commit, kept)))
            else:  # one by one, so that only those that cannot be written fail
                for entry in batch:
                    self._commit_batch([entry])
        else:
            for _, written in batch:
                written.set_result(None)

    def _commit(self, kept: Sequence[Kept]) -> None:
        rows = [(key, _json_text(reply)) for key, reply in kept if keepable(reply)]
        self._insert("answers", rows)
        self._prefixes_written.update(key[:8] for key, _ in rows)
        if outcomes := [(key, _json_text(reply)) for key, reply in kept if not keepable(reply)]:
            with self._writing, self._out:
                self._out.executemany("INSERT OR REPLACE INTO outcomes VALUES (?, ?)", outcomes)

    def _insert(self, table: str, rows: Sequence[Row]) -> None:
        """Insert rows in one transaction; a stored row is kept, unless it is known to be invalid."""
        with self._writing, self._out:
            self._out.execute("BEGIN")
            for verb, invalid in (("IGNORE", False), ("REPLACE", True)):
                own = [row for row in rows if (row[0] in self._unsound) is invalid]
                if not own:
                    continue
                query = f"INSERT OR {verb} INTO {table} VALUES ({', '.join('?' * len(own[0]))})"
                if self._out.executemany(query, own).rowcount < len(own):
                    self._theirs.update(row[0] for row in own)

    def flush(self, seconds: float) -> None:
        """Wait up to `seconds` until all answers that have arrived are in the single file and their callers notified."""
        with self._closing:
            if self._closed:
                return
            committed = threading.Event()
            self._arrived.put(committed)
        committed.wait(seconds)
        with self._writing:
            if not self._closed:
                checkpointed(self._out, patience=1)
                self._out.execute(f"PRAGMA busy_timeout={1000 * PATIENCE}")

    def vectors(self, keys: Sequence[bytes]) -> dict[bytes, Embedded]:
        """The stored vectors by key; keys without a vector, or with one that is zero or not finite, are absent.

        Raises:
            DamagedCache: the file cannot be read.
        """
        vectors: dict[bytes, Embedded] = {}
        with self._reading_file(), self._reading:
            for start in range(0, len(keys), 500):
                batch = keys[start : start + 500]
                marks = ",".join("?" * len(batch))
                query = f"SELECT key, vector, tokens, seconds FROM vectors WHERE key IN ({marks})"
                for key, stored, tokens, seconds in self._in.execute(query, batch):
                    vector = vector_of(stored)
                    if vector is None:
                        self._unsound.add(key)
                    else:
                        vectors[key] = Embedded(vector, tokens, seconds)
        return vectors

    def keep_vectors(self, rows: Sequence[tuple[bytes, Embedded]]) -> dict[bytes, Embedded]:
        """Commit vectors in one transaction; returns what the file keeps, as `first` does.

        Raises:
            DamagedCache: the file cannot be written.
        """
        values = [
            (key, embedded.vector.astype(np.float32).tobytes(), embedded.tokens, embedded.seconds)
            for key, embedded in rows
        ]
        try:
            self._insert("vectors", values)
        except sqlite3.DatabaseError as error:
            raise self._unwritable(error, partial(self._insert, "vectors", values)) from error
        return dict(rows) | self.vectors([key for key, _ in rows if key in self._theirs])

    def _unwritable(self, error: Exception, again: Callable[[], None]) -> ModelError:
        """The error for rows that could not be written; `DamagedCache`, which ends the run, when the file takes no rows at all.

        Args:
            again: writes the rows.
        """
        if not isinstance(error, sqlite3.DatabaseError) or isinstance(
            error, sqlite3.IntegrityError | sqlite3.DataError
        ):
            return ModelError(f"{self.path}: cannot be written ({error})")
        broken = DamagedCache(f"{self.path}: cannot be written ({error}); {_remedy(error)}")
        with self._writing:
            self._broken = broken, (*(self._broken[1] if self._broken else ()), again)
        return broken

    def check(self) -> bool:
        """Check that the file took the last rows, before a call is sent whose answer would be lost; refused ones are written again.

        Returns whether there were any. Nothing is waited for: a run whose file is locked ends as soon as all its calls are refused.

        Raises:
            DamagedCache: the file does not take them.
        """
        if self._broken is None:
            return False
        with self._writing:
            if self._broken is None:
                return True  # another thread has just written them
            error, refused = self._broken
            if self._closed:
                raise error
            self._out.execute("PRAGMA busy_timeout=0")
            try:
                for again in refused:
                    again()
            except sqlite3.DatabaseError:
                raise error from None
            finally:
                self._out.execute(f"PRAGMA busy_timeout={1000 * PATIENCE}")
            self._broken = None
        return True

    def close(self) -> None:
        """Commit all answers that have arrived, move them into the single file, and close it."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._arrived.put(None)
        self._writer.join()
        with self._reading, self._writing:
            self._in.close()
            self._file.close()
        stopping.keepers.discard(self)
        atexit.unregister(self.close)


def in_wal_mode(path: Path) -> sqlite3.Connection:
    """A connection to a cache in WAL mode. While another process makes the file, SQLite refuses the mode at once, so it is asked again.

    Raises:
        sqlite3.DatabaseError: the file is not a cache, its file system allows no WAL, or it stays locked for half a minute.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        connection = connected(path)
        try:
            check_schema(connection)
            (mode,) = connection.execute("PRAGMA journal_mode=WAL").fetchone()
            if mode != "wal":
                raise sqlite3.OperationalError(
                    "its file system allows no write-ahead log; put the cache on a local disk"
                )
            break
        except sqlite3.DatabaseError as error:
            connection.close()
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    if (kind := network_file_system(path)) and path not in _warned:
        _warned.add(path)
        logging.getLogger(__name__).warning(
            "%s lies on a network file system (%s): use it from one machine only, or set cache= to a local disk",
            path,
            kind,
        )
    return connection


_warned: set[Path] = set()
"""Caches on network file systems for which a warning was already printed."""


def _remedy(error: Exception) -> str:
    """What to do with a file that SQLite refuses: keep it on a full disk; `cache repair` copies nothing of another schema."""
    if str(error).endswith(("disk is full", "disk I/O error")):  # the latter: its log found no space
        return "free some space or check the disk, and run again"
    return "move it away" if isinstance(error, ForeignSchema) else REMEDY


def completion_of(text: str) -> Completion | None:
    """The completion in a row of `answers`; None when the text is not a valid one."""
    try:
        fields = decoded(text)
        if fields["logprobs"] is not None:
            fields["logprobs"] = tuple(fields["logprobs"])
        fields["notes"] = tuple(fields.get("notes", ()))
        completion = Completion(**fields)
        # Older versions stored the reasoning inside the text, and cached tokens apart.
        return cleaned(completion) if isinstance(completion.text, str) else None
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def vector_of(stored: bytes) -> np.ndarray | None:
    """The vector in a row of `vectors`, float32 [d]; None when it is malformed, zero or not finite."""
    if not isinstance(stored, bytes) or len(stored) % 4:
        return None
    vector = np.frombuffer(stored, dtype=np.float32)
    return vector if sound(vector) else None


def _json_text(completion: Completion) -> str:
    return orjson.dumps(fields_of(completion)).decode()  # not `encoded`: a lone surrogate is refused
