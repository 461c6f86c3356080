"""The driver's side of the channel: it owns the real services and answers the calls of all workers."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from typing import Any

from eval.executors.channel import Ask, EmbeddingBatch, RemoteEmbedder, RemoteLLM, Reply, Vectors
from eval.running.failures import described
from eval.running.run import Services
from memsys.embed import HashingEmbedder
from memsys.llm.meter import Metered, metering
from memsys.llm.offline.extractive import ExtractiveLLM
from memsys.llm.protocol import LLM, Completion
from memsys.llm.secrets import scrub
from memsys.vectors import Embedder

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
        return replace(
            services,
            llm=self._model(services.llm),
            reader=self._model(services.reader),
            probe=self._model(services.probe),
            embedder=self._embedder(services.embedder),
            gauges={},  # the driver alone knows how busy its endpoints are
            gateway=None,  # products are run by the driver (`scripts.assembly.steps`)
        )

    def answer(self, ask: Ask, send: Callable[[Reply], None]) -> None:
        """Execute a worker's call; `send` is called with the answer, from any thread."""
        if isinstance(ask.payload, EmbeddingBatch):
            self._embedding.submit(self._embed, ask, send)
            return
        try:
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
            return llm.around(self._model(llm.inner))
        return llm if isinstance(llm, ExtractiveLLM) else RemoteLLM(self._number(llm))

    def _embedder(self, embedder: Embedder) -> Embedder:
        return embedder if isinstance(embedder, HashingEmbedder) else RemoteEmbedder(self._number(embedder))

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
        with metering() as ledger:
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
