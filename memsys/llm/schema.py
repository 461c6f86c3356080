"""The tables of a cache file, and the check that a file holds these and nothing else.

A cache may come from another person. Triggers, views, expressions and other columns in it could change or drop answers or run
without end, so a file with another schema than ours is refused before anything is read from it. Journal mode WAL needs shared memory
between the processes that use a file: on a network file system all of them must run on one machine.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from functools import lru_cache
from pathlib import Path

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
    return sqlite3.connect(path, check_same_thread=False, isolation_level=None)


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
