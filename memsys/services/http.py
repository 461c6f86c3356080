"""Any HTTP service as a memory, described in YAML; decisions and deviations are in `memsys.services.memory`.

A call is `{method: POST, path: /memories, query: {}, body: {}}`, with placeholders (`{namespace}`, `{text}`, `{k}` …, all in
`memsys.services.memory.KNOWN`). In addition, `ok: {path, equals}` says when a reply is a success, `id` is the path of the id in an add's
reply, and `repeatable: true` permits a second attempt when the service may have worked on the first. Searches may be repeated, adds not.

Queue, limits, Retry-After, retries, outages, `network=false` and the removal of keys are those of `memsys.llm.endpoint`. One difference: a
call that may not be repeated (most adds) is sent again only if the service did not begin to work on it; otherwise it might store twice.

The key comes from the environment variable `key_env` and is written as `{key}` in `headers`. A key in the settings, or a value that looks
like one, is refused, because settings are written to run.json and to reports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import numpy as np

from memsys.interface import Positive
from memsys.jsons import encoded, received
from memsys.llm.endpoint import Call, Endpoint, EndpointLimits
from memsys.llm.outcome import Outcome, excerpt, outcome_of
from memsys.llm.protocol import EndOfRun, ModelError
from memsys.llm.secrets import redact_bytes
from memsys.llm.transport import HttpReply, LeanTransport, event_loop
from memsys.services.leftovers import Namespaces, namespaces_at
from memsys.services.memory import LAST_WORDS, ServiceMemory, ServiceSettings
from memsys.services.templates import filled, filled_path, mapping

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    import aiohttp


Headers = tuple[tuple[str, str], ...]
"""Headers of a service, in which `{key}` is replaced by the key."""


class ServiceEndpoint(Endpoint):
    """One service with its connections and limits.

    A call is `method`, `path`, `query`, `body` (sent as JSON; None for a request without a body) and `repeatable`: whether it may be sent
    twice without harm.
    """

    def __init__(self, base_url: str, key_env: str, headers: Headers, limits: EndpointLimits) -> None:
        super().__init__(base_url, limits, key_env=key_env)
        self.headers = headers
        self.places.rates.allow("", limits.rpm, None)

    def ask(self, call: Mapping[str, Any], *, patient: bool = True) -> Any:
        """Send a call and return the decoded reply; None for an empty one.

        Args:
            patient: as in `Call`.

        Raises:
            ModelError: the call failed for good; `EndOfRun` if no further call can succeed.
        """
        sent = Call(call["path"], call, 0.0, lambda _: 0.0, patient=patient)
        return self.start(sent, lambda sent: sent.value["reply"]).result()

    def ask_once(self, call: Mapping[str, Any]) -> Any:
        """Send a call although a stop was requested: without queueing, once, within a few seconds.

        Raises:
            ModelError: it failed.
            TimeoutError: it took too long.
        """
        if self._transport is None:
            self._connect()
        sending = asyncio.run_coroutine_threadsafe(self._outcome(call["path"], call), event_loop())
        outcome = sending.result(timeout=LAST_WORDS)
        if outcome.value is None:
            raise ModelError(outcome.why)
        return outcome.value["reply"]

    def key(self) -> str:
        if not any("{key}" in value for _, value in self.headers):
            return ""
        try:
            return super().key()
        except ModelError as error:
            raise EndOfRun(str(error)) from error

    def _new_transport(self, key: str) -> LeanTransport:
        headers = {name: value.replace("{key}", key) for name, value in self.headers}
        return ServiceTransport(
            headers, self.base_url, self.limits.in_flight, self.limits.timeout, self.limits.most_bytes
        )

    async def _outcome(self, path: str, body: Mapping[str, Any]) -> Outcome:
        outcome = await super()._outcome(path, body)
        unsent = outcome.unreachable or outcome.overloaded
        return outcome if body["repeatable"] or unsent else replace(outcome, retry=False)

    @staticmethod
    def _judged(url: str, reply: HttpReply) -> Outcome:
        if reply.status >= 300:
            return outcome_of(url, reply)
        try:
            value = received(redact_bytes(reply.body)) if reply.body.strip() else None
        except ValueError:
            return Outcome(why=f"{url}: HTTP {reply.status}, but the reply is not JSON: {excerpt(reply.body, 200)!r}")
        return Outcome(value={"reply": value}, limits=reply.limits)


endpoint_of = lru_cache(maxsize=64)(ServiceEndpoint)
"""The endpoint of a service with its limits; this process has one for each, which memories share."""


class ServiceTransport(LeanTransport):
    """aiohttp with any method, and with the service's own headers."""

    def __init__(self, headers: Mapping[str, str], base_url: str, limit: int, timeout: float, most_bytes: int) -> None:
        super().__init__(base_url, "", limit, timeout, most_bytes)
        self._own_headers = dict(headers)

    def _headers(self) -> dict[str, str]:
        return {"Content-Type": "application/json", **self._own_headers}

    def _request(
        self, session: aiohttp.ClientSession, url: str, body: Mapping[str, Any]
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        from yarl import URL

        given = body["query"].items()
        query = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given}
        data = None if body["body"] is None else encoded(body["body"])
        quoted = URL(url, encoded=True)  # else yarl would normalise it: %2E in a value would become a dot
        return session.request(body["method"], quoted, params=query, data=data, allow_redirects=False)


