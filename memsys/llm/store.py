"""The cache's file: completions and vectors by key, committed before anyone is told; one that is damaged says what to do.

SQLite in WAL mode: a killed process loses nothing that was told, and a row that is no proper answer gives way to a better one.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from memsys.jsons import decoded
from memsys.llm import stopping
from memsys.llm.client import Embedded
from memsys.llm.protocol import Completion, EndOfRun, ModelError
from memsys.llm.replies import cleaned

SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, completion TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS outcomes (key BLOB PRIMARY KEY, completion TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS vectors (
  key BLOB PRIMARY KEY, vector BLOB NOT NULL, tokens INTEGER NOT NULL, seconds REAL NOT NULL
) WITHOUT ROWID;
"""


REMEDY = (
    "move it away: nothing that is in the run folders is lost (`python -m scripts.cache repair` keeps what can be read)"
)


class DamagedCache(EndOfRun):
    """The file cannot be read or written any more."""


def keepable(completion: Completion) -> bool:
    """Whether a completion answers every call like it: whole or cut, with proper counts. What is none is the outcome of one call."""
    counts = (
        completion.prompt_tokens,
        completion.completion_tokens,
        completion.cached_prompt_tokens,
        completion.reasoning_tokens,
    )
    answered = bool(completion.text) or completion.stopped == "cut in thought"
    return answered and completion.keepable and all(type(count) is int for count in counts)


def sound(vector: np.ndarray) -> bool:
    """Whether a vector points anywhere."""
    return bool(len(vector) and np.isfinite(vector).all() and vector.any())


Written = Callable[[Exception | None], None]
"""Told once an answer is committed (None), or why it could not be."""


Row = tuple[Any, ...]
"""Of the file; the key comes first."""


