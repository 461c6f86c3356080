"""Check, repair, count or pack the call cache: `python -m scripts cache check|repair|stats|pack [--cache FILE]`.

`check` reads every row and reports faults (exit 1) or that there are none. `repair` copies all readable rows into a new file and keeps
the damaged file next to it; `--drop-vectors N` leaves out vectors of N numbers, which a server gave by mistake. `stats` counts the
rows. `pack` moves the data that a killed command left in `cache.sqlite-wal` into the one file, so that it can be copied alone. A lost
cache costs calls, never results: the content of the run folders does not depend on it.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from eval.files.store import RunError
from eval.report.counted import counted
from memsys.folders import locked_file
from memsys.llm.store import (
    DAMAGE,
    ENDINGS,
    JOURNAL,
    KEY_BYTES,
    REMEDY,
    SCHEMA,
    UNSOUND,
    ForeignSchema,
    add_columns,
    check_schema,
    checkpointed,
    completion_of,
    connected,
    keepable,
    lock_of,
    vector_of,
)
from scripts.setup.arguments import verb_parser, whole

GROUP = "data"

PARTS = 4096
"""Number of key ranges that are read one by one: only the rows on a damaged page are lost, not the rest of the file."""
TABLES = {"answers": 2, "outcomes": 2, "vectors": 4}
"""Number of columns of each table."""
BATCHES = {"batch_calls": "open or sent calls", "batches": "batches", "batch_replies": "replies of batches"}
"""Tables of the batch journal; their valid rows are copied unchanged, because their calls are paid for or in progress."""


@dataclass(slots=True)
class CacheCounts:
    answers: Counter[str] = field(default_factory=Counter)
    """Answers by model and endpoint."""
    outcomes: int = 0
    """Replies without an answer, which only a replay uses."""
    vectors: Counter[int] = field(default_factory=Counter)
    """Vectors by dimension."""
    tokens_in: int = 0
    tokens_out: int = 0
    bad: Counter[str] = field(default_factory=Counter)
    """Rows that are never used, by their fault."""


def rows(connection: sqlite3.Connection, table: str, unread: Counter[str]) -> Iterator[tuple[Any, ...]]:
    """Yield every readable row; key ranges that cannot be read to their end are counted."""
    if table not in _tables(connection):  # caches of older versions have no `outcomes`
        return
    for part in range(PARTS):
        low = (part << 4).to_bytes(2, "big")
        high = ((part + 1) << 4).to_bytes(2, "big") if part + 1 < PARTS else b"\xff" * 64
        seen: set[bytes] = set()
        for order in ("ASC", "DESC"):  # if a page is damaged, also read from the other end
            query = f"SELECT * FROM {table} WHERE key >= ? AND key < ? ORDER BY key {order}"
            try:
                for row in connection.execute(query, (low, high)):
                    if row[0] in seen:
                        break
                    seen.add(row[0])
                    yield row
                break
            except sqlite3.DatabaseError:
                unread[table] += order == "ASC"


def fault(table: str, row: tuple[Any, ...]) -> str:
    """The fault of a row; empty if there is none."""
    if not isinstance(row[0], bytes) or len(row[0]) != KEY_BYTES:
        return f"rows of {table} whose key has not {KEY_BYTES} bytes"
    if table == "vectors":
        vector = vector_of(row[1])
        if vector is None:
            return "vectors that are zero, not finite or torn"
        return (
            "" if abs(float(np.linalg.norm(vector.astype(np.float64))) - 1.0) < 1e-3 else "vectors not of unit length"
        )
    completion = completion_of(row[1])
    if completion is None:
        return "answers that cannot be decoded"
    return "" if table == "outcomes" or keepable(completion) else "replies without an answer among the answers"


def survey(connection: sqlite3.Connection) -> CacheCounts:
    found, unread = CacheCounts(), Counter[str]()
    for table in TABLES:
        for row in rows(connection, table, unread):
            if wrong := fault(table, row):
                found.bad[wrong] += 1
            elif table == "outcomes":
                found.outcomes += 1
            elif table == "vectors":
                found.vectors[len(row[1]) // 4] += 1
            elif (completion := completion_of(row[1])) is not None:
                found.answers[
                    f"{completion.model or 'unknown model'} at {completion.endpoint or 'unknown endpoint'}"
                ] += 1
                found.tokens_in += completion.prompt_tokens
                found.tokens_out += completion.completion_tokens
    for table in BATCHES.keys() & _tables(connection):
        with suppress(sqlite3.DatabaseError):  # `integrity_check` reports unreadable parts
            if count := _unsound(connection, table):
                found.bad[f"rows of {table} with values of other types"] = count
    for table, count in unread.items():
        found.bad[f"ranges of {table} that cannot be read ({PARTS} in all)"] += count
    return found


def check(path: Path) -> int:
    """Print the faults of a cache; return 0 if there are none, else 1."""
    with closing(_opened(path)) as connection:
        try:
            said = [str(line) for (line,) in connection.execute("PRAGMA integrity_check(5)")]
        except sqlite3.DatabaseError as error:
            said = [str(error)]
        said = [] if said == ["ok"] else said
        bad = survey(connection).bad
    for line in said:
        print(f"{path}: {line}")
    for wrong, count in sorted(bad.items()):
        print(f"{path}: {count} {wrong}")
    if said:
        print(f"{path} is damaged; {REMEDY}")
    elif bad:
        print(
            f"{path}: these rows are not used; they give way when their call is made again, and `repair` leaves them out"
        )
    else:
        print(f"{path}: whole")
    return 1 if said or bad else 0


def repair(path: Path, without: int | None = None) -> int:
    """Copy valid rows into a new cache, swap it in, and keep the old file next to it.

    Args:
        without: also leave out vectors with this number of dimensions.
    """
    _opened(path).close()  # refuses a file that is no cache, before a lock file is created next to it
    with _for_itself(path):  # held until the new file is in place: a run that starts now waits, and opens the new file
        numbered = (path.with_name(f"{path.name}.damaged-{number}") for number in itertools.count(1))
        aside = next(name for name in numbered if not name.exists())
        draft = path.with_name(f"{path.name}.{os.getpid()}.draft")
        draft.unlink(missing_ok=True)
        kept, lost = Counter[str](), Counter[str]()
        with closing(_opened(path, alone=True)) as old, closing(sqlite3.connect(draft)) as new:
            new.executescript(SCHEMA)
            for table, columns in TABLES.items():
                insert = f"INSERT INTO {table} VALUES ({','.join('?' * columns)})"
                kept[table] = new.executemany(insert, _sound(old, table, lost, without)).rowcount
            if BATCHES.keys() & _tables(old):
                new.executescript(JOURNAL)
                add_columns(new)
                for table in BATCHES:
                    kept[table] = _copied(old, new, table, lost)
            new.commit()
        for ending in ENDINGS:
            if (part := path.with_name(path.name + ending)).exists():
                os.replace(part, aside.with_name(aside.name + ending))
        os.replace(draft, path)
    left_out = ", ".join(f"{count} {wrong}" for wrong, count in sorted(lost.items())) or "nothing"
    journal = "".join(f", {kept[table]} {name}" for table, name in BATCHES.items() if kept[table] > 0)
    print(
        f"{path}: {counted(max(0, kept['answers']), 'answer')} and {counted(max(0, kept['vectors']), 'vector')}"
        f"{journal} kept, left out: {left_out}"
    )
    print(f"the file as it was: {aside}")
    return 0


@contextmanager
def _for_itself(path: Path) -> Iterator[None]:
    """Prevent other processes from opening a cache."""
    try:
        with locked_file(lock_of(path), fcntl.LOCK_EX | fcntl.LOCK_NB):
            yield
    except BlockingIOError as error:
        raise RunError(f"{path} is in use; wait for the run, or stop it, and repair it then") from error


def _copied(old: sqlite3.Connection, new: sqlite3.Connection, table: str, lost: Counter[str]) -> int:
    """Copy the rows of a table of the batch journal; returns their number. Rows that cannot be read are counted as lost."""
    count = 0
    try:
        if wrong := _unsound(old, table):
            lost[f"rows of {table} with values of other types"] += wrong
        cursor = old.execute(f"SELECT * FROM {table} WHERE NOT ({UNSOUND[table]})")
        names = [column[0] for column in cursor.description]
        insert = f"INSERT OR IGNORE INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
        for row in cursor:
            count += new.execute(insert, row).rowcount
    except sqlite3.DatabaseError as error:
        lost[f"part of the {BATCHES[table]} ({error})"] += 1
    return count


def _unsound(connection: sqlite3.Connection, table: str) -> int:
    """Number of invalid rows of a table of the batch journal: rows that the journal never writes."""
    return int(connection.execute(f"SELECT count(*) FROM {table} WHERE {UNSOUND[table]}").fetchone()[0])


def pack(path: Path) -> int:
    """Move all data into the one file; return 0 on success, 1 if another process prevents it."""
    with closing(_opened(path)) as connection:
        whole_file = checkpointed(connection)
    if not whole_file:
        print(
            f"{path}: another process uses it, and some answers may be in files next to it; pack it again when that has ended"
        )
        return 1
    print(f"{path}: everything is in this file, {path.stat().st_size / 2**20:.1f} MB")
    return 0


def _sound(old: sqlite3.Connection, table: str, lost: Counter[str], without: int | None) -> Iterator[tuple[Any, ...]]:
    unread = Counter[str]()
    for row in rows(old, table, unread):
        if wrong := fault(table, row):
            lost[wrong] += 1
        elif table == "vectors" and len(row[1]) // 4 == without:
            lost[f"vectors of {without} numbers"] += 1
        else:
            yield row
    if unread[table]:
        lost[f"ranges of {table} that could not be read ({PARTS} in all)"] = unread[table]


def stats(path: Path) -> int:
    with closing(_opened(path)) as connection:
        found = survey(connection)
    state = path.stat()
    print(
        f"{path}: {state.st_size / 2**20:.1f} MB, last written {time.strftime('%Y-%m-%d %H:%M', time.localtime(state.st_mtime))}"
    )
    print(f"answers: {found.answers.total()}, {found.tokens_in} tokens in, {found.tokens_out} out")
    for name, count in sorted(found.answers.items()):
        print(f"  {name}: {count}")
    print(f"replies without an answer, for replays: {found.outcomes}")
    print(f"vectors: {found.vectors.total()}")
    for dimension, count in sorted(found.vectors.items()):
        print(f"  of {dimension} numbers: {count}")
    if found.bad:
        print(f"not used: {found.bad.total()} (python -m scripts cache check)")
    return 0


def _opened(path: Path, *, alone: bool = False) -> sqlite3.Connection:
    """Open the file for reading. Raises RunError if there is no file, it is no cache at all, or (`alone`) another process has it open."""
    if not path.is_file():
        raise RunError(f"{path} is no file; name the cache with --cache")
    try:
        connection = connected(path)
    except ForeignSchema as error:
        raise RunError(f"{path} is no cache that can be trusted ({error}); move it away") from error
    try:
        if alone:
            connection.execute("PRAGMA busy_timeout=2000")
            connection.execute("PRAGMA journal_mode=DELETE")  # exclusive; moves the journal into the file
        held = _tables(connection)
        check_schema(connection)
    except ForeignSchema as error:
        connection.close()
        raise RunError(f"{path} is no cache that can be trusted ({error}); move it away") from error
    except DAMAGE as error:
        if "locked" in str(error):
            connection.close()
            raise RunError(f"{path} is in use; wait for the run, or stop it, and repair it then") from error
        try:
            held = _tables(connection)
        except DAMAGE:
            connection.close()
            if "unable to open" in str(error):
                raise RunError(
                    f"{path} cannot be opened ({error}): SQLite writes a file next to it; if its folder is read-only, copy the cache"
                ) from error
            raise RunError(
                f"{path} is not a readable cache ({error}); move it away: nothing that is in the run folders is lost"
            ) from error
    if missing := set(TABLES) - {"outcomes"} - held:
        connection.close()
        raise RunError(f"{path} is no cache: it has no table {' and no table '.join(sorted(missing))}")
    return connection


def _tables(connection: sqlite3.Connection) -> set[str]:
    return {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return 0 on success, 1 if `check` found a fault, 2 without a readable cache."""
    parser = verb_parser("cache", __doc__)
    parser.add_argument("command", choices=("check", "repair", "stats", "pack"))
    parser.add_argument(
        "--cache", type=Path, default=Path("results/cache.sqlite"), help="the file (default: %(default)s)"
    )
    parser.add_argument(
        "--drop-vectors", type=whole(1), metavar="N", help="with `repair`: leave out vectors of N numbers"
    )
    chosen = parser.parse_args(arguments)
    if chosen.drop_vectors and chosen.command != "repair":
        parser.error("--drop-vectors belongs to repair")
    if chosen.command == "repair":
        return repair(chosen.cache, chosen.drop_vectors)
    return {"check": check, "stats": stats, "pack": pack}[chosen.command](chosen.cache)
