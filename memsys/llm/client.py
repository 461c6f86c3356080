"""The client for any OpenAI-compatible endpoint: one event loop, one in-flight limit per endpoint, retries, a spending cap.

`Endpoint` owns the connection; `Client` (chat) and `HttpEmbedder` share it. Nothing here blocks a thread per call: `submit` hands
a coroutine to the loop and returns a future; `transport.py` holds the loop and the two ways to send.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import random
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, TypeVar

import numpy as np

from memsys.jsons import decoded
from memsys.llm import meter
from memsys.llm.pricing import ModelSettings, Purse
from memsys.llm.protocol import Completion, ContextOverflow, ModelError, Request
from memsys.llm.replies import LEAST_SHARE, LONG_PROMPT, check_window, completion_of, is_overflow, usage_of
from memsys.llm.transport import TRANSPORTS, Reply, Transport, event_loop
from memsys.tokens import count_tokens, truncate
from memsys.vectors import normalised

RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})


Price = Callable[[Mapping[str, Any]], float | None]
"""A decoded reply to dollars; None where it does not tell or the price is unknown."""

Sent = tuple[Any, float, int]
"""A decoded reply, the seconds of the attempt that succeeded, and the number of attempts."""

Read = TypeVar("Read")
Reading = Callable[[Any, float, int], Read]
"""What is made of them."""


async def _carry(future: Future[Read], sending: Coroutine[Any, Any, Sent], read: Reading[Read]) -> None:
    try:
        found = read(*await sending)
    except BaseException as error:
        future.set_exception(error)
        if not isinstance(error, Exception):
            raise
    else:
        future.set_result(found)


class Endpoint:
    """One server: its connections, its in-flight limit, its retry policy.

    Args:
        base_url: ending in `/v1`, as OpenAI-compatible servers write it.
        label: enters the cache key, so that another server's answers are never taken for this one's.
        key_env: environment variable that holds the key; local servers may need none.
        in_flight: calls under way at once, over all models.
        retries: further attempts after a failure worth retrying.
        backoff: seconds before the first retry; doubles each time up to `max_backoff`, with jitter.
    """

    def __init__(
        self,
        base_url: str,
        *,
        label: str = "",
        key_env: str = "OPENAI_API_KEY",
        in_flight: int = 64,
        timeout: float = 120.0,
        retries: int = 6,
        backoff: float = 0.5,
        max_backoff: float = 30.0,
        transport: str = "lean",
        purse: Purse | None = None,
    ) -> None:
        self.base_url, self.label, self.key_env = base_url, label or base_url, key_env
        self.retries, self.backoff, self.max_backoff = retries, backoff, max_backoff
        self.purse = purse or Purse()
        self._timeout, self._in_flight = timeout, in_flight
        if transport not in TRANSPORTS:
            raise ValueError(f"transport must be one of {', '.join(TRANSPORTS)}, found {transport!r}")
        self._transport_name = transport
        self._jitter = random.Random(base_url)
        self._lock = threading.Lock()
        self._transport: Transport | None = None
        self._gate = asyncio.Semaphore(in_flight)
        self._under_way: set[asyncio.Task[None]] = set()

    def start(
        self, path: str, body: Mapping[str, Any], worst: float | None, price: Price, read: Reading[Read]
    ) -> Future[Read]:
        """Send a body, with retries: a future of what `read` makes of the reply.

        `price` turns the decoded reply into dollars. The future raises `ModelError`, or what `read` raises.
        """
        if self._transport is None:
            self._connect()
        future: Future[Read] = Future()
        event_loop().call_soon_threadsafe(self._begin, future, self._send(path, body, worst, price), read)
        return future

    def _begin(self, future: Future[Read], sending: Coroutine[Any, Any, Sent], read: Reading[Read]) -> None:
        # One future from end to end: asyncio.run_coroutine_threadsafe chains two more behind it, at a twentieth of a call's CPU.
        task = event_loop().create_task(_carry(future, sending, read))
        self._under_way.add(task)  # the loop alone keeps no task alive
        task.add_done_callback(self._under_way.discard)

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            transport, self._transport = self._transport, None
        if transport is not None:
            atexit.unregister(self.close)
            asyncio.run_coroutine_threadsafe(transport.close(), event_loop()).result(timeout=10)

    def _connect(self) -> None:
        with self._lock:
            if self._transport is None:
                key = os.environ.get(self.key_env, "")
                if not key and not _is_local(self.base_url):
                    raise ModelError(f"no key for {self.base_url}: set the environment variable {self.key_env}")
                make = TRANSPORTS[self._transport_name]
                self._transport = make(self.base_url, key or "none", self._in_flight, self._timeout)
                atexit.register(self.close)

    async def _send(self, path: str, body: Mapping[str, Any], worst: float | None, price: Price) -> Sent:
        attempt, spent_seconds = 0, 0.0
        async with self._gate:
            while True:
                attempt += 1
                reserved = self.purse.reserve(worst)
                started = time.perf_counter()
                outcome = await self._attempt(path, body)
                seconds = time.perf_counter() - started
                spent_seconds += seconds
                if outcome.value is not None:
                    self.purse.settle(reserved, price(outcome.value))
                    return outcome.value, seconds, attempt
                # A refused call costs nothing; one that was cut off may have been billed in full.
                self.purse.settle(reserved, 0.0 if outcome.refused else None)
                limit = min(self.retries, 2) if outcome.unreachable else self.retries
                if not outcome.retry or attempt > limit:
                    raise outcome.error(redact(outcome.why), attempts=attempt, seconds=spent_seconds)
                await asyncio.sleep(self._pause(attempt, outcome.retry_after))

    async def _attempt(self, path: str, body: Mapping[str, Any]) -> _Outcome:
        assert self._transport is not None
        where = self.base_url + path
        try:
            reply = await self._transport.post(path, body)
        except TimeoutError:
            return _Outcome(why=f"{where}: no reply within {self._timeout} s", retry=True)
        except ConnectionRefusedError as error:
            return _Outcome(
                why=f"{where}: cannot connect ({error}); is the server running?",
                retry=True,
                refused=True,
                unreachable=True,
            )
        except (OSError, asyncio.IncompleteReadError) as error:
            return _Outcome(why=f"{where}: connection failed ({error})", retry=True, unreachable=_refused(error))
        except Exception as error:
            # aiohttp's and httpx's own errors for replies that broke off; anything else is a bug and is raised.
            if type(error).__module__.split(".")[0] not in ("aiohttp", "httpx", "httpcore", "h11"):
                raise
            return _Outcome(why=f"{where}: reply broke off ({type(error).__name__}: {error})", retry=True)
        return _read(where, reply)

    def _pause(self, attempt: int, retry_after: float) -> float:
        backoff: float = min(self.max_backoff, self.backoff * 2.0 ** (attempt - 1))
        return max(retry_after, float(backoff * self._jitter.uniform(0.5, 1.0)))


@dataclass(frozen=True, slots=True)
class _Outcome:
    value: Any = None
    why: str = ""
    retry: bool = False
    refused: bool = False
    """The server said no before working on it."""
    unreachable: bool = False
    retry_after: float = 0.0
    error: type[ModelError] = ModelError
    """What a failure for good is raised as."""


def _refused(error: BaseException) -> bool:
    return "refused" in str(error).lower() or "Cannot connect" in str(error)


def _read(where: str, reply: Reply) -> _Outcome:
    if reply.status >= 400:
        said = reply.body[:500].decode(errors="replace")
        why = f"{where}: HTTP {reply.status}: {said}"
        if is_overflow(reply.status, reply.body):
            return _Outcome(why=why, refused=True, error=ContextOverflow)
        return _Outcome(why=why, retry=reply.status in RETRIED, refused=True, retry_after=_seconds(reply.retry_after))
    try:
        value = decoded(reply.body)
    except ValueError:
        return _Outcome(why=f"{where}: the reply is not JSON: {reply.body[:200]!r}", retry=True)
    if not isinstance(value, dict) or not (value.get("choices") or value.get("data")):
        return _Outcome(why=f"{where}: the reply holds neither choices nor data: {str(value)[:200]}", retry=True)
    return _Outcome(value=value)


def _seconds(retry_after: str) -> float:
    """Retry-After is a number of seconds or a date."""
    if not retry_after:
        return 0.0
    try:
        return min(300.0, max(0.0, float(retry_after)))
    except ValueError:
        pass
    try:
        return min(300.0, max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time()))
    except ValueError:
        return 0.0


def _is_local(url: str) -> bool:
    host = url.split("//")[-1].split("/")[0]
    return host.rsplit(":", 1)[0] in ("127.0.0.1", "localhost", "[::1]")


def redact(text: str) -> str:
    """The text without the value of any environment variable that looks like a secret."""
    for name, value in os.environ.items():
        if len(value) >= 8 and any(word in name.upper() for word in ("KEY", "TOKEN", "SECRET", "PASSWORD")):
            text = text.replace(value, f"<{name}>")
    return text


def chat_body(settings: ModelSettings, request: Request) -> dict[str, Any]:
    """The JSON body of a chat completion, the same for both transports."""
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

    def __init__(self, endpoint: Endpoint, settings: ModelSettings) -> None:
        self.endpoint, self.settings = endpoint, settings
        self._most_seen = 0  # prompt tokens; read and written in the event loop's thread alone

    def submit(self, request: Request) -> Future[Completion]:
        body, read = chat_body(self.settings, request), partial(self._completion, request)
        try:
            return self.endpoint.start("/chat/completions", body, self._worst(request), self._price, read)
        except ModelError as error:
            refused: Future[Completion] = Future()
            refused.set_exception(error)
            return refused

    def _completion(self, request: Request, value: Mapping[str, Any], seconds: float, attempts: int) -> Completion:
        try:
            return self._told(request, value, seconds, attempts)
        except (KeyError, TypeError, IndexError, ValueError, AttributeError) as odd:
            why = f"{self.endpoint.base_url}: unexpected reply ({odd!r})"
            raise ModelError(why, attempts=attempts, seconds=seconds) from odd

    def _told(self, request: Request, value: Mapping[str, Any], seconds: float, attempts: int) -> Completion:
        settings, where = self.settings, f"{self.settings.model} at {self.endpoint.base_url}"
        model = value.get("model")
        completion = completion_of(
            value,
            request,
            settings.output_limit(request.max_tokens),
            encoding=settings.encoding,
            seconds=seconds,
            model=model if isinstance(model, str) else settings.model,
            endpoint=self.endpoint.label,
            attempts=attempts,
        )
        check_window(request, completion, most_seen=self._most_seen, encoding=settings.encoding, where=where)
        self._most_seen = max(self._most_seen, completion.prompt_tokens)
        return completion

    def _worst(self, request: Request) -> float | None:
        # A token is at least one byte of UTF-8, so bytes bound the prompt from above.
        most = sum(len(content.encode()) + 16 for _, content in request.messages)
        return self.settings.cost(most, self.settings.output_limit(request.max_tokens))

    def _price(self, value: Mapping[str, Any]) -> float | None:
        usage = usage_of(value)
        if usage.prompt is None or usage.completion is None:
            return None
        return self.settings.cost(usage.prompt, usage.completion, usage.cached or 0)


@dataclass(frozen=True, slots=True)
class Embedded:
    """One vector as the provider returned it, with its share of tokens and seconds."""

    vector: np.ndarray
    tokens: int
    seconds: float


class HttpEmbedder:
    """An embedding model at an endpoint; inputs longer than the model takes are truncated, and counted.

    Args:
        batch: texts per call.
        query_prefix: put before queries, for models that want it.
    """

    def __init__(
        self, endpoint: Endpoint, settings: ModelSettings, *, batch: int = 128, query_prefix: str = ""
    ) -> None:
        self.endpoint, self.settings, self.batch, self.query_prefix = endpoint, settings, batch, query_prefix

    def fetch(self, texts: Sequence[str], *, query: bool = False) -> list[Embedded]:
        """Embed texts, in batches sent together.

        Raises:
            ModelError: a call failed for good.
        """
        inputs = [self._prepared(text, query) for text in texts]
        batches = [inputs[start : start + self.batch] for start in range(0, len(inputs), self.batch)]
        futures = [self._send(batch) for batch in batches]
        return [one for batch, future in zip(batches, futures, strict=True) for one in self._vectors(batch, future)]

    def _prepared(self, text: str, query: bool) -> str:
        text = (self.query_prefix if query else "") + text
        limit = self.settings.max_input_tokens
        if limit is not None and len(text) > limit and count_tokens(text, self.settings.encoding) > limit:
            meter.note("embedding_truncated")
            text = truncate(text, limit, self.settings.encoding)
        return text or " "  # providers refuse the empty string

    def _send(self, batch: Sequence[str]) -> Future[Sent]:
        body = {"model": self.settings.model, "input": list(batch), **self.settings.extra_body}
        worst = self.settings.cost(sum(len(text.encode()) for text in batch), 0)
        return self.endpoint.start("/embeddings", body, worst, self._price, lambda *sent: sent)

    def _price(self, value: Mapping[str, Any]) -> float | None:
        tokens = usage_of(value).prompt
        return None if tokens is None else self.settings.cost(tokens, 0)

    def _vectors(self, batch: Sequence[str], future: Future[Sent]) -> list[Embedded]:
        value, seconds, _ = future.result()
        rows = sorted(value["data"], key=lambda row: int(row["index"]))
        if len(rows) != len(batch):
            raise ModelError(f"{self.endpoint.base_url}: {len(rows)} vectors for {len(batch)} texts")
        matrix = normalised(np.asarray([row["embedding"] for row in rows], dtype=np.float32))
        counts = _shares(batch, usage_of(value).prompt, self.settings.encoding)
        return [Embedded(matrix[row], counts[row], seconds / len(batch)) for row in range(len(batch))]


def _shares(batch: Sequence[str], total: int | None, encoding: str) -> list[int]:
    """Tokens of each text: our count, corrected so that they add up to the provider's where it gives one."""
    counts = [count_tokens(text, encoding) for text in batch]
    if total is not None and total < LEAST_SHARE * sum(counts) > LEAST_SHARE * LONG_PROMPT:
        meter.note("embedding_truncated_by_server")  # many models have short windows: counted, as our own truncation is
    if total is not None and counts:
        counts[-1] += total - sum(counts)
    return counts
