"""A worker's services: stand-ins that send each call to the driver, which owns cache, endpoints, limits and spending cap.

So one process writes the cache, the limits hold over all workers, and an answer is committed before a worker gets it: a worker that
dies loses nothing that was paid for. The meter stays in the worker, around the stand-ins. Offline engines need no channel.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from memsys.llm import meter
from memsys.llm.protocol import Completion, EndOfRun, Request, settle, waiting


@dataclass(frozen=True, slots=True)
class EmbeddingBatch:
    """Texts to embed."""

    texts: tuple[str, ...]
    query: bool


@dataclass(frozen=True, slots=True)
class Vectors:
    """The vectors of texts, and the counts for the meter."""

    matrix: np.ndarray
    """float32 [n, d]."""
    calls: int
    tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Ask:
    """One call of a worker."""

    number: int
    service: int
    payload: Request | EmbeddingBatch


@dataclass(frozen=True, slots=True)
class Reply:
    """The driver's answer to a call: a value or an error."""

    number: int
    value: Completion | Vectors | None = None
    error: BaseException | None = None
    notes: Mapping[str, int] = field(default_factory=dict)
    """Events that the service counted (`memsys.llm.meter.note`)."""

    def result(self) -> Any:
        """Return the value, or raise the error."""
        if self.error is not None:
            raise self.error
        return self.value


class DriverGone(EndOfRun):
    """The process that owns the services has ended."""


class CallClient:
    """A worker's connection to the driver; calls and answers are messages of it."""

    def __init__(self, send: Callable[[Ask], None]) -> None:
        self._send = send
        self._numbers = itertools.count()
        self._open: dict[int, Future[Reply]] = {}
        self._lock = threading.Lock()

    def ask(self, service: int, payload: Request | EmbeddingBatch) -> Future[Reply]:
        """Send a call; the future ends with the driver's answer."""
        future: Future[Reply] = Future()
        number = next(self._numbers)
        with self._lock:
            self._open[number] = future
        self._send(Ask(number, service, payload))
        return future

    def arrived(self, reply: Reply) -> None:
        """Hand an answer to the caller that waits for it."""
        with self._lock:
            future = self._open.pop(reply.number)
        future.set_result(reply)


_post: CallClient | None = None


def open_post(post: CallClient) -> None:
    """Use this channel to the driver for all stand-ins of this process."""
    global _post
    _post = post


def _ask(service: int, payload: Request | EmbeddingBatch) -> Future[Reply]:
    if _post is None:
        raise DriverGone("this process has no connection to the process that owns the models")
    return _post.ask(service, payload)


@dataclass(frozen=True, slots=True)
class RemoteLLM:
    """A model of the driver."""

    service: int

    def submit(self, request: Request) -> Future[Completion]:
        """Send the request; the future has the result or error of the model's own future."""
        answer: Future[Completion] = Future()
        _ask(self.service, request).add_done_callback(lambda done: settle(answer, lambda: done.result().result()))
        return answer


@dataclass(frozen=True, slots=True)
class RemoteEmbedder:
    """An embedder of the driver."""

    service: int

    def embed(self, texts: Sequence[str], *, query: bool = False) -> np.ndarray:
        """Unit vectors, float32 [n, d]; they are metered like those of the embedder itself.

        Raises:
            ModelError: what the embedder raises.
        """
        with meter.service_time():
            asked = _ask(self.service, EmbeddingBatch(tuple(texts), query))
            with waiting():
                reply = asked.result()
        for event, amount in reply.notes.items():
            meter.note(event, amount)
        vectors: Vectors = reply.result()
        if vectors.calls and (ledger := meter.current()) is not None:
            ledger.add_embedding(vectors.tokens, vectors.seconds)
        return vectors.matrix