FIELDS = {"method", "path", "query", "body", "ok", "id", "repeatable"}
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
HARMLESS = ("search", "wait", "reset", "delete")
"""Steps that may be repeated unless `repeatable` says otherwise."""


@dataclass(frozen=True)
class HttpSettings(ServiceSettings):
    """Settings of an HTTP service; `{key}` in `headers` is replaced by the key."""

    version: str = "1"
    base_url: str = "http://127.0.0.1:8095"
    """Address of the service; part of the run's identity."""
    key_env: str = "MEMORY_API_KEY"
    """Environment variable that holds the key."""
    in_flight: Positive = 16
    """Maximum number of calls in flight, over all cases of this process."""
    rpm: float | None = None
    """Maximum number of calls a minute, over all cases of this process; None for no limit."""
    timeout: float = 60.0
    """Time limit of an attempt in seconds."""
    retries: int = 4
    """Number of further attempts."""


class HttpMemory(ServiceMemory):
    """Recalls the hits of an HTTP service.

    Raises:
        ValueError: a setting has another form or holds a key, or the base URL cannot be used.
    """

    def __init__(self, rng: np.random.Generator, settings: HttpSettings = HttpSettings()) -> None:
        super().__init__(rng, settings)
        self.settings: HttpSettings = settings
        headers = tuple(sorted((str(name), str(value)) for name, value in (settings.headers or {}).items()))
        limits = EndpointLimits(settings.in_flight, settings.timeout, settings.retries, rpm=settings.rpm)
        try:
            self._endpoint = endpoint_of(settings.base_url, settings.key_env, headers, limits)
        except ModelError as error:
            raise ValueError(f"base_url: {error}") from error

    def _prepared(self, where: str, given: Any) -> dict[str, Any]:
        call = mapping(where, given, FIELDS)
        if not str(call.get("path", "")).startswith("/"):
            raise ValueError(f"{where}.path must begin with a slash, found {call.get('path')!r}")
        method = str(call.get("method", "POST"))
        if method not in METHODS:
            raise ValueError(f"{where}.method must be one of {', '.join(METHODS)}, found {method!r}")
        query = mapping(f"{where}.query", call.get("query") or {}, set(call.get("query") or {}))
        repeatable = bool(call.get("repeatable", where in HARMLESS))
        return {"body": None, **call, "method": method, "query": query, "repeatable": repeatable}

    @property
    def _namespaces(self) -> Namespaces:
        base_url = self.settings.base_url
        return namespaces_at(urlsplit(base_url).netloc, base_url, [self.settings.key_env, self._endpoint.headers])

    def _send(self, step: str, call: Mapping[str, Any], values: Mapping[str, Any], *, last: bool = False) -> Any:
        path = filled_path(call["path"], values)
        asked = {**call, "path": path, "query": filled(call["query"], values), "body": filled(call["body"], values)}
        if last:
            return self._endpoint.ask_once(asked)
        # The namespace of a service that is gone is left to the next run: nothing of this one waits for its deletion.
        return self._endpoint.ask(asked, patient=step != "delete")
