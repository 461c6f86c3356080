"""Any HTTP service as a memory, described in YAML; decisions and deviations stand in `memsys.services.memory`.

A call is `{method: POST, path: /memories, query: {}, body: {}}`, with placeholders (`{namespace}`, `{text}`, `{k}` …, all in
`memsys.services.memory.KNOWN`). Besides, `ok: {path, equals}` says when a reply is a success, `id` where an add's reply has its id, and
`repeatable: true` that the call may be sent again after a failure that leaves open whether it was worked on. Searches may, adds may not.

The key comes from the environment variable `key_env` and stands in `headers` as `{key}`. A key that is written into the settings, or that
looks like one, is refused: settings are written to run.json and to reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

import numpy as np

from memsys.interface import one_of, positive
from memsys.llm.protocol import ModelError
from memsys.llm.written_keys import written_key
from memsys.services.endpoint import Address, ServiceCall, endpoint_of
from memsys.services.leftovers import Namespaces, namespaces_at
from memsys.services.memory import ServiceMemory
from memsys.services.templates import filled, filled_path, mapping

FIELDS = {"method", "path", "query", "body", "ok", "id", "repeatable"}
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
HARMLESS = ("search", "wait", "reset", "delete")
"""Steps that may be repeated unless `repeatable` says otherwise."""


class HttpMemory(ServiceMemory):
    """Recalls what an HTTP service finds.

    Args:
        base_url: address of the service; part of the run's identity, as the version is.
        version: the service's version, as its operator names it.
        key_env: environment variable that holds the key.
        headers: sent with every call; `{key}` stands for the key.
        open, add, end, search, reset, delete: calls; `open` comes before the first add of a case. null for one that does not exist.
        in_flight, rpm: most calls at once, and a minute, over all cases of this process; null for no limit a minute.
        timeout, retries: seconds of an attempt, and further attempts.
        k, per, results, wait: see `memsys.services.memory`.

    Raises:
        ValueError: a setting has another form or holds a key, or the base URL cannot be used.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        base_url: str = "http://127.0.0.1:8095",
        version: str = "1",
        k: int = 10,
        per: Literal["unit", "turn"] = "unit",
        key_env: str = "MEMORY_API_KEY",
        headers: Mapping[str, str] | None = None,
        open: Mapping[str, Any] | None = None,
        add: Mapping[str, Any] | None = None,
        end: Mapping[str, Any] | None = None,
        search: Mapping[str, Any] | None = None,
        reset: Mapping[str, Any] | None = None,
        delete: Mapping[str, Any] | None = None,
        results: Mapping[str, str] | None = None,
        wait: Mapping[str, Any] | None = None,
        in_flight: int = 16,
        rpm: float | None = None,
        timeout: float = 60.0,
        retries: int = 4,
    ) -> None:
        steps = {"open": open, "add": add, "end": end, "search": search, "reset": reset, "delete": delete}
        if fault := written_key({"base_url": base_url, "headers": headers, **steps, "wait": wait}):
            raise ValueError(fault)
        super().__init__(rng, k, per, steps, results or {}, wait)
        self.base_url, self.version = base_url, version
        shown = tuple(sorted((str(name), str(value)) for name, value in (headers or {}).items()))
        self._address = Address(base_url, key_env, shown, positive("in_flight", in_flight), rpm, timeout, retries)
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
        return namespaces_at(urlsplit(self.base_url).netloc, self.base_url, door)

    def _send(self, step: str, call: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
        return self._endpoint.ask(_call(call, values))

    def _send_at_last(self, call: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        self._endpoint.ask_once(_call(call, values))


def _call(call: Mapping[str, Any], values: Mapping[str, Any]) -> ServiceCall:
    path, query = filled_path(call["path"], values), filled(call["query"], values)
    return ServiceCall(call["method"], path, query, filled(call["body"], values), call["repeatable"])
