"""A model and an embedder for tests: scripted replies, with a record of the requests, and vectors from a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from threading import Lock

import numpy as np

from memsys.llm.client import Embedded, HttpEmbedder
from memsys.llm.protocol import Completion, ModelError, Request
from memsys.tokens import count_tokens
from memsys.vectors import Embedder, normalised

Reply = str | Completion | Exception
Script = Reply | Sequence[Reply] | Callable[[Request], Reply]


def fetched(embedder: HttpEmbedder, texts: Sequence[str], *, query: bool = False) -> list[Embedded | ModelError]:
    """The vector or the error of each text, in their order."""
    batches = dict(embedder.fetch(texts, query=query))
    return [outcome for start in sorted(batches) for outcome in batches[start]]


class ScriptedLLM:
    """Replies by purpose: a text (the same every time), a sequence (one after the other), or a function of the request.

    The entry `*` serves every other purpose.

    Raises:
        AssertionError: on `submit`, for a purpose that has no entry, or whose sequence is used up.
    """

    def __init__(self, script: Mapping[str, Script] | Script) -> None:
        self._script: Mapping[str, Script] = script if isinstance(script, Mapping) else {"*": script}
        self._queues: dict[str, Iterator[Reply]] = {
            purpose: iter(replies)
            for purpose, replies in self._script.items()
            if isinstance(replies, Sequence) and not isinstance(replies, str)
        }
        self._lock = Lock()
        self.requests: list[Request] = []
        """Every request, in order of submission."""

    @property
    def purposes(self) -> list[str]:
        """The purpose of each request, in order of submission."""
        return [request.purpose for request in self.requests]

    def submit(self, request: Request) -> Future[Completion]:
        future: Future[Completion] = Future()
        with self._lock:
            self.requests.append(request)
            reply = self._reply(request)
        if isinstance(reply, Exception):
            future.set_exception(reply if isinstance(reply, ModelError) else ModelError(str(reply)))
        else:
            future.set_result(reply if isinstance(reply, Completion) else _completion(request, reply))
        return future

    def _reply(self, request: Request) -> Reply:
        purpose = request.purpose if request.purpose in self._script else "*"
        if purpose not in self._script:
            raise AssertionError(f"the script has no reply for {request.purpose}")
        if purpose in self._queues:
            try:
                return next(self._queues[purpose])
            except StopIteration:
                raise AssertionError(f"the script has no further reply for {request.purpose}") from None
        script = self._script[purpose]
        return script(request) if callable(script) else script  # type: ignore[return-value]


def _completion(request: Request, text: str) -> Completion:
    prompt_tokens = sum(count_tokens(content) for _, content in request.messages)
    words = text.split()
    logprobs = tuple(-0.1 for _ in words) if request.logprobs else None
    return Completion(text, prompt_tokens, max(1, len(words)), logprobs=logprobs, model="scripted", endpoint="scripted")


class TableEmbedder:
    """Looks vectors up in a table, for tests. Texts that are not in the table go to the embedder `other`.

    Raises:
        KeyError: on `embed`, for a text that is not in the table when there is no `other`.
    """

    def __init__(self, table: Mapping[str, Sequence[float]], other: Embedder | None = None) -> None:
        self._table = {text: normalised(np.asarray(vector, dtype=np.float32)) for text, vector in table.items()}
        self._other = other

    def embed(self, texts: Sequence[str], *, query: bool = False) -> np.ndarray:
        """Unit vectors, float32 [n, d]."""
        rows = [self._vector(text, query) for text in texts]
        return np.stack(rows) if rows else np.empty((0, len(next(iter(self._table.values()), ()))), dtype=np.float32)

    def _vector(self, text: str, query: bool) -> np.ndarray:
        if text not in self._table and self._other is not None:
            vector: np.ndarray = self._other.embed([text], query=query)[0]
            return vector
        return self._table[text]
