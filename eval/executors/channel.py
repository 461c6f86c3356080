"""A worker's services: stand-ins that send each call to the driver, which owns cache, endpoints, limits and spending cap.

So one process writes the cache, the limits hold over all workers, and an answer is committed before a worker gets it: a worker that
dies loses nothing that was paid for. The meter stays in the worker, around the stand-ins. Offline engines need no channel.
`ServiceHost` is the driver's side: it has the real services and answers the calls of all workers.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np

from eval.running.failures import described
from eval.running.run import Services
from memsys.embed import HashingEmbedder
from memsys.llm import meter
from memsys.llm.limits import urgency, urgent
from memsys.llm.meter import Metered, metering
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.llm.protocol import LLM, Completion, EndOfRun, Request, settle, waiting
from memsys.llm.secrets import scrub


@dataclass(frozen=True, slots=True)
class EmbeddingBatch:
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
    urgency: float
    """Of calls that wait for the same endpoint, the most urgent is sent first, whichever worker made it."""


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


class CallClient:
    """A worker's connection to the driver; calls and answers are messages of it."""

    def __init__(self, send: Callable[[Ask], None]) -> None:
        self._send, self._numbers, self._lock = send, itertools.count(), threading.Lock()
        self._open: dict[int, Future[Reply]] = {}

    def ask(self, service: int, payload: Request | EmbeddingBatch) -> Future[Reply]:
        """Send a call; the future ends with the driver's answer."""
        future: Future[Reply] = Future()
        number = next(self._numbers)
        with self._lock:
            self._open[number] = future
        self._send(Ask(number, service, payload, urgency()))
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
        raise EndOfRun("this process has no connection to the process that owns the models")
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


# --- the driver's side ------------------------------------------------------------------------------------------------


EMBEDDING_THREADS = 16
"""Maximum number of the workers' embedding calls in flight; each sends its batches concurrently."""


def runs_anywhere(services: Services) -> bool:
    """Whether all engines are offline, so that a worker needs no channel."""
    models = (services.llm, services.reader, services.probe)
    engines = [llm.inner if isinstance(llm, Metered) else llm for llm in models]
    return isinstance(services.embedder, HashingEmbedder) and all(isinstance(llm, ExtractiveLLM) for llm in engines)


class WorkerFailure(RuntimeError):
    """An error that could not be sent as it was, with its type and message."""


class ServiceHost:
    """The real services by number."""

    def __init__(self) -> None:
        self._services: list[Any] = []
        self._embedding = ThreadPoolExecutor(EMBEDDING_THREADS, "embedding")

    def stand_ins(self, services: Services) -> Services:
        """The services for a worker: offline engines themselves, stand-ins for all others."""
        embedder = services.embedder
        return replace(
            services,
            llm=self._model(services.llm),
            reader=self._model(services.reader),
            probe=self._model(services.probe),
            embedder=embedder if isinstance(embedder, HashingEmbedder) else RemoteEmbedder(self._number(embedder)),
            gauges={},  # the driver alone knows how busy its endpoints are
            gateway=None,  # products are run by the driver (`scripts.assembly.steps`)
        )

    def answer(self, ask: Ask, send: Callable[[Reply], None]) -> None:
        """Execute a worker's call; `send` is called with the answer, from any thread."""
        if isinstance(ask.payload, EmbeddingBatch):
            self._embedding.submit(self._embed, ask, send)
            return
        try:
            with urgent(ask.urgency):
                call: Future[Completion] = self._services[ask.service].submit(ask.payload)
        except BaseException as error:  # sent to the worker, whose caller raises it
            send(Reply(ask.number, error=sendable(error)))
        else:
            call.add_done_callback(lambda done: send(_reply(ask, done)))

    def close(self) -> None:
        """Stop the threads that embed."""
        self._embedding.shutdown(wait=False, cancel_futures=True)

    def _model(self, llm: LLM) -> LLM:
        if isinstance(llm, Metered):
            return replace(llm, inner=self._model(llm.inner))
        return llm if isinstance(llm, ExtractiveLLM) else RemoteLLM(self._number(llm))

    def _number(self, service: Any) -> int:
        """The number of a service; the same for the same object."""
        for number, known in enumerate(self._services):
            if known is service:
                return number
        self._services.append(service)
        return len(self._services) - 1

    def _embed(self, ask: Ask, send: Callable[[Reply], None]) -> None:
        assert isinstance(ask.payload, EmbeddingBatch)
        value, failure = None, None
        with metering() as ledger, urgent(ask.urgency):
            try:
                matrix = self._services[ask.service].embed(ask.payload.texts, query=ask.payload.query)
                value = Vectors(matrix, ledger.embedding_calls, ledger.embedding_tokens, ledger.seconds)
            except BaseException as error:  # sent to the worker, whose caller raises it
                failure = sendable(error)
        send(Reply(ask.number, value, failure, dict(ledger.notes)))


def _reply(ask: Ask, done: Future[Completion]) -> Reply:
    error = done.exception()
    return Reply(ask.number, done.result()) if error is None else Reply(ask.number, error=sendable(error))


def sendable(error: BaseException) -> BaseException:
    """The error; one that cannot be sent becomes a `WorkerFailure` with its type and message."""
    scrub(error)
    try:
        copy: BaseException = ForkingPickler.loads(ForkingPickler.dumps(error))
        if type(copy) is not type(error) or str(copy) != str(error):
            raise TypeError("it changes when it is sent")
    except Exception:
        return WorkerFailure(described(error))
    return error
