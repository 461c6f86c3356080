"""The event loop that sends all requests, and the HTTP transport that sends a request: aiohttp with one connection pool.

It follows no redirect, decompresses a reply while it is received, and stops reading one that exceeds the size limit.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import urlsplit

from memsys.jsons import encoded
from memsys.llm import network

if TYPE_CHECKING:
    import aiohttp


ACCEPTED = "gzip, deflate"
"""The Accept-Encoding header; replies in other encodings are rejected."""


class TooLarge(Exception):
    """A reply has more decompressed bytes than allowed."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the reply is larger than {limit / 2**20:g} MB")


RATE_HEADERS = tuple(
    f"x-ratelimit-{name}-{kind}" for name in ("limit", "remaining", "reset") for kind in ("requests", "tokens")
)


@dataclass(frozen=True, slots=True)
class HttpReply:
    """An HTTP response."""

    status: int
    body: bytes
    retry_after: str = ""
    location: str = ""
    """Target of a redirect; empty for other responses."""
    limits: Mapping[str, str] = field(default_factory=dict)
    """The `x-ratelimit-*` headers, in lower case."""


class Unconnected(OSError):
    """No connection could be made: the server is not running or not reachable."""


class Untrusted(OSError):
    """The TLS handshake failed: a wrong certificate, or a server without TLS."""


_Responding: TypeAlias = "AbstractAsyncContextManager[aiohttp.ClientResponse]"


class LeanTransport:
    """aiohttp, with one connection pool."""

    def __init__(self, base_url: str, key: str, limit: int, timeout: float, most_bytes: int) -> None:
        # Imported here, while all senders wait: in the event loop's thread the import would compete with them for the GIL.
        import aiohttp

        self._key, self._limit, self._most_bytes = key, limit, most_bytes
        self._azure = "api-version=" in urlsplit(base_url).query
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._unconnected = aiohttp.ClientConnectorError
        self._certificate = (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError)
        self._session: aiohttp.ClientSession | None = None

    async def post(self, url: str, body: Mapping[str, Any]) -> HttpReply:
        """Send one request body and return the response.

        Raises:
            Unconnected: no connection could be made, so nothing was sent.
            Untrusted: the TLS handshake failed, so nothing was sent.
            TooLarge: the reply exceeds the size limit.
            OSError, TimeoutError, or an error of the client library: no complete reply was received.
        """
        if self._session is None:
            import aiohttp

            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._limit),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=self._timeout,
                headers={**self._headers(), "Accept-Encoding": ACCEPTED},
            )
        try:
            async with self._request(self._session, url, body) as response:
                headers = response.headers
                content = await self._content(response)
                limits = {name: headers[name] for name in RATE_HEADERS if name in headers}
                places = headers.get("Retry-After", ""), headers.get("Location", "")
                return HttpReply(response.status, content, *places, limits)
        except self._unconnected as error:
            if isinstance(error, self._certificate):
                raise Untrusted(str(error)) from error
            raise Unconnected(str(error)) from error

    def _request(self, session: aiohttp.ClientSession, url: str, body: Mapping[str, Any]) -> _Responding:
        return session.post(url, data=encoded(body), allow_redirects=False)

    def _headers(self) -> dict[str, str]:
        # Azure's classic form takes a key in a header of its own; `Authorization` is for the tokens of Entra.
        key = {"api-key": self._key} if self._azure else {"Authorization": f"Bearer {self._key}"}
        return {**key, "Content-Type": "application/json"}

    async def _content(self, response: aiohttp.ClientResponse) -> bytes:
        encoding = response.headers.get("Content-Encoding", "").strip().lower()
        if encoding not in ("", "identity", *ACCEPTED.split(", ")):
            raise OSError(f"the reply is encoded with {encoding[:40]!r}, which was not asked for")
        parts, size = list[bytes](), 0
        async for chunk in response.content.iter_any():
            size += len(chunk)
            if size > self._most_bytes:
                raise TooLarge(self._most_bytes)
            parts.append(chunk)
        return b"".join(parts)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


def event_loop() -> asyncio.AbstractEventLoop:
    """The event loop that sends all requests; it runs in a thread of its own, started on first use."""
    with _loop_lock:  # with lru_cache alone, several threads could each start a loop
        return _started_loop()


@lru_cache(maxsize=1)
def _started_loop() -> asyncio.AbstractEventLoop:
    loop = new_event_loop()
    threading.Thread(target=loop.run_forever, name="endpoints", daemon=True).start()
    return loop


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A new event loop of uvloop."""
    return _watched_loop()()


@lru_cache(maxsize=1)
def _watched_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop's loop class, extended by `network.check` before each connection: no audit hook sees sockets opened in C."""
    import uvloop

    class Loop(uvloop.Loop):
        async def create_connection(  # type: ignore[override]  # the base class declares two overloads
            self, factory: Any, host: Any = None, port: Any = None, **options: Any
        ) -> Any:
            network.check(host)
            return await super().create_connection(factory, host, port, **options)

        async def sock_connect(self, sock: Any, address: Any) -> Any:
            network.check(address[0] if isinstance(address, tuple) else None)
            return await super().sock_connect(sock, address)

        async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
            network.check(host)
            return await super().getaddrinfo(host, port, **options)

    return Loop


_loop_lock = threading.Lock()
