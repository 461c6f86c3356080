"""The way to an endpoint: the one event loop that sends everything, and two transports that send the same request.

`lean` is aiohttp, with one connection pool; `sdk` is the openai package, its own retries switched off. Neither follows a redirect,
and neither reads a reply beyond the limit.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from memsys.jsons import encoded
from memsys.llm import network
from memsys.llm.unpacking import ACCEPTED, Body, TooLarge

if TYPE_CHECKING:
    import aiohttp
    import httpx


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back over HTTP."""

    status: int
    body: bytes
    retry_after: str = ""
    location: str = ""
    """Where a redirect points."""


class Unconnected(OSError):
    """No connection came about: the server is not there, or not reachable."""


class Transport(Protocol):
    """Sends one request body; raises OSError, asyncio.TimeoutError or a client error when no whole reply came back."""

    async def post(self, url: str, body: Mapping[str, Any]) -> Reply:
        """Send.

        Raises:
            Unconnected: nothing was sent.
            TooLarge: the reply is larger than allowed.
        """

    async def close(self) -> None: ...


class LeanTransport:
    """aiohttp, with one connection pool."""

    def __init__(self, base_url: str, key: str, limit: int, timeout: float, most_bytes: int) -> None:
        # Here, where everyone who wants to send waits: in the loop's thread the import would compete with them all.
        import aiohttp

        self._key, self._limit, self._most_bytes = key, limit, most_bytes
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._unconnected = aiohttp.ClientConnectorError
        self._certificate = (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError)
        self._session: aiohttp.ClientSession | None = None

    async def post(self, url: str, body: Mapping[str, Any]) -> Reply:
        session = self._session or self._open()
        try:
            async with session.post(url, data=encoded(body), allow_redirects=False) as response:
                headers = response.headers
                content = await self._content(response)
                return Reply(response.status, content, headers.get("Retry-After", ""), headers.get("Location", ""))
        except self._unconnected as error:
            if isinstance(error, self._certificate):
                raise OSError(str(error)) from error
            raise Unconnected(str(error)) from error

    async def _content(self, response: aiohttp.ClientResponse) -> bytes:
        encoding, length = response.headers.get("Content-Encoding", ""), response.content_length
        if not encoding and length is not None and length <= self._most_bytes:
            return await response.read()
        body = Body(encoding, self._most_bytes)
        async for chunk in response.content.iter_any():
            body.add(chunk)
        return body.whole()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        import aiohttp

        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._limit),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=self._timeout,
            auto_decompress=False,  # `Body` unpacks, up to the limit
            headers={
                "Authorization": f"Bearer {self._key}",
                "Content-Type": "application/json",
                "Accept-Encoding": ACCEPTED,
            },
        )
        return self._session


class SdkTransport:
    """The openai package, its own retries switched off."""

    def __init__(self, base_url: str, key: str, limit: int, timeout: float, most_bytes: int) -> None:
        self._base_url, self._key, self._limit, self._timeout = base_url, key, limit, timeout
        self._most_bytes = most_bytes
        self._client: Any = None

    async def post(self, url: str, body: Mapping[str, Any]) -> Reply:
        import httpx
        import openai

        client = self._client or self._open()
        try:
            async with asyncio.timeout(self._timeout):  # the package's own limit is one between two pieces of a reply
                raw = await client.post(url, body=dict(body), cast_to=httpx.Response)
            return Reply(raw.status_code, raw.content)
        except openai.APIStatusError as error:
            said = error.response
            headers = said.headers
            return Reply(said.status_code, said.content, headers.get("Retry-After", ""), headers.get("Location", ""))
        except openai.APITimeoutError as error:
            raise TimeoutError(str(error)) from error
        except openai.APIConnectionError as error:
            cause = error.__cause__
            if isinstance(cause, TooLarge):
                raise cause from error
            kind = Unconnected if isinstance(cause, httpx.ConnectError) and "SSL" not in str(cause) else OSError
            raise kind(str(cause or error)) from error

    def _open(self) -> Any:
        import httpx
        import openai

        url = urlsplit(self._base_url)
        proxies = {} if proxy_bypass(url.hostname or "") else getproxies()
        at_once = httpx.Limits(max_connections=self._limit, max_keepalive_connections=self._limit)
        way = httpx.AsyncHTTPTransport(proxy=proxies.get(url.scheme) or proxies.get("all"), limits=at_once)
        http = httpx.AsyncClient(
            transport=_bounded(way, self._most_bytes), timeout=self._timeout, follow_redirects=False
        )
        self._client = openai.AsyncOpenAI(
            base_url=self._base_url,
            api_key=self._key,
            timeout=self._timeout,
            max_retries=0,
            http_client=http,  # type: ignore[arg-type]  # it also takes clients of httpx
            default_headers={"Accept-Encoding": ACCEPTED},
        )
        return self._client

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()


def _bounded(way: httpx.AsyncHTTPTransport, most_bytes: int) -> httpx.AsyncBaseTransport:
    """A transport of httpx that hands on whole replies, unpacked, up to the limit."""
    import httpx

    class Bounded(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            response = await way.handle_async_request(request)
            try:
                body = Body(response.headers.get("Content-Encoding", ""), most_bytes)
                async for chunk in response.stream:  # type: ignore[union-attr]  # that of an asynchronous transport
                    body.add(chunk)
                content = body.whole()
            finally:
                await response.aclose()
            unpacked = ("content-encoding", "content-length", "transfer-encoding")
            headers = [(name, value) for name, value in response.headers.multi_items() if name.lower() not in unpacked]
            return httpx.Response(
                response.status_code, headers=headers, content=content, extensions=dict(response.extensions)
            )

        async def aclose(self) -> None:
            await way.aclose()

    return Bounded()


TRANSPORTS: dict[str, Callable[[str, str, int, float, int], Transport]] = {"lean": LeanTransport, "sdk": SdkTransport}


def event_loop() -> asyncio.AbstractEventLoop:
    """The one loop that sends everything, in its own thread."""
    with _loop_lock:  # lru_cache alone would let several first callers each start a loop
        return _started_loop()


@lru_cache(maxsize=1)
def _started_loop() -> asyncio.AbstractEventLoop:
    loop = new_event_loop()
    threading.Thread(target=loop.run_forever, name="endpoints", daemon=True).start()
    return loop


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where there is one."""
    if sys.platform == "win32":  # uvloop does not exist there; the standard loop does the same, at more CPU a call
        return asyncio.new_event_loop()
    return _watched_loop()()


@lru_cache(maxsize=1)
def _watched_loop() -> Callable[[], asyncio.AbstractEventLoop]:
    """uvloop's loop, which asks before it connects: it opens sockets in C, where no audit hook sees them."""
    import uvloop

    class Loop(uvloop.Loop):
        async def create_connection(  # type: ignore[override]  # of which there are two
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
