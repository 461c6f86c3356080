"""Models behind an OpenAI-compatible endpoint: `Client` for chat, `HttpEmbedder` for vectors; they may share an `Endpoint`. And
`LocalEmbedder`, for embedding models that run on this machine with sentence-transformers (extra `embeddings`).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from memsys.jsons import canonical, encoded
from memsys.llm import meter
from memsys.llm.endpoint import Call, Endpoint, Sent, Server
from memsys.llm.pricing import ModelSettings
from memsys.llm.protocol import Completion, ModelError, Request, failed, keeping, release
from memsys.llm.replies import LEAST_SHARE, LONG_PROMPT, Usage, check_window, completion_of
from memsys.llm.secrets import redact
from memsys.tokens import count_tokens, truncate
from memsys.vectors import normalised


def request_key(settings: ModelSettings, endpoint: str, request: Request) -> bytes:
    """The sha256 of everything that can change the completion: 32 bytes."""
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


def chat_body(settings: ModelSettings, request: Request) -> dict[str, Any]:
    """The JSON body of a chat completion."""
    body: dict[str, Any] = {
        "model": settings.model,
        "messages": [{"role": role, "content": content} for role, content in request.messages],
        settings.token_limit_field: settings.output_limit(request.max_tokens),
    }
    if settings.send_temperature:
        body["temperature"] = request.temperature
    if settings.reasoning_effort is not None:
        body["reasoning_effort"] = settings.reasoning_effort
    if request.schema is not None and settings.json_output == "schema":
        name = request.purpose.replace(".", "_")[:64]
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": name, "schema": dict(request.schema)}}
    elif request.schema is not None and settings.json_output == "object":
        body["response_format"] = {"type": "json_object"}
    if request.logprobs:
        body["logprobs"] = True
    return {**body, **settings.extra_body}


class Client:
    """A chat model at an endpoint."""

    def __init__(self, endpoint: Server, settings: ModelSettings) -> None:
        endpoint.serve(settings)
        self.endpoint, self.settings = endpoint, settings
        self._most_seen = 0  # prompt tokens; read and written in the event loop's thread alone

    def submit(self, request: Request) -> Future[Completion]:
        body, parse = chat_body(self.settings, request), partial(self._completion, request)
        name = request_key(self.settings, self.endpoint.label, request).hex() if self.endpoint.named else ""
        try:
            # A token is at least one byte of UTF-8, so the bytes are an upper bound on the prompt's tokens. A schema is part of it.
            most_tokens = sum(len(content.encode()) + 16 for _, content in request.messages)
            most_tokens += 0 if request.schema is None else len(encoded(request.schema))
            worst = self.settings.cost(most_tokens, self.settings.output_limit(request.max_tokens))
            call = Call("/chat/completions", body, worst, self.settings.cost_of, name)
            return self.endpoint.start(call, parse)
        except ModelError as error:
            return failed(error)

    def _completion(self, request: Request, sent: Sent) -> Completion:
        settings, where = self.settings, f"{self.settings.model} at {self.endpoint.base_url}"
        model = sent.value.get("model")
        completion = completion_of(
            sent.value,
            sent.usage,
            request,
            settings.output_limit(request.max_tokens),
            encoding=settings.encoding,
            seconds=sent.seconds,
            model=model if isinstance(model, str) else settings.model,
            endpoint=self.endpoint.label,
            attempts=sent.attempts,
        )
        check_window(request, sent.usage, most_seen=self._most_seen, encoding=settings.encoding, where=where)
        self._most_seen = max(self._most_seen, completion.prompt_tokens)
        return replace(completion, notes=(*completion.notes, "batch")) if self.endpoint.named else completion


@dataclass(frozen=True, slots=True)
class Embedded:
    """One vector with its share of its call's tokens and seconds."""

    vector: np.ndarray
    """float32 [d], unit length."""
    tokens: int
    seconds: float


Outcomes = tuple[int, Sequence[Embedded | ModelError]]
"""The number of a batch's first text, and the vector of each of its texts or the error that prevented it."""


