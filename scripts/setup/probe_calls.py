"""Calls that examine an endpoint itself: one attempt each, no cache, no retries; every reply or error is a result."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from memsys.llm import stopping
from memsys.llm.gateway.accounts import first_choice
from memsys.llm.llama import key_of
from memsys.llm.outcome import located, outcome_of
from memsys.llm.pricing import ModelSettings, Purse
from memsys.llm.replies import Usage, usage_of
from memsys.llm.secrets import redact, register
from memsys.llm.transport import LeanTransport, Unconnected, Untrusted, event_loop

PARALLEL = 16
"""Maximum number of calls in flight."""
MOST_BYTES = 32 << 20
"""Maximum bytes of a reply; a larger reply is refused while it is read."""
STOP_LOOK = 0.2
"""Seconds between two checks whether the user has requested a stop."""


@dataclass(frozen=True, slots=True)
class ProbeReply:
    status: int
    """HTTP status; 0 when no reply came."""
    value: Mapping[str, Any]
    """The decoded reply; empty when it was refused or violates the protocol."""
    error: str
    """The reason why there is no value, in the client's words."""
    seconds: float
    broke_off: bool = False
    """Whether a reply began and did not end."""
    refused: bool = False
    """Whether the call did not arrive or was rejected before the server worked on it, so that it costs nothing."""

    @property
    def ok(self) -> bool:
        return bool(self.value)

    @property
    def busy(self) -> bool:
        """Whether the server is reachable and may succeed on the next attempt."""
        garbled = self.status == 200 and not self.ok
        return self.broke_off or garbled or self.status in (408, 409, 425, 429) or self.status >= 500

    @property
    def message(self) -> Mapping[str, Any]:
        """The assistant's message of a chat completion; empty where a foreign server sends something else."""
        return first_choice(self.value)[1]

    @property
    def text(self) -> str:
        content = self.message.get("content")
        return content if isinstance(content, str) else ""

    @property
    def finish_reason(self) -> str:
        return str(first_choice(self.value)[0].get("finish_reason") or "")

    @property
    def usage(self) -> Usage:
        """The reply's token counts, as a run reads them."""
        return usage_of(self.value)


class EndpointProbe:
    """A connection to one endpoint; several calls may be in flight at once.

    Args:
        key: None takes it from the environment variable `key_env`.
        purse: the costs of the calls are booked there, at the prices of `settings`.

    A call raises `SpendingCapReached` when the purse has no room for it.
    """

    def __init__(
        self,
        base_url: str,
        key_env: str,
        *,
        timeout: float = 60.0,
        key: str | None = None,
        settings: ModelSettings | None = None,
        purse: Purse | None = None,
    ) -> None:
        self.base_url, self.key_env, self._timeout = base_url, key_env, timeout
        self._purse, self._settings = purse or Purse(), settings
        self.calls, self.seconds = 0, 0.0
        """Number of calls so far, and the sum of their seconds."""
        if key is None:
            register(key := key_of(base_url) or os.environ.get(key_env, ""), key_env)
        self.has_key = bool(key)
        self._transport = LeanTransport(base_url, key.strip() or "none", PARALLEL, timeout, MOST_BYTES)

    def __enter__(self) -> EndpointProbe:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._transport.close(), event_loop()).result(timeout=10)

    def chat(self, body: Mapping[str, Any]) -> ProbeReply:
        return self.together("/chat/completions", [body])[0]

    def embed(self, body: Mapping[str, Any]) -> ProbeReply:
        return self.together("/embeddings", [body])[0]

    def together(self, path: str, bodies: Sequence[Mapping[str, Any]]) -> list[ProbeReply]:
        """Send all calls at once and wait for all, or until the user requests a stop."""
        self.calls += len(bodies)
        under_way = [asyncio.run_coroutine_threadsafe(self._post(path, body), event_loop()) for body in bodies]
        try:
            while wait(under_way, timeout=STOP_LOOK).not_done:
                stopping.check()
        except stopping.Stopped:
            for call in under_way:
                call.cancel()
            raise
        heard = [call.result() for call in under_way]
        self.seconds += sum(reply.seconds for reply in heard)
        return heard

    def _worst(self, body: Mapping[str, Any]) -> float | None:
        if self._settings is None:
            return None
        limit = body.get("max_tokens", body.get("max_completion_tokens", 0))
        return self._settings.cost(len(repr(body).encode()), int(limit))

    def _price(self, heard: ProbeReply) -> float | None:
        """The cost of a call in US dollars; None, which counts as the highest, for a reply without counts or without an end."""
        if heard.refused or self._settings is None:
            return 0.0
        vectors = "data" in heard.value  # a reply of embeddings counts no completion
        return self._settings.cost_of(replace(heard.usage, completion=0) if vectors else heard.usage)

    async def _post(self, path: str, body: Mapping[str, Any]) -> ProbeReply:
        reserved = await self._purse.admitted(self._worst(body), (self.base_url, body.get("model")))
        heard = None
        try:
            heard = await self._sent(path, body)
            return heard
        finally:
            self._purse.settle(reserved, None if heard is None else self._price(heard))

    async def _sent(self, path: str, body: Mapping[str, Any]) -> ProbeReply:
        where, started = located(self.base_url, path), time.perf_counter()
        try:
            reply = await self._transport.post(where, body)
        except TimeoutError:
            return ProbeReply(0, {}, f"{where}: no reply within {self._timeout:.0f} s", time.perf_counter() - started)
        except OSError as error:
            why, unsent = redact(f"{where}: cannot connect ({error})"), isinstance(error, Unconnected | Untrusted)
            return ProbeReply(0, {}, why, time.perf_counter() - started, refused=unsent)
        except Exception as error:  # every error that prevents a complete reply is the result of this call
            why = redact(f"{where}: the reply broke off ({type(error).__name__}: {error})")
            return ProbeReply(0, {}, why, time.perf_counter() - started, broke_off=True)
        outcome = outcome_of(where, reply)
        seconds = time.perf_counter() - started
        return ProbeReply(reply.status, outcome.value or {}, outcome.why, seconds, refused=outcome.refused)