class Store:
    """The file, in WAL mode: one connection reads and one writes, so that looking up never waits for a commit."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._reading, self._writing = threading.Lock(), threading.Lock()
        self._found: np.ndarray | None = None
        self._kept: set[bytes] = set()
        self._unsound: set[bytes] = set()  # keys of rows that are replaced when something better arrives
        self._only_writer, self._look_again = True, 0.0
        self._arrived: SimpleQueue[tuple[bytes, Completion, Written] | threading.Event | None] = SimpleQueue()
        try:
            self._out = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._out.execute("PRAGMA journal_mode=WAL")
            # A killed process loses nothing in this mode; only a power cut could take the last transactions, whole.
            self._out.execute("PRAGMA synchronous=NORMAL")
            self._out.execute("PRAGMA busy_timeout=30000")
            self._out.executescript(SCHEMA)
            (self._version,) = self._out.execute("PRAGMA data_version").fetchone()
            self._in = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        except sqlite3.DatabaseError as error:
            raise DamagedCache(
                f"{path} is not a usable cache ({error}); {REMEDY}, or name another with cache=…"
            ) from error
        self._writer = threading.Thread(target=self._write, name="cache", daemon=True)
        self._writer.start()
        stopping.keepers.add(self)

    def answer(self, key: bytes) -> Completion | None:
        """The completion under a key; one that is no proper answer is none, and gives way to the next under its key.

        Raises:
            DamagedCache: the file cannot be read.
        """
        with self._telling():
            if not self._may_hold(key):
                return None
            with self._reading:
                row = self._in.execute("SELECT completion FROM answers WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        found = completion_of(row[0])
        if found is None or not keepable(found):
            self._unsound.add(key)
            return None
        return found

    def outcome(self, key: bytes) -> Completion | None:
        """What a call ended with that gave no answer: for a replay, where it cannot be asked again.

        Raises:
            DamagedCache: the file cannot be read.
        """
        with self._telling(), self._reading:
            row = self._in.execute("SELECT completion FROM outcomes WHERE key = ?", (key,)).fetchone()
        return None if row is None else completion_of(row[0])

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise DamagedCache(f"{self.path} cannot be read ({error}); {REMEDY}") from error

    def _may_hold(self, key: bytes) -> bool:
        """Whether a key must be looked up: most calls of a first run are not there, and asking SQLite would yield to other threads.

        Known are the first eight bytes of the keys found when the file was opened and of those written since; once another process
        writes to the file, every key is looked up.
        """
        if not self._alone():
            return True
        if self._found is None:
            with self._reading:
                rows = self._in.execute("SELECT substr(key, 1, 8) FROM answers ORDER BY key").fetchall()
            self._found = np.frombuffer(b"".join(prefix for (prefix,) in rows), dtype=">u8").astype(np.uint64)
        if key[:8] in self._kept:
            return True
        prefix = np.uint64(int.from_bytes(key[:8]))
        place = int(np.searchsorted(self._found, prefix))
        return place < len(self._found) and bool(self._found[place] == prefix)

    def _alone(self) -> bool:
        """Whether no other process has written to the file since it was opened; looked at once in half a second."""
        if self._only_writer and time.monotonic() > self._look_again:
            self._look_again = time.monotonic() + 0.5
            with self._writing:
                (version,) = self._out.execute("PRAGMA data_version").fetchone()
            self._only_writer = version == self._version
        return self._only_writer

    def keep_answer(self, key: bytes, completion: Completion, then: Written) -> None:
        """Commit a completion, then tell `then`, in the thread that writes; the first answer under a key stays.

        One that holds no answer is kept apart, as the outcome of this one call.

        Answers that arrive while one transaction is being committed share the next: a commit costs more than an answer does.
        """
        self._arrived.put((key, completion, then))

    def _write(self) -> None:
        closing = False
        while not closing:
            batch = [self._arrived.get()]
            with suppress(Empty):
                while len(batch) < 256:
                    batch.append(self._arrived.get_nowait())
            closing = None in batch
            if answers := [one for one in batch if isinstance(one, tuple)]:
                self._settle(answers)
            for one in batch:
                if isinstance(one, threading.Event):
                    one.set()

    def _settle(self, batch: Sequence[tuple[bytes, Completion, Written]]) -> None:
        try:
            self._commit([(key, _text(found)) for key, found, _ in batch if keepable(found)])
            self._commit_outcomes([(key, _text(found)) for key, found, _ in batch if not keepable(found)])
        except Exception as error:
            if len(batch) == 1:
                _tell(batch[0][2], error)
            else:  # only those that cannot be written fail
                for one in batch:
                    self._settle([one])
        else:
            for _, _, then in batch:
                _tell(then, None)

    def _commit(self, rows: Sequence[tuple[bytes, str]]) -> None:
        with self._writing, self._out:
            self._out.execute("BEGIN")
            for verb, some in self._verbs(rows):
                self._out.executemany(f"INSERT OR {verb} INTO answers VALUES (?, ?)", some)
        self._kept.update(key[:8] for key, _ in rows)

    def _commit_outcomes(self, rows: Sequence[tuple[bytes, str]]) -> None:
        if rows:
            with self._writing, self._out:
                self._out.executemany("INSERT OR REPLACE INTO outcomes VALUES (?, ?)", rows)

    def _verbs(self, rows: Sequence[Row]) -> Iterator[tuple[str, Sequence[Row]]]:
        """The first row under a key stays, unless it was found to be unsound."""
        if not self._unsound:
            yield "IGNORE", rows
            return
        yield "IGNORE", [row for row in rows if row[0] not in self._unsound]
        yield "REPLACE", [row for row in rows if row[0] in self._unsound]

    def flush(self, seconds: float) -> None:
        """Wait until all answers that have arrived are committed and handed on, so long at most."""
        passed = threading.Event()
        self._arrived.put(passed)
        passed.wait(seconds)

    def vectors(self, keys: Sequence[bytes]) -> dict[bytes, Embedded]:
        """The vectors that are known among the keys; one that points nowhere is none, and gives way to the next under its key.

        Raises:
            DamagedCache: the file cannot be read.
        """
        found: dict[bytes, Embedded] = {}
        with self._telling(), self._reading:
            for start in range(0, len(keys), 500):
                part = keys[start : start + 500]
                marks = ",".join("?" * len(part))
                query = f"SELECT key, vector, tokens, seconds FROM vectors WHERE key IN ({marks})"
                for key, vector, tokens, seconds in self._in.execute(query, part):
                    numbers = vector_of(vector)
                    if numbers is None:
                        self._unsound.add(key)
                    else:
                        found[key] = Embedded(numbers, tokens, seconds)
        return found

    def keep_vectors(self, rows: Sequence[tuple[bytes, Embedded]]) -> None:
        """Commit vectors, all in one transaction.

        Raises:
            DamagedCache: the file cannot be written.
        """
        values = [(key, one.vector.astype(np.float32).tobytes(), one.tokens, one.seconds) for key, one in rows]
        try:
            with self._writing, self._out:
                self._out.execute("BEGIN")
                for verb, some in self._verbs(values):
                    self._out.executemany(f"INSERT OR {verb} INTO vectors VALUES (?, ?, ?, ?)", some)
        except sqlite3.DatabaseError as error:
            raise unwritable(self.path, error) from error

    def close(self) -> None:
        """Write what has arrived, and close the file."""
        self._arrived.put(None)
        self._writer.join()
        with self._reading, self._writing:
            self._in.close()
            self._out.close()


def _tell(then: Written, error: Exception | None) -> None:
    try:
        then(error)
    except Exception:  # the thread that writes goes on: everyone else waits for it
        logging.getLogger(__name__).exception("what waits for an answer of the cache failed")


def unwritable(path: Path, error: Exception) -> ModelError:
    """Why an answer is not in the file. A file that takes no rows at all ends the run: what is bought could not be kept."""
    if isinstance(error, sqlite3.DatabaseError) and not isinstance(error, sqlite3.IntegrityError | sqlite3.DataError):
        remedy = "; free some space and run again" if "full" in str(error) else f"; {REMEDY}"
        return DamagedCache(f"{path}: cannot be written ({error}){remedy}")
    return ModelError(f"{path}: cannot be written ({error})")


def completion_of(text: str) -> Completion | None:
    """A row of `answers` as it was; None when it does not say so any more."""
    try:
        fields = decoded(text)
        if fields["logprobs"] is not None:
            fields["logprobs"] = tuple(fields["logprobs"])
        fields["notes"] = tuple(fields.get("notes", ()))
        found = Completion(**fields)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    # An older version may have kept the reasoning inside the text.
    return cleaned(found) if isinstance(found.text, str) else None


def vector_of(stored: bytes) -> np.ndarray | None:
    """A row of `vectors` as it was; None when it points nowhere any more."""
    if not isinstance(stored, bytes) or len(stored) % 4:
        return None
    vector = np.frombuffer(stored, dtype=np.float32)
    return vector if sound(vector) else None


def _text(completion: Completion) -> str:
    # dataclasses.asdict copies deeply, which costs more than everything else done to an answer
    return json.dumps({name: getattr(completion, name) for name in completion.__slots__}, ensure_ascii=False)
