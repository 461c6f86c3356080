"""Every answer on disk before it is handed on: one SQLite file from which a run replays to the same bytes with no key.

The key is what can change the output (model, messages, sampling, schema, replicate and retry number) and an endpoint label, so
that a mock never answers for the real model; never timeouts or folders. A cached answer keeps its tokens and its recorded seconds.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Protocol

import numpy as np

from memsys.jsons import canonical, decoded
from memsys.llm import meter
from memsys.llm.client import Embedded
from memsys.llm.pricing import ModelSettings
from memsys.llm.protocol import LLM, Completion, ModelError, Request
from memsys.llm.replies import cleaned

_SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, completion TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS vectors (
  key BLOB PRIMARY KEY, vector BLOB NOT NULL, tokens INTEGER NOT NULL, seconds REAL NOT NULL
) WITHOUT ROWID;
"""


Written = Callable[[Exception | None], None]
"""Told once an answer is committed (None), or why it could not be."""


class Store:
    """The file, in WAL mode: one connection reads and one writes, so that looking up never waits for a commit."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._reading, self._writing = threading.Lock(), threading.Lock()
        self._found: np.ndarray | None = None
        self._kept: set[bytes] = set()
        self._only_writer, self._look_again = True, 0.0
        self._arrived: SimpleQueue[tuple[bytes, Completion, Written] | None] = SimpleQueue()
        try:
            self._out = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._out.execute("PRAGMA journal_mode=WAL")
            # A killed process loses nothing in this mode; only a power cut could take the last transactions, whole.
            self._out.execute("PRAGMA synchronous=NORMAL")
            self._out.execute("PRAGMA busy_timeout=30000")
            self._out.executescript(_SCHEMA)
            (self._version,) = self._out.execute("PRAGMA data_version").fetchone()
            self._in = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        except sqlite3.DatabaseError as error:
            raise ModelError(
                f"{path} is not a usable cache ({error}); move it away or name another with cache=…"
            ) from error
        self._writer = threading.Thread(target=self._write, name="cache", daemon=True)
        self._writer.start()

    def answer(self, key: bytes) -> Completion | None:
        """The completion under a key."""
        if not self._may_hold(key):
            return None
        with self._reading:
            row = self._in.execute("SELECT completion FROM answers WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        fields = decoded(row[0])
        if fields["logprobs"] is not None:
            fields["logprobs"] = tuple(fields["logprobs"])
        fields["notes"] = tuple(fields.get("notes", ()))
        return cleaned(Completion(**fields))  # an older version may have kept the reasoning inside the text

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
        """Commit a completion, then tell `then`, in the thread that writes; the first one under a key stays.

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
            self._settle([one for one in batch if one is not None])

    def _settle(self, batch: Sequence[tuple[bytes, Completion, Written]]) -> None:
        try:
            self._commit([(key, _text(completion)) for key, completion, _ in batch])
        except Exception as error:
            if len(batch) == 1:
                batch[0][2](error)
            else:  # only those that cannot be written fail
                for one in batch:
                    self._settle([one])
        else:
            for _, _, then in batch:
                then(None)

    def _commit(self, rows: Sequence[tuple[bytes, str]]) -> None:
        with self._writing, self._out:
            self._out.execute("BEGIN")
            self._out.executemany("INSERT OR IGNORE INTO answers VALUES (?, ?)", rows)
        self._kept.update(key[:8] for key, _ in rows)

    def vectors(self, keys: Sequence[bytes]) -> dict[bytes, Embedded]:
        """The vectors that are known among the keys."""
        found: dict[bytes, Embedded] = {}
        with self._reading:
            for start in range(0, len(keys), 500):
                part = keys[start : start + 500]
                marks = ",".join("?" * len(part))
                query = f"SELECT key, vector, tokens, seconds FROM vectors WHERE key IN ({marks})"
                for key, vector, tokens, seconds in self._in.execute(query, part):
                    found[key] = Embedded(np.frombuffer(vector, dtype=np.float32), tokens, seconds)
        return found

    def keep_vectors(self, rows: Sequence[tuple[bytes, Embedded]]) -> None:
        """Commit vectors, all in one transaction."""
        values = [(key, one.vector.astype(np.float32).tobytes(), one.tokens, one.seconds) for key, one in rows]
        with self._writing, self._out:
            self._out.execute("BEGIN")
            self._out.executemany("INSERT OR IGNORE INTO vectors VALUES (?, ?, ?, ?)", values)

    def close(self) -> None:
        """Write what has arrived, and close the file."""
        self._arrived.put(None)
        self._writer.join()
        with self._reading, self._writing:
            self._in.close()
            self._out.close()


