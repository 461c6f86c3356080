"""Serve the reference memory service on this machine: `python -m scripts mock-memory --port 8095`, with a fault: `--fault "k ignored"`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

from aiohttp import web

from scripts.mock.endpoint import serve
from scripts.mock.memory_store import FAULTS, Store
from scripts.setup.arguments import verb_parser, whole

GROUP = "develop"


class Service:
    """The HTTP server that `conf/memory/reference_http.yaml` describes, for tests and as an example.

    If there is a key, a request without it is refused.

    Args:
        key: expected as `Authorization: Bearer <key>`; empty for none.
        together: number of searches that must have arrived before the first is answered.
    """

    def __init__(self, store: Store, key: str = "", together: int = 1) -> None:
        self.store, self._key = store, key
        self._awaited, self._enough = together, asyncio.Event()
        self.asked: list[str] = []
        """`METHOD path` of every request."""

    def application(self) -> Any:
        @web.middleware
        async def guarded(request: Any, handler: Any) -> Any:
            self.asked.append(f"{request.method} {request.path}")
            if self._key and request.headers.get("Authorization") != f"Bearer {self._key}":
                return web.json_response({"error": "no valid key"}, status=401)
            return await handler(request)

        app = web.Application(middlewares=[guarded])
        space = "/v1/spaces/{space}"
        app.router.add_post(f"{space}/memories", self._add)
        app.router.add_post(f"{space}/sessions/{{session}}/end", self._done)
        app.router.add_post(f"{space}/search", self._search)
        app.router.add_get(f"{space}/status", self._status)
        app.router.add_post(f"{space}/reset", self._delete)
        app.router.add_delete(space, self._delete)
        return app

    async def _add(self, request: Any) -> Any:
        body = await request.json()
        name = self.store.add(request.match_info["space"], body["messages"], str(body.get("time") or ""))
        return web.json_response({"id": name, "status": "stored"})

    async def _done(self, request: Any) -> Any:
        return web.json_response({"status": "ended"})

    async def _search(self, request: Any) -> Any:
        body = await request.json()
        self._awaited -= 1
        if self._awaited <= 0:
            self._enough.set()
        try:
            await asyncio.wait_for(self._enough.wait(), 10)
        except TimeoutError:
            return web.json_response({"error": "no other search came"}, status=400)
        hits = self.store.search(request.match_info["space"], str(body["query"]), int(body["limit"]))
        return web.json_response({"results": hits})

    async def _status(self, request: Any) -> Any:
        pending = self.store.pending(request.match_info["space"])
        return web.json_response({"indexed": pending == 0, "pending": pending})

    async def _delete(self, request: Any) -> Any:
        self.store.delete(request.match_info["space"])
        return web.json_response({"status": "deleted"})


def main(arguments: Sequence[str]) -> None:
    """Serve until a signal comes."""
    parser = verb_parser("mock-memory", __doc__)
    parser.add_argument("--port", type=whole(0, 65535), default=8095)
    parser.add_argument("--fault", choices=sorted(FAULTS), default="", help="what goes wrong")
    parser.add_argument("--delay", type=whole(0), default=0, help="polls after which an add is indexed")
    parser.add_argument("--key-env", default="", help="environment variable that holds the key that callers must send")
    options = parser.parse_args(arguments)
    key = os.environ.get(options.key_env, "") if options.key_env else ""
    serve(Service(Store(options.fault, options.delay), key).application(), options.port)
