"""The gateway's server: `/<token>/v1/chat/completions`, `/responses`, `/embeddings` and `/models` on a loopback port.

A client's calls are credited to the account whose token stands in the path. Replies come from the cache or from upstream; a call that
fails for good is answered 400, which the OpenAI packages do not repeat, and is told to the account, because many programs pass over it.
`record` keeps every reply, `replay` answers from what was kept and sends nothing, `live` neither reads nor keeps.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal

from memsys.embed import Embedder
from memsys.jsons import encoded, received
from memsys.llm.gateway import shapes
from memsys.llm.gateway.accounts import Account
from memsys.llm.gateway.chat import Call, ChatReplies
from memsys.llm.gateway.upstream import Upstream
from memsys.llm.meter import metering
from memsys.llm.protocol import ContextOverflow, ModelError
from memsys.llm.secrets import redact
from memsys.llm.store import Store
from memsys.llm.transport import event_loop

if TYPE_CHECKING:
    from aiohttp import web

Mode = Literal["record", "replay", "live"]
MODES: tuple[Mode, ...] = ("record", "replay", "live")
MOST_BYTES = 64 << 20
EMBEDDING_THREADS = 8
RETRY_COUNT = "x-stainless-retry-count"
"""Header in which the OpenAI packages say how often their transport has repeated a request."""


class Gateway:
    """Serves accounts on one port of this machine; the server starts when the first account is opened.

    Args:
        upstream: answers chat requests that are not cached.
        embedder: embeds texts; it caches by text, because batches differ between runs.
        store: where replies are kept; None only with `live`.
        port: 0 takes any free one.
        welcome: opens an account for a token that nobody has opened; None refuses it.

    Raises:
        ValueError: the mode is unknown, or needs a store.
    """

    def __init__(
        self,
        upstream: Upstream,
        embedder: Embedder,
        store: Store | None,
        mode: Mode = "record",
        *,
        port: int = 0,
        welcome: Callable[[str], Account] | None = None,
    ) -> None:
        if mode not in MODES or (store is None and mode != "live"):
            raise ValueError(f"mode must be one of {', '.join(MODES)}, and needs a store unless live; found {mode!r}")
        self.upstream, self.mode = upstream, mode
        self._chat = ChatReplies(upstream, None if mode == "live" else store, replay=mode == "replay")
        self._embedder, self._port, self._welcome = embedder, port, welcome
        # Threads of its own: its embedder may wait for another gateway of this process, which would find all shared ones taken.
        self._embedding = ThreadPoolExecutor(EMBEDDING_THREADS, "gateway-embed")
        self._accounts: dict[str, Account] = {}
        self._runner: web.ServerRunner | None = None
        self._address = ""
        self._opened = 0
        self._lock = threading.Lock()

    def start(self) -> str:
        """Start the server if it does not run; returns its address, `http://127.0.0.1:port`.

        Raises:
            OSError: the port is taken.
        """
        with self._lock:
            if not self._address:
                starting = asyncio.run_coroutine_threadsafe(self._serve(), event_loop())
                self._address = f"http://127.0.0.1:{starting.result(30)}"
        return self._address

    def open(self, token: str, account: Account) -> Account:
        """Credit calls to `<address>/<token>/v1` to an account; sets its `base_url`."""
        account.base_url = f"{self.start()}/{token}/v1"
        self._accounts[token] = account
        return account

    def new_token(self, client: str) -> str:
        """A token that no other account of this gateway has, also not that of the same case in another row."""
        with self._lock:
            self._opened += 1
            return f"{client.replace('/', '-')}-{self._opened}"

    def dimension(self) -> int:
        """Length of the embedder's vectors; embeds one word."""
        with metering():
            return int(self._embedder.embed(["dimension"]).shape[1])

    def dismiss(self, token: str) -> None:
        """Refuse further calls of a token."""
        self._accounts.pop(token, None)

    def also_on(self, listener: socket.socket) -> Callable[[], None]:
        """Serve on one more socket that listens, such as one in another network; what is returned stops that, from any thread.

        The server must run.
        """
        from aiohttp import web

        async def serve() -> web.SockSite:
            assert self._runner is not None
            site = web.SockSite(self._runner, listener, backlog=512)
            await site.start()
            return site

        site = asyncio.run_coroutine_threadsafe(serve(), event_loop()).result(30)

        async def stop() -> None:
            if self._runner is not None and site in self._runner.sites:
                await site.stop()
            listener.close()

        def stopped() -> None:
            asyncio.run_coroutine_threadsafe(stop(), event_loop())

        return stopped

    def close(self) -> None:
        """Stop the server."""
        with self._lock:
            runner, self._runner, self._address = self._runner, None, ""
        if runner is not None:
            asyncio.run_coroutine_threadsafe(runner.cleanup(), event_loop()).result(30)

    async def _serve(self) -> int:
        from aiohttp import web

        # Not an Application: its router and signals take a tenth of a call's CPU time, and one handler serves every path here.
        def request(*parts: Any) -> web.BaseRequest:
            message, payload, protocol, writer, task = parts
            loop = event_loop()
            return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=MOST_BYTES)

        server = web.Server(self._handled, request_factory=request, access_log=None)
        self._runner = web.ServerRunner(server, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, backlog=512).start()
        return int(self._runner.addresses[0][1])

    # --- in the event loop's thread ------------------------------------------------------------------------------------

    def _account(self, path: str) -> tuple[Account | None, str]:
        """The account of a path and what stands behind `/v1`."""
        token, _, method = path.strip("/").rpartition("v1/")
        token = token.strip("/")
        if token not in self._accounts and self._welcome is not None:
            self._accounts[token] = self._welcome(token)
        return self._accounts.get(token), method

    async def _handled(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method == "POST":
            return await self._post(request)
        return self._stats() if request.path == "/stats" else self._get(request)

    def _get(self, request: web.BaseRequest) -> web.Response:
        account, method = self._account(request.path)
        if request.method != "GET" or account is None or method != "models":
            return _error(404, "not_found", f"no {request.method} {request.path} here")
        names = dict.fromkeys([self.upstream.model, "embedder"])
        models = [{"id": name, "object": "model", "created": 0, "owned_by": "gateway"} for name in names]
        return _json({"object": "list", "data": models})

    def _stats(self) -> web.Response:
        """Calls and tokens by token, for clients in other processes."""
        return _json({token or "-": _spent(account) for token, account in self._accounts.items()})

    async def _post(self, request: web.BaseRequest) -> web.StreamResponse:
        account, method = self._account(request.path)
        answer = {"chat/completions": self._chatted, "responses": self._responded, "embeddings": self._embedded}.get(
            method
        )
        if account is None or answer is None:
            return _error(
                404, "not_found", f"no POST {request.path} here: expected /<token>/v1/chat/completions or alike"
            )
        try:
            body = received(await request.read())
            if not isinstance(body, dict):
                raise ValueError("expected a JSON object")
            return await answer(account, request, body)
        except ModelError as error:
            code = "context_length_exceeded" if isinstance(error, ContextOverflow) else "gateway_failure"
            return _error(400, code, redact(str(error)))
        except (ValueError, KeyError, TypeError) as error:
            account.ledger.count(account.ledger.notes, "gateway: request not understood")
            return _error(400, "invalid_request_error", redact(f"{type(error).__name__}: {error}")[:500])

    async def _chatted(self, account: Account, request: web.BaseRequest, body: dict[str, Any]) -> web.StreamResponse:
        reply = await self._reply(account, request, body)
        if not body.get("stream"):
            return _json(reply)
        usage = bool((body.get("stream_options") or {}).get("include_usage"))
        return await _streamed(request, shapes.events(reply, usage=usage))

    async def _responded(self, account: Account, request: web.BaseRequest, body: dict[str, Any]) -> web.StreamResponse:
        response = shapes.response_from_chat(await self._reply(account, request, shapes.chat_from_response(body)))
        if not body.get("stream"):
            return _json(response)
        return await _streamed(request, shapes.response_events(response))

    async def _reply(self, account: Account, request: web.BaseRequest, body: dict[str, Any]) -> Mapping[str, Any]:
        if not isinstance(body.get("messages"), list) or not body["messages"]:
            raise ValueError("messages must be a list that is not empty")
        again = request.headers.get(RETRY_COUNT, "0") not in ("", "0")
        return await self._chat.reply(Call.of(account, self.upstream, body, again=again))

    async def _embedded(self, account: Account, request: web.BaseRequest, body: dict[str, Any]) -> web.StreamResponse:
        texts, ledger = shapes.embedding_texts(body), account.ledger
        dimensions = body.get("dimensions")

        def embed() -> Any:
            with metering() as own:
                vectors = self._embedder.embed([text or " " for text in texts])
            return vectors, own

        try:
            vectors, own = await event_loop().run_in_executor(self._embedding, embed)
        except ModelError as error:
            ledger.add_failure(f"{account.label}.embed", 1, 0.0, account.call_number())
            account.failed(error)
            raise
        ledger.add_embedding(own.embedding_tokens, own.seconds)
        as_base64 = body.get("encoding_format") == "base64"
        model = str(body.get("model", "embedder"))
        fitting = shapes.fitted(vectors, dimensions)
        return _json(shapes.embedding_reply(fitting, model, own.embedding_tokens, base64_encoded=as_base64))


async def _streamed(request: web.BaseRequest, events: Iterator[bytes]) -> web.StreamResponse:
    from aiohttp import web

    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    for event in events:
        await response.write(event)
    await response.write_eof()
    return response


def _json(value: Mapping[str, Any], status: int = 200) -> web.Response:
    from aiohttp import web

    return web.Response(body=encoded(value), status=status, content_type="application/json")


def _error(status: int, code: str, message: str) -> web.Response:
    return _json({"error": {"message": message, "type": code, "code": code, "param": None}}, status)


def _spent(account: Account) -> dict[str, Any]:
    ledger = account.idle
    return {
        "calls": dict(ledger.calls),
        "sent": ledger.sent,
        "failures": dict(ledger.failures),
        "tokens_in": ledger.tokens_in,
        "tokens_out": ledger.tokens_out,
        "embedding_calls": ledger.embedding_calls,
        "embedding_tokens": ledger.embedding_tokens,
        "misfits": dict(account.misfits),
        "notes": dict(ledger.notes),
    }
