"""Caching wrappers around a model and an embedder: each answer is committed to one SQLite file before its caller gets it.

From that file a run can be replayed to the same bytes without an API key. The cache key covers all that can change the output (model,
messages, sampling, schema, replicate and retry number) and an endpoint label, so that a mock never answers for the real model. It
does not cover timeouts or folders. A cached answer keeps its token counts and its recorded seconds.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from memsys.jsons import canonical
from memsys.llm import meter
from memsys.llm.client import Embedded, Outcomes, request_key
from memsys.llm.pricing import ModelSettings
from memsys.llm.protocol import LLM, Completion, EndOfRun, ModelError, Request, keeping, release, settle, waiting
from memsys.llm.store import CacheStore


class CachedLLM:
    """A model whose answers are cached. A request that is already in flight is not sent a second time.

    Args:
        inner: the model to call for requests that are not cached; None for a replay, in which such a request fails.
    """

    def __init__(self, inner: LLM | None, store: CacheStore, settings: ModelSettings, endpoint: str) -> None:
        self._inner, self._store, self._settings, self._endpoint = inner, store, settings, endpoint
        self._in_flight: dict[bytes, Future[Completion]] = {}
        self._lock = threading.Lock()

    def submit(self, request: Request) -> Future[Completion]:
        key = request_key(self._settings, self._endpoint, request)
        future: Future[Completion] = Future()
        with self._lock:
            if (shared := self._in_flight.get(key)) is not None:
                return shared
            try:
                stored = self._store.answer(key)
                if stored is None and self._inner is None:
                    stored = self._store.outcome(key)
                elif stored is None and self._store.check():
                    stored = self._store.answer(key)  # it may be one of those that were written just now
            except ModelError as error:
                future.set_exception(error)
                return future
            if stored is None and self._inner is not None:
                self._in_flight[key] = future
        if stored is not None:
            future.set_result(replace(stored, cached=True))
        elif self._inner is None:
            future.set_exception(
                ModelError(f"replay: the cache {self._store.path} has no answer for this {request.purpose} call")
            )
        else:
            try:
                with keeping():
                    inner_future = self._inner.submit(request)
            except BaseException as error:
                with self._lock:
                    del self._in_flight[key]
                future.set_exception(error)
                raise
            inner_future.add_done_callback(lambda answered: self._on_answer(key, answered, future))
        return future

    def _on_answer(self, key: bytes, answered: Future[Completion], future: Future[Completion]) -> None:
        """Commit an answer, then end the call with what the file keeps, or with the error."""
        try:
            written = self._store.keep_answer(key, answered.result())
        except BaseException as error:
            written = Future()
            written.set_exception(error)
        written.add_done_callback(lambda written: self._end(key, answered, written, future))

    def _end(self, key: bytes, answered: Future[Completion], written: Future[None], future: Future[Completion]) -> None:
        def kept() -> Completion:
            written.result()
            return self._store.first(key, answered.result())

        release(answered)
        with self._lock:
            self._in_flight.pop(key, None)
        settle(future, kept)


class Fetching(Protocol):
    """An embedder that returns each vector with its cost, or the error that prevented it."""

    def fetch(self, texts: Sequence[str], *, query: bool = False) -> Iterable[Outcomes]:
        """Embed the texts, in batches that come when they are ready."""


class NoVectors:
    """In place of a cache: it keeps no vector and finds none."""

    path = "(none)"

    def check(self) -> bool:
        return False

    def vectors(self, keys: Sequence[bytes]) -> dict[bytes, Embedded]:
        return {}

    def keep_vectors(self, rows: Sequence[tuple[bytes, Embedded]]) -> dict[bytes, Embedded]:
        return dict(rows)


class CachedEmbedder:
    """An embedding model whose vectors are cached and metered. Cached texts are not sent, but their tokens and seconds still count.

    Args:
        inner: None for a replay, in which a text that is not cached is an error.
    """

    def __init__(
        self,
        inner: Fetching | None,
        store: CacheStore | NoVectors,
        model: str,
        endpoint: str,
        query_differs: bool = False,
    ) -> None:
        self._inner, self._store, self._model, self._endpoint = inner, store, model, endpoint
        self._query_differs = query_differs
        self._dimension = 0
        self._in_flight: dict[bytes, Future[Embedded]] = {}
        self._lock = threading.Lock()

    def embed(self, texts: Sequence[str], *, query: bool = False) -> np.ndarray:
        """Unit vectors, float32 [n, d].

        Raises:
            ModelError: a call failed for good, a vector's dimension differs from the earlier ones', or a text is not in the cache
                during a replay.
        """
        with meter.embedding(self._model) as told:
            with meter.service_time():
                as_query = query and self._query_differs
                keys = [self._key(text, as_query) for text in texts]
                vectors = self._stored(keys)
                self._check_dimension(vectors.values(), "the cache holds")
                missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in vectors}
                if missing:
                    vectors.update(self._fetch(missing, query))
            if (ledger := meter.current()) is not None and texts:
                tokens = sum(vectors[key].tokens for key in keys)
                ledger.add_embedding(tokens, sum(vectors[key].seconds for key in dict.fromkeys(keys)))
                if batched := sum(vectors[key].tokens for key in keys if not vectors[key].seconds):
                    meter.note("batch.embedding_tokens", batched)  # a live call takes time
                told(tokens)
            return np.stack([vectors[key].vector for key in keys]) if texts else np.empty((0, 0), dtype=np.float32)

    def _fetch(self, missing: dict[bytes, str], query: bool) -> dict[bytes, Embedded]:
        """Embed the missing texts and commit their vectors. A text that is being embedded already is not sent a second time.

        Raises:
            ModelError: a text has no vector; an `EndOfRun` is raised before other errors.
        """
        if self._inner is None:
            raise ModelError(f"replay: the cache {self._store.path} lacks {len(missing)} vectors of {self._model}")
        self._store.check()
        with self._lock:
            shared = {key: self._in_flight[key] for key in missing if key in self._in_flight}
            own: dict[bytes, Future[Embedded]] = {key: Future() for key in missing if key not in shared}
            self._in_flight.update(own)
        try:
            if own:
                with waiting():
                    self._fetch_own(self._inner, {key: missing[key] for key in own}, own, query)
        finally:
            with self._lock:
                for key in own:
                    del self._in_flight[key]
        with waiting():
            return {key: future.result() for key, future in (own | shared).items()}

    def _fetch_own(
        self, inner: Fetching, texts: dict[bytes, str], futures: dict[bytes, Future[Embedded]], query: bool
    ) -> None:
        """Embed texts that no other thread is embedding; their futures end with the vector or the error."""
        failures: list[tuple[int, ModelError]] = []
        try:
            # The thread that embedded a text may have finished after the caller's lookup and before its lock: then the vector is committed.
            for key, vector in self._stored(texts).items():
                futures[key].set_result(vector)
            keys = [key for key in texts if not futures[key].done()]
            for start, outcomes in inner.fetch([texts[key] for key in keys], query=query) if keys else ():
                # Also when other texts failed, because these vectors are paid for.
                came = {keys[start + at]: each for at, each in enumerate(outcomes) if isinstance(each, Embedded)}
                self._check_dimension(came.values(), "the server gave")
                for key, vector in self._store.keep_vectors(list(came.items())).items():
                    futures[key].set_result(vector)
                failures += [(start, each) for each in outcomes if isinstance(each, ModelError)]
            if failures:
                raise min(failures, key=lambda failure: (not isinstance(failure[1], EndOfRun), failure[0]))[1]
        except BaseException as error:  # a thread that waits for one of these texts must not wait for ever
            for future in futures.values():
                if not future.done():
                    future.set_exception(error)
            raise

    def _stored(self, keys: Iterable[bytes]) -> dict[bytes, Embedded]:
        return self._store.vectors(list(dict.fromkeys(keys)))

    def _check_dimension(self, vectors: Iterable[Embedded], origin: str) -> None:
        """Raise a ModelError for a vector of another dimension: two dimensions mean two models under one name."""
        for embedded in vectors:
            dimension = len(embedded.vector)
            self._dimension = self._dimension or dimension
            if dimension != self._dimension:
                raise ModelError(
                    f"{self._model}: {origin} a vector of {dimension} numbers, those before it have {self._dimension}. "
                    "If another model answers under this name now, set another endpoint.label for it; if the earlier vectors were a fault "
                    f"of the server, `python -m scripts cache repair --drop-vectors {self._dimension}` removes them"
                )

    def _key(self, text: str, query: bool) -> bytes:
        parts: list[Any] = ["embedding", self._model, self._endpoint, query, text]
        return hashlib.sha256(canonical(parts)).digest()