def _text(completion: Completion) -> str:
    # dataclasses.asdict copies deeply, which costs more than everything else done to an answer
    return json.dumps({name: getattr(completion, name) for name in completion.__slots__}, ensure_ascii=False)


def request_key(settings: ModelSettings, endpoint: str, request: Request) -> bytes:
    """sha256 over everything that can change the completion."""
    parts = {
        "model": settings.model,
        "endpoint": endpoint,
        "reasoning_effort": settings.reasoning_effort,
        "extra_body": dict(settings.extra_body),
        "json_output": settings.json_output,
        "temperature": request.temperature if settings.send_temperature else None,
        "messages": request.messages,
        "max_tokens": settings.output_limit(request.max_tokens),
        "schema": request.schema,
        "logprobs": request.logprobs,
        "sample": request.sample,
        "retry": request.retry,
    }
    return hashlib.sha256(canonical(parts)).digest()


class CachedLLM:
    """A model behind the store. A request that is already under way is not sent twice.

    Args:
        inner: None replays only: what is not in the file fails.
    """

    def __init__(self, inner: LLM | None, store: Store, settings: ModelSettings, endpoint: str) -> None:
        self._inner, self._store, self._settings, self._endpoint = inner, store, settings, endpoint
        self._under_way: dict[bytes, Future[Completion]] = {}
        self._lock = threading.Lock()

    def submit(self, request: Request) -> Future[Completion]:
        key = request_key(self._settings, self._endpoint, request)
        with self._lock:
            if (shared := self._under_way.get(key)) is not None:
                return shared
            known = self._store.answer(key)
            if known is not None and not known.keepable and self._inner is not None:
                known = None  # kept by an older version: an outcome, not an answer
            future: Future[Completion] = Future()
            if known is None and self._inner is not None:
                self._under_way[key] = future
        if known is not None:
            future.set_result(replace(known, cached=True))
        elif self._inner is None:
            future.set_exception(
                ModelError(f"replay: the cache {self._store.path} has no answer for this {request.purpose} call")
            )
        else:
            self._inner.submit(request).add_done_callback(lambda done: self._settle(key, done, future))
        return future

    def _settle(self, key: bytes, done: Future[Completion], future: Future[Completion]) -> None:
        def hand_on(error: BaseException | None) -> None:
            with self._lock:
                del self._under_way[key]
            if error is None:
                future.set_result(done.result())
            else:
                future.set_exception(error)

        def written(error: Exception | None) -> None:
            hand_on(None if error is None else ModelError(f"{self._store.path}: cannot be written ({error})"))

        if (error := done.exception()) is None and done.result().keepable:
            self._store.keep_answer(key, done.result(), written)
        else:
            hand_on(error)


class Fetching(Protocol):
    """An embedder that tells what each vector cost."""

    def fetch(self, texts: Sequence[str], *, query: bool = False) -> list[Embedded]: ...


class CachedEmbedder:
    """An embedding model behind the store, metered: known texts are not sent, but still count their tokens and seconds."""

    def __init__(
        self, inner: Fetching | None, store: Store, model: str, endpoint: str, query_differs: bool = False
    ) -> None:
        self._inner, self._store, self._model, self._endpoint = inner, store, model, endpoint
        self._query_differs = query_differs

    def embed(self, texts: Sequence[str], *, query: bool = False) -> np.ndarray:
        """Unit vectors, float32 [n, d].

        Raises:
            ModelError: a call failed for good, or a text is not in the cache during a replay.
        """
        with meter.service_time():
            side = query and self._query_differs
            keys = [self._key(text, side) for text in texts]
            found = self._store.vectors(list(dict.fromkeys(keys)))
            missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in found}
            if missing:
                found.update(self._fetched(missing, query))
        if (ledger := meter.current()) is not None and texts:
            ledger.add_embedding(
                sum(found[key].tokens for key in keys), sum(found[key].seconds for key in dict.fromkeys(keys))
            )
        return np.stack([found[key].vector for key in keys]) if texts else np.empty((0, 0), dtype=np.float32)

    def _fetched(self, missing: dict[bytes, str], query: bool) -> dict[bytes, Embedded]:
        if self._inner is None:
            raise ModelError(f"replay: the cache {self._store.path} lacks {len(missing)} vectors of {self._model}")
        fetched = dict(zip(missing, self._inner.fetch(list(missing.values()), query=query), strict=True))
        self._store.keep_vectors(list(fetched.items()))
        return fetched

    def _key(self, text: str, query: bool) -> bytes:
        parts: list[Any] = ["embedding", self._model, self._endpoint, query, text]
        return hashlib.sha256(canonical(parts)).digest()
