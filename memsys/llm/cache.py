"""Every answer on disk before it is handed on: one SQLite file from which a run replays to the same bytes with no key.

The key is what can change the output (model, messages, sampling, schema, replicate and retry number) and an endpoint label, so
that a mock never answers for the real model; never timeouts or folders. A cached answer keeps its tokens and its recorded seconds.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from memsys.jsons import canonical
from memsys.llm import meter
from memsys.llm.client import Embedded
from memsys.llm.futures import settle
from memsys.llm.pricing import ModelSettings
from memsys.llm.protocol import LLM, Completion, EndOfRun, ModelError, Request
from memsys.llm.store import Store, unwritable


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
        future: Future[Completion] = Future()
        with self._lock:
            if (shared := self._under_way.get(key)) is not None:
                return shared
            try:
                known = self._store.answer(key)
                if known is None and self._inner is None:
                    known = self._store.outcome(key)
            except ModelError as error:
                future.set_exception(error)
                return future
            if known is None and self._inner is not None:
                self._under_way[key] = future
        if known is not None:
            future.set_result(replace(known, cached=True))
        elif self._inner is None:
            future.set_exception(
                ModelError(f"replay: the cache {self._store.path} has no answer for this {request.purpose} call")
            )
        else:
            try:
                sent = self._inner.submit(request)
            except BaseException as error:
                self._hand_on(key, future, _raising(error))
                raise
            sent.add_done_callback(lambda done: self._settle(key, done, future))
        return future

    def _settle(self, key: bytes, done: Future[Completion], future: Future[Completion]) -> None:
        def written(error: Exception | None) -> None:
            ended = done.result if error is None else _raising(unwritable(self._store.path, error))
            self._hand_on(key, future, ended)

        try:
            self._store.keep_answer(key, done.result(), written)
        except BaseException as error:
            self._hand_on(key, future, _raising(error))

    def _hand_on(self, key: bytes, future: Future[Completion], ended: Callable[[], Completion]) -> None:
        with self._lock:
            self._under_way.pop(key, None)
        settle(future, ended)


def _raising(error: BaseException) -> Callable[[], Completion]:
    def ended() -> Completion:
        raise error

    return ended


class Fetching(Protocol):
    """An embedder that tells what each vector cost, or why there is none."""

    def fetch(self, texts: Sequence[str], *, query: bool = False) -> Sequence[Embedded | ModelError]: ...


class CachedEmbedder:
    """An embedding model behind the store, metered: known texts are not sent, but still count their tokens and seconds."""

    def __init__(
        self, inner: Fetching | None, store: Store, model: str, endpoint: str, query_differs: bool = False
    ) -> None:
        self._inner, self._store, self._model, self._endpoint = inner, store, model, endpoint
        self._query_differs = query_differs
        self._dimension = 0

    def embed(self, texts: Sequence[str], *, query: bool = False) -> np.ndarray:
        """Unit vectors, float32 [n, d].

        Raises:
            ModelError: a call failed for good, a vector is of another dimension than those before it, or a text is not in the
                cache during a replay.
        """
        with meter.service_time():
            side = query and self._query_differs
            keys = [self._key(text, side) for text in texts]
            found = self._store.vectors(list(dict.fromkeys(keys)))
            self._check(found.values(), "the cache holds")
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
        embedded = dict(zip(missing, self._inner.fetch(list(missing.values()), query=query), strict=True))
        fetched = {key: one for key, one in embedded.items() if isinstance(one, Embedded)}
        self._check(fetched.values(), "the server gave")
        self._store.keep_vectors(list(fetched.items()))  # also where others failed: they are paid for
        failures = [one for one in embedded.values() if isinstance(one, ModelError)]
        if failures:
            raise next((one for one in failures if isinstance(one, EndOfRun)), failures[0])
        return fetched

    def _check(self, vectors: Iterable[Embedded], whose: str) -> None:
        """Vectors of two lengths are of two models, whatever their name."""
        for one in vectors:
            self._dimension = self._dimension or len(one.vector)
            if len(one.vector) != self._dimension:
                raise ModelError(
                    f"{self._model}: {whose} a vector of {len(one.vector)} numbers, those before it have {self._dimension}: another "
                    "model answers under this name? give it another endpoint.label"
                )

    def _key(self, text: str, query: bool) -> bytes:
        parts: list[Any] = ["embedding", self._model, self._endpoint, query, text]
        return hashlib.sha256(canonical(parts)).digest()