class HttpEmbedder:
    """An embedding model at an endpoint. It truncates inputs that are longer than the model's limit, and counts them.

    Args:
        batch: number of texts per call.
        query_prefix: text put before each query, for models that need one.
        batches: the provider's batch API, for lists of at least `batch` texts; None = every call is live. Queries and short lists
            are always live, because a caller waits for each of them.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        settings: ModelSettings,
        *,
        batch: int = 128,
        query_prefix: str = "",
        batches: Server | None = None,
    ) -> None:
        endpoint.serve(settings)
        self._batches = batches
        self.endpoint, self.settings, self.batch, self.query_prefix = endpoint, settings, batch, query_prefix

    def fetch(self, texts: Sequence[str], *, query: bool = False) -> Iterator[Outcomes]:
        """Send all batches at once and yield each when it arrives; it keeps its place among those in flight until the next is asked for."""
        inputs = [self._prepared(text, query) for text in texts]
        server = self._batches if self._batches and not query and len(texts) >= self.batch else self.endpoint
        with keeping():
            calls = {
                self._send(server, inputs[start : start + self.batch]): start
                for start in range(0, len(inputs), self.batch)
            }
        try:
            # Not in order: a batch that waits for a free slot must not delay the others.
            for future in as_completed(calls):
                start = calls[future]
                yield start, self._embedded(inputs[start : start + self.batch], future)
                release(future)
        finally:
            for future in calls:
                release(future)

    def _prepared(self, text: str, query: bool) -> str:
        text = (self.query_prefix if query else "") + text
        limit = self.settings.max_input_tokens
        if limit is not None and len(text) > limit and count_tokens(text, self.settings.encoding) > limit:
            meter.note("embedding_truncated")
            text = truncate(text, limit, self.settings.encoding)
        return text or " "  # providers reject the empty string

    def _send(self, server: Server, batch: Sequence[str]) -> Future[Sent]:
        body = {"model": self.settings.model, "input": list(batch), **self.settings.extra_body}
        worst = self.settings.cost(sum(len(text.encode()) for text in batch), 0)
        try:
            name = hashlib.sha256(canonical(["/embeddings", self.endpoint.label, body])).hexdigest()
            return server.start(Call("/embeddings", body, worst, self._price, name), lambda sent: sent)
        except ModelError as error:
            return failed(error)

    def _price(self, usage: Usage) -> float | None:
        return None if usage.prompt is None else self.settings.cost(usage.prompt, 0)

    def _embedded(self, batch: Sequence[str], future: Future[Sent]) -> Sequence[Embedded | ModelError]:
        try:
            sent = future.result()
            matrix = unit_vectors(sent.value.get("data"), len(batch))
            counts = _shares(batch, sent.usage.prompt, self.settings.encoding)
        except ModelError as error:
            return [error] * len(batch)
        except Exception as error:
            why = redact(f"{self.endpoint.base_url}: no vectors of {self.settings.model}: {error}")
            return [ModelError(why)] * len(batch)
        return [Embedded(matrix[row], counts[row], sent.seconds / len(batch)) for row in range(len(batch))]


def unit_vectors(rows: Any, count: int) -> np.ndarray:
    """The vectors of a reply in the order of their `index`, scaled to unit length; float32 [count, d].

    Every vector is checked, because an undetected wrong one changes all scores that depend on it and stays in the cache.

    Raises:
        ValueError: the reply does not hold one vector per text, the vectors differ in length, or one is zero or not finite.
    """
    if not isinstance(rows, list) or len(rows) != count:
        raise ValueError(f"expected {count} vectors, found {len(rows) if isinstance(rows, list) else 'no list'}")
    by_index: dict[int, Any] = {}
    for row in rows:
        index = row.get("index") if isinstance(row, dict) else None
        if type(index) is not int or not 0 <= index < count or index in by_index:
            raise ValueError(f"expected a different index from 0 to {count - 1} for each vector, found {index!r}")
        by_index[index] = row.get("embedding")
    vectors = [by_index[index] for index in range(count)]
    sizes = {len(vector) if isinstance(vector, list) else 0 for vector in vectors}
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(f"expected vectors of one length, found lengths {sorted(sizes)[:5]}")
    if not all({*map(type, vector)} <= {int, float} for vector in vectors):  # NumPy would take true for 1
        raise ValueError("expected vectors of numbers, found other values in one")
    with np.errstate(all="ignore"):
        matrix = normalised(np.asarray(vectors, dtype=np.float64).astype(np.float32))
    if not np.all(np.abs(np.linalg.norm(matrix, axis=1) - 1.0) < 1e-3):
        raise ValueError(
            "expected vectors with a direction, found one that is zero or holds NaN, infinity, null or too large a number"
        )
    return matrix


def _shares(batch: Sequence[str], total: int | None, encoding: str) -> list[int]:
    """The number of tokens of each text: our count, scaled so that the sum equals the provider's, if it reports one."""
    counts = [count_tokens(text, encoding) for text in batch]
    if total is not None and total < LEAST_SHARE * sum(counts) > LEAST_SHARE * LONG_PROMPT:
        meter.note("embedding_truncated_by_server")  # many models have short context windows
    if total is None or not any(counts):
        return counts
    ends = [total * end // sum(counts) for end in accumulate(counts)]
    return [end - start for start, end in pairwise([0, *ends])]


class LocalEmbedder:
    """An embedding model run with sentence-transformers.

    Args:
        model: the name of a sentence-transformers model, or a folder that holds one.

    Raises:
        ImportError: sentence-transformers is not installed; the message names the command that installs it.
    """

    def __init__(self, model: str) -> None:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise ImportError(
                "this embedder needs sentence-transformers: pip install 'memsys-bench[embeddings]'"
            ) from error
        self._model = SentenceTransformer(model)

    def fetch(self, texts: Sequence[str], *, query: bool = False) -> Iterator[Outcomes]:
        """The unit vector of each text with its number of tokens and its share of the seconds, all as one batch."""
        started = time.perf_counter()
        vectors = np.asarray(self._model.encode(list(texts), normalize_embeddings=True), dtype=np.float32)
        seconds = (time.perf_counter() - started) / max(1, len(texts))
        yield 0, [Embedded(vector, count_tokens(text), seconds) for vector, text in zip(vectors, texts, strict=True)]
