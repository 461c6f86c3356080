"""Any HTTP service as a memory, described in YAML; decisions and deviations are in `memsys.services.memory`.

A call is `{method: POST, path: /memories, query: {}, body: {}}`, with placeholders (`{namespace}`, `{text}`, `{k}` …, all in
`memsys.services.memory.KNOWN`). In addition, `ok: {path, equals}` says when a reply is a success, `id` is the path of the id in an add's
reply, and `repeatable: true` permits a second attempt when the service may have worked on the first. Searches may be repeated, adds not.

The key comes from the environment variable `key_env` and is written as `{key}` in `headers`. A key in the settings, or a value that looks
like one, is refused, because settings are written to run.json and to reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from memsys.interface import one_of
from memsys.llm.protocol import ModelError
from memsys.services.endpoint import Address, ServiceCall, endpoint_of
from memsys.services.leftovers import Namespaces, namespaces_at
from memsys.services.memory import ServiceMemory, ServiceSettings
from memsys.services.templates import filled, filled_path, mapping
from memsys.settings import Positive

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
        shown = tuple(sorted((str(name), str(value)) for name, value in (settings.headers or {}).items()))
        self._address = Address(
            settings.base_url,
            settings.key_env,
            shown,
            settings.in_flight,
            settings.rpm,
            settings.timeout,
            settings.retries,
        )
        try:
            self._endpoint = endpoint_of(self._address)
        except ModelError as error:
            raise ValueError(f"base_url: {error}") from error

    def _prepared(self, where: str, given: Any) -> dict[str, Any]:
        call = mapping(where, given, FIELDS)
        if not str(call.get("path", "")).startswith("/"):
            raise ValueError(f"{where}.path must begin with a slash, found {call.get('path')!r}")
        method = one_of(f"{where}.method", str(call.get("method", "POST")), METHODS)
        query = mapping(f"{where}.query", call.get("query") or {}, set(call.get("query") or {}))
        repeatable = bool(call.get("repeatable", where in HARMLESS))
        return {"body": None, **call, "method": method, "query": query, "repeatable": repeatable}

    @property
    def _namespaces(self) -> Namespaces:
        door = [self._address.key_env, self._address.headers]
        return namespaces_at(urlsplit(self._address.base_url).netloc, self._address.base_url, door)

    def _send(self, step: str, call: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
        return self._endpoint.ask(_call(call, values))

    def _send_at_last(self, call: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        self._endpoint.ask_once(_call(call, values))


def _call(call: Mapping[str, Any], values: Mapping[str, Any]) -> ServiceCall:
    path, query = filled_path(call["path"], values), filled(call["query"], values)
    return ServiceCall(call["method"], path, query, filled(call["body"], values), call["repeatable"])
