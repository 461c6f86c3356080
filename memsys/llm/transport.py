"""The way to an endpoint: the one event loop that sends everything, and two transports that send the same request.

`lean` is aiohttp, with one connection pool; `sdk` is the openai package, its own retries switched off.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from memsys.jsons import encoded

if TYPE_CHECKING:
    import aiohttp


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back over HTTP."""

    status: int
    body: bytes
    retry_after: str = ""


class Transport(Protocol):
    """Sends one request body; raises OSError, asyncio.TimeoutError or a client error when no whole reply came back."""

    async def post(self, path: str, body: Mapping[str, Any]) -> Reply: ...
    async def close(self) -> None: ...


class LeanTransport:
    """aiohttp, with one connection pool."""

    def __init__(self, base_url: str, key: str, limit: int, timeout: float) -> None:
        # Here, where everyone who wants to send waits: in the loop's thread the import would compete with them all.
        import aiohttp

        self._base, self._key, self._limit = base_url.rstrip("/"), key, limit
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._session: aiohttp.ClientSession | None = None

    async def post(self, path: str, body: Mapping[str, Any]) -> Reply:
        session = self._session or self._open()
        async with session.post(self._base + path, data=encoded(body)) as response:
            content = await response.read()
            return Reply(response.status, content, response.headers.get("Retry-After", ""))

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    def _open(self) -> aiohttp.ClientSession:
        import aiohttp

        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._limit),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=self._timeout,
            headers={"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"},
        )
        return self._session


class SdkTransport:
    """The openai package, its own retries switched off."""

    def __init__(self, base_url: str, key: str, limit: int, timeout: float) -> None:
        self._arguments = {"base_url": base_url, "api_key": key, "timeout": timeout, "max_retries": 0}
        self._client: Any = None

    async def post(self, path: str, body: Mapping[str, Any]) -> Reply:
        import httpx
        import openai

        if self._client is None:
            self._client = openai.AsyncOpenAI(**self._arguments)  # type: ignore[arg-type]
        try:
            raw = await self._client.post(path, body=dict(body), cast_to=httpx.Response)
            return Reply(raw.status_code, raw.content)
        except openai.APIStatusError as error:
            return Reply(
                error.response.status_code, error.response.content, error.response.headers.get("Retry-After", "")
            )
        except openai.APITimeoutError as error:
            raise TimeoutError(str(error)) from error
        except openai.APIConnectionError as error:
            raise OSError(str(error.__cause__ or error)) from error

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()


TRANSPORTS: dict[str, Callable[[str, str, int, float], Transport]] = {"lean": LeanTransport, "sdk": SdkTransport}


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
    import uvloop

    return uvloop.new_event_loop()


_loop_lock = threading.Lock()
