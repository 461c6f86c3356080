"""The gateway's server: `/<token>/v1/chat/completions`, `/responses`, `/embeddings`, `/models` and `/<token>/stats` on a loopback port.

A client's calls are credited to the account whose token it sends (`token_and_method`); a client without a token is refused. Replies
come from the cache or from upstream. A call that fails for good is answered 400, which the OpenAI packages do not repeat, and is reported
to the account, because many programs ignore it. `record` keeps every reply, `replay` answers from the kept replies and sends nothing,
`live` neither reads nor keeps replies.

Programs on this machine with a token may call it, pages in a browser may not. A browser sends any page's request to a loopback port, so
the address alone protects nothing. `Origin` or `Sec-Fetch-Site` reveals a page of another origin; `Host` reveals a page whose name was
made to resolve to this machine; a form that is sent without a preflight request (Fetch standard, "CORS-safelisted request-header") cannot
have the content type of JSON.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Literal

from memsys.jsons import encoded, received
from memsys.llm import stopping
from memsys.llm.gateway.accounts import Account
from memsys.llm.gateway.bodies import (
    MalformedBody,
    chat_from_response,
    embedding_reply,
    embedding_texts,
    events,
    fitted,
    response_events,
    response_from_chat,
    whole,
)
from memsys.llm.gateway.chat import ChatCall, ChatReplies, Upstream
from memsys.llm.meter import metering
from memsys.llm.pricing import SpendingCapReached
from memsys.llm.protocol import ContextOverflow, ModelError
from memsys.llm.secrets import redact
from memsys.llm.store import CacheStore
from memsys.llm.transport import event_loop

if TYPE_CHECKING:
    from aiohttp import web

    from memsys.vectors import Embedder

    Answer = Callable[[Account, web.BaseRequest, dict[str, Any]], Awaitable[web.StreamResponse]]
    from multidict import CIMultiDictProxy


HOSTS = ("127.0.0.1", "localhost", "[::1]")
JSON = "application/json"


Refusal = tuple[int, str, str]
"""Status, code and message of a refused request."""


def refusal(target: str, headers: CIMultiDictProxy[str], port: int, *, posted: bool) -> Refusal | None:
    """The reason why a request with these headers is refused; None if it is permitted.

    Args:
        target: of the request line; a target that is not a path names a host, which overrides the `Host` header (RFC 9112, 3.2.2).
        port: the port of the gateway.
        posted: whether the request has a body, which must be JSON.
    """
    hosts, names = headers.getall("Host", []), {f"{host}:{port}" for host in HOSTS}
    names |= set(HOSTS) if port == 80 else set()
    if not target.startswith("/") or len(hosts) != 1 or hosts[0].lower() not in names:
        return 403, "host_refused", f"the gateway answers to 127.0.0.1:{port} and localhost:{port} alone"
    if "Origin" in headers or any(
        value.lower() not in ("none", "same-origin") for value in headers.getall("Sec-Fetch-Site", [])
    ):
        return 403, "origin_refused", "the gateway answers programs, not pages in a browser"
    if posted and headers.get("Content-Type", "").partition(";")[0].strip().lower() != JSON:
        return 415, "content_type", f"send the header Content-Type: {JSON} (curl: -H 'Content-Type: {JSON}')"
    return None


def token_and_method(path: str, headers: Mapping[str, str]) -> tuple[str, str]:
    """The token of a request, and the rest of its path.

    The token is in the path (`/<token>/v1/models`, `/<token>/stats`), or if the path has none, in `Authorization: Bearer` or
    `api-key` (`/v1/models`, `/stats`). In place of `v1`, Azure's clients write `openai`, and name a deployment in the path.
    """
    first, *rest = path.strip("/").split("/")
    if first in ("v1", "openai", "stats"):
        scheme, _, sent = headers.get("Authorization", "").partition(" ")
        token = sent.strip() if scheme.lower() == "bearer" else headers.get("api-key", "")
        rest = [first, *rest]
    else:
        token = first
    for prefix in ("openai", "v1"):
        rest = rest[1:] if rest[:1] == [prefix] else rest
    return token, "/".join(rest[2:] if rest[:1] == ["deployments"] else rest)


Mode = Literal["record", "replay", "live"]
MODES: tuple[Mode, ...] = ("record", "replay", "live")
MOST_BYTES = 64 << 20
START_SECONDS = 30
EMBEDDING_THREADS = 8
MOST_DIMENSIONS = 1 << 16
SERVED = "POST of chat/completions, responses and embeddings; GET of models, models/<name> and stats"
RETRY_COUNT = "x-stainless-retry-count"
"""Header in which the OpenAI packages say how often their transport has repeated a request."""


class Gateway:
    """Serves accounts on one port of this machine; the server starts when the first account is opened.

    Args:
        upstream: answers chat requests that are not cached.
        embedder: embeds texts; it caches by text, because batches differ between runs.
        store: where replies are kept; None only with `live`.
        port: 0 takes any free one.
        sized: an embedder of vectors with this many dimensions; None cuts those of `embedder`.

    Raises:
        ValueError: the mode is unknown, or needs a store.
    """

    def __init__(
        self,
        upstream: Upstream,
        embedder: Embedder,
        store: CacheStore | None,
        mode: Mode = "record",
        *,
        port: int = 0,
        sized: Callable[[int], Embedder] | None = None,
    ) -> None:
        if mode not in MODES or (store is None and mode != "live"):
            raise ValueError(f"mode must be one of {', '.join(MODES)}, and needs a store unless live; found {mode!r}")
        self.upstream, self.mode, self._store = upstream, mode, store
        self._chat = ChatReplies(upstream, None if mode == "live" else store, replay=mode == "replay")
        self._embedder, self._port, self._sized = embedder, port, sized
        # Threads of its own: its embedder may wait for another gateway of this process, for which no shared thread would be free.
        self._embedding = ThreadPoolExecutor(EMBEDDING_THREADS, "gateway-embed")
        self._accounts: dict[str, Account] = {}
        self._runner: web.ServerRunner | None = None
        self._served_port = 0
        self._address = ""
        self._lock = threading.Lock()

    def start(self) -> str:
        """Start the server if it does not run; returns its address, `http://127.0.0.1:port`.

        Raises:
            TimeoutError: it did not start within START_SECONDS.
            OSError: the port is taken.
        """
        with self._lock:
            if not self._address:
                starting = asyncio.run_coroutine_threadsafe(self._serve(), event_loop())
                self._address = f"http://127.0.0.1:{starting.result(START_SECONDS)}"
        return self._address

    def open(self, token: str, account: Account) -> Account:
        """Credit calls to `<address>/<token>/v1` to an account; sets its `base_url`."""
        account.base_url = f"{self.start()}/{token}/v1"
        self._accounts[token] = account
        return account

    def new_token(self, client: str) -> str:
        """An unguessable token for an account; it begins with the client's name."""
        return f"{re.sub('[^A-Za-z0-9._-]', '-', client)}-{secrets.token_urlsafe(24)}"

    def dimension(self) -> int:
        """Length of the embedder's vectors; embeds one word."""
        with metering():
            return int(self._embedder.embed(["dimension"]).shape[1])

    def dismiss(self, token: str) -> None:
        """Refuse further calls of a token."""
        self._accounts.pop(token, None)

    def also_on(self, listener: socket.socket) -> Callable[[], None]:
        """Serve on a further listening socket, such as a socket in another network; the returned function stops that, from any thread.

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
        """Stop the server; afterwards all replies are in the cache's single file, after a signal also those of the calls in flight."""
        if stopping.requested():
            stopping.await_end()
        with self._lock:
            runner, self._runner, self._address = self._runner, None, ""
        if runner is not None:
            asyncio.run_coroutine_threadsafe(runner.cleanup(), event_loop()).result(30)
        if self._store is not None:
            self._store.flush(5.0)

    async def _serve(self) -> int:
        from aiohttp import web

        # Not an Application: its router and signals take a tenth of a call's CPU time, and one handler serves every path here.
        def request(*parts: Any) -> web.BaseRequest:
            message, payload, protocol, writer, task = parts
            loop = event_loop()
            return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=MOST_BYTES)

        log = logging.getLogger(__name__)
        log.addFilter(_without_the_request)
        server = web.Server(self._handled, request_factory=request, access_log=None, logger=log)
        self._runner = web.ServerRunner(server, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, backlog=512).start()
        self._served_port = int(self._runner.addresses[0][1])
        return self._served_port

    # --- in the event loop's thread ------------------------------------------------------------------------------------

    async def _handled(self, request: web.BaseRequest) -> web.StreamResponse:
        posted = request.method == "POST"
        if (refused := refusal(request.raw_path, request.headers, self._served_port, posted=posted)) is not None:
            return _error(*refused)
        token, method = token_and_method(request.path, request.headers)
        if (account := self._accounts.get(token)) is None:
            return _error(
                401, "invalid_api_key", "unknown token: the gateway printed the address with a token when it started"
            )
        answer = {"chat/completions": self._chatted, "responses": self._responded, "embeddings": self._embedded}.get(
            method
        )
        if posted and answer is not None:
            return await self._post(account, request, answer)
        if request.method in ("GET", "HEAD") and (value := self._shown(account, method)) is not None:
            return _json(value)
        return _error(404, "not_found", f"the gateway does not serve {request.method} of {method!r}: {SERVED}")

    def _shown(self, account: Account, method: str) -> Mapping[str, Any] | None:
        """The reply to a GET: the models, one model, or the account's usage."""
        if method == "stats":
            return _spent(account)
        if method == "models":
            return {
                "object": "list",
                "data": [_model(name) for name in dict.fromkeys([self.upstream.model, "embedder"])],
            }
        # Whatever name a client gives, the gateway's model answers.
        return _model(method.removeprefix("models/")) if method.startswith("models/") else None

    async def _post(self, account: Account, request: web.BaseRequest, answer: Answer) -> web.StreamResponse:
        from aiohttp import web

        try:
            body = received(await request.read())
            if not isinstance(body, dict):
                raise MalformedBody("the body must be a JSON object")
            return await answer(account, request, body)
        except ModelError as error:
            return _error(400, _code(error), redact(str(error)))
        except web.HTTPRequestEntityTooLarge:
            return _error(413, "too_large", f"the body has more than {MOST_BYTES} bytes")
        except ConnectionError:
            raise  # the client is gone
        except Exception as error:  # the client learns that its body was not understood, and the next is served
            account.ledger.count(account.ledger.notes, "gateway: request not understood")
            why = redact(str(error) if isinstance(error, MalformedBody) else f"{type(error).__name__}: {error}")[:500]
            account.failed(ModelError(f"the gateway refused a request: {why}"))
            return _error(400, "invalid_request_error", why)

    async def _chatted(self, account: Account, request: web.BaseRequest, body: dict[str, Any]) -> web.StreamResponse:
        reply = await self._reply(account, request, body)
        if not body.get("stream"):
            return _json(reply)
        usage = bool((body.get("stream_options") or {}).get("include_usage"))
        return await _streamed(request, events(reply, usage=usage))

    async def _responded(self, account: Account, request: web.BaseRequest, body: dict[str, Any]) -> web.StreamResponse:
        chat = chat_from_response(body, account.items)
        response = response_from_chat(await self._reply(account, request, chat), body)
        if body.get("store") is not False:
            account.keep_items(response["output"])
        if not body.get("stream"):
            return _json(response)
        return await _streamed(request, response_events(response))

    async def _reply(self, account: Account, request: web.BaseRequest, body: dict[str, Any]) -> Mapping[str, Any]:
        again = request.headers.get(RETRY_COUNT, "0") not in ("", "0")
        return await self._chat.reply(ChatCall.of(account, self.upstream, body, again=again))

    async def _embedded(self, account: Account, request: web.BaseRequest, body: dict[str, Any]) -> web.StreamResponse:
        from aiohttp import web

        ledger = account.ledger

        def embed() -> bytes:
            texts, dimensions = embedding_texts(body), body.get("dimensions")
            embedder = self._embedder
            if dimensions is not None and self._sized is not None:
                embedder = self._sized(whole(dimensions, "dimensions", MOST_DIMENSIONS))
            with metering() as own:
                vectors = embedder.embed([text or " " for text in texts])
            ledger.add_embedding(own.embedding_tokens, own.seconds)
            for event, amount in own.notes.items():
                ledger.count(ledger.notes, event, amount)
            model, as_base64 = str(body.get("model", "embedder")), body.get("encoding_format") == "base64"
            fitting = fitted(vectors, dimensions)
            return encoded(embedding_reply(fitting, model, own.embedding_tokens, base64_encoded=as_base64))

        try:
            # In a thread, also for reading and writing the lists, so that the loop can send other clients' calls meanwhile.
            reply = await event_loop().run_in_executor(self._embedding, embed)
        except ModelError as error:
            ledger.add_failure(f"{account.label}.embed", 1, 0.0, account.call_number())
            account.failed(error)
            raise
        return web.Response(body=reply, content_type="application/json")


def _without_the_request(record: logging.LogRecord) -> bool:
    """Bytes that are not HTTP are reported without quoting them: they may hold a token, or control codes of a terminal.

    A client that leaves before its reply is no error, and is not reported.
    """
    from aiohttp.http_exceptions import HttpProcessingError

    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError):
        record.msg, record.args = "refused a request that is no HTTP: %s", (type(error).__name__,)
        record.exc_info = None
    return not isinstance(error, ConnectionError)


async def _streamed(request: web.BaseRequest, sent: Iterator[bytes]) -> web.StreamResponse:
    from aiohttp import web

    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    for each in sent:
        await response.write(each)
    await response.write_eof()
    return response


def _json(value: Mapping[str, Any], status: int = 200) -> web.Response:
    from aiohttp import web

    return web.Response(body=encoded(value), status=status, content_type="application/json")


def _error(status: int, code: str, message: str) -> web.Response:
    return _json({"error": {"message": message, "type": code, "code": code, "param": None}}, status)


def _code(error: ModelError) -> str:
    """The code that tells a client the kind of failure."""
    if isinstance(error, ContextOverflow):
        return "context_length_exceeded"
    return "max_usd_reached" if isinstance(error, SpendingCapReached) else "gateway_failure"


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "gateway"}


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
