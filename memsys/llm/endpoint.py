"""One OpenAI-compatible server: its in-flight limit, its retries, its pauses while it is away, what is under way there.

Nothing here blocks a thread per call: `start` hands a coroutine to the one event loop and returns a future; `transport.py` holds
the loop and the two ways to send.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import random
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

from memsys.jsons import received
from memsys.llm import network, stopping
from memsys.llm.futures import settle
from memsys.llm.outage import Unreachable, until_back
from memsys.llm.pricing import Purse
from memsys.llm.protocol import ContextOverflow, EndOfRun, ModelError
from memsys.llm.replies import is_overflow, usage_of
from memsys.llm.secrets import redact, redact_bytes, register
from memsys.llm.traffic import Traffic
from memsys.llm.transport import TRANSPORTS, Reply, Transport, Unconnected, event_loop
from memsys.llm.unpacking import TooLarge

RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 520, 522, 524, 529})
REDIRECTS = 3
"""Redirects of one call that are followed, within the server that the base URL names."""
PAUSES = 3
"""How often one call waits for a server that went away."""
SHOWN = 100_000
"""Bytes of a refusal that are looked at; what is cut from them is redacted first, or half a key would stay."""

Price = Callable[[Mapping[str, Any]], float | None]
"""A decoded reply to dollars; None where it does not tell or the price is unknown."""

Sent = tuple[Any, float, int]
"""A decoded reply, the seconds of the attempt that succeeded, and the number of attempts."""

Read = TypeVar("Read")
Reading = Callable[[Any, float, int], Read]
"""What is made of them."""


class Endpoint:
    """One server: its connections, its in-flight limit, its retry policy.

    Args:
        base_url: ending in `/v1`, as OpenAI-compatible servers write it.
        label: enters the cache key, so that another server's answers are never taken for this one's.
        key_env: environment variable that holds the key; local servers may need none.
        in_flight: calls under way at once, over all models.
        retries: further attempts after a failure worth retrying.
        backoff: seconds before the first retry; doubles each time up to `max_backoff`, with jitter.
        patience: seconds for which the run pauses when the server, once reached, refuses connections; 0 = not at all.
        max_reply_mb: a reply with more megabytes, once unpacked, is refused while it is read.

    Raises:
        ModelError: the base URL is no http(s) URL, or holds a name and password or a query, which would be written to files.
    """

    def __init__(
        self,
        base_url: str,
        *,
        label: str = "",
        key_env: str = "OPENAI_API_KEY",
        in_flight: int = 64,
        timeout: float = 120.0,
        retries: int = 6,
        backoff: float = 0.5,
        max_backoff: float = 30.0,
        patience: float = 600.0,
        max_reply_mb: float = 32.0,
        transport: str = "lean",
        purse: Purse | None = None,
    ) -> None:
        _check_url(base_url)
        self.base_url, self.label, self.key_env = base_url.rstrip("/"), label or base_url, key_env
        self.retries, self.backoff, self.max_backoff, self.patience = retries, backoff, max_backoff, patience
        self.purse = purse or Purse()
        self._timeout, self._in_flight, self._most_bytes = timeout, in_flight, int(max_reply_mb * 2**20)
        if transport not in TRANSPORTS:
            raise ValueError(f"transport must be one of {', '.join(TRANSPORTS)}, found {transport!r}")
        self._transport_name = transport
        self._jitter = random.Random(base_url)
        self._lock = threading.Lock()
        self._transport: Transport | None = None
        self._gate = asyncio.Semaphore(in_flight)
        self._under_way: set[asyncio.Task[None]] = set()
        # The loop's thread alone writes these; `snapshot` reads them from others.
        self._sent: dict[asyncio.Task[Any] | None, float] = {}
        self._finished = self._retried = self._tokens_in = self._tokens_out = 0
        self._reached = False
        self._outage: asyncio.Task[None] | None = None
        self._paused: tuple[float | None, str] = (None, "")
        stopping.senders.add(self)

    def permitted(self) -> None:
        """Refuse to go beyond this machine where `network=false`.

        Raises:
            EndOfRun: the base URL leads elsewhere.
        """
        try:
            network.check_url(self.base_url)
        except OSError as error:
            raise EndOfRun(str(error)) from error

    def start(
        self, path: str, body: Mapping[str, Any], worst: float | None, price: Price, read: Reading[Read]
    ) -> Future[Read]:
        """Send a body, with retries: a future of what `read` makes of the reply.

        `price` turns the decoded reply into dollars. The future raises `ModelError`; also where `read` raises anything else, because
        then the reply is none.

        Raises:
            Stopped: the user asked for a stop.
        """
        stopping.check()
        if self._transport is None:
            self._connect()
        future: Future[Read] = Future()
        event_loop().call_soon_threadsafe(self._begin, future, self._send(path, body, worst, price), read)
        return future

    def snapshot(self) -> Traffic:
        """What is under way at this moment."""
        sent = list(self._sent.values())
        since, why = self._paused
        return Traffic(
            in_flight=len(sent),
            waiting=max(0, len(self._under_way) - len(sent)),
            finished=self._finished,
            retried=self._retried,
            tokens_in=self._tokens_in,
            tokens_out=self._tokens_out,
            oldest_seconds=max(0.0, time.perf_counter() - min(sent)) if sent else 0.0,
            paused_since=since,
            paused_why=why,
        )

    def refuse(self) -> None:
        """Fail what was not sent yet: the calls that wait for a place, for their next attempt or for the server."""

        def cancel_unsent() -> None:
            if self._outage is not None:
                self._outage.cancel()
            for task in self._under_way - self._sent.keys():
                task.cancel()

        if self._under_way:
            event_loop().call_soon_threadsafe(cancel_unsent)

    def finish(self, seconds: float) -> int:
        """Wait for the calls under way, so long at most, and give up the rest; returns how many these are."""
        self._emptied(seconds)
        left = list(self._under_way)
        for task in left:
            event_loop().call_soon_threadsafe(task.cancel)
        self._emptied(1.0)
        return len(left)

    def _emptied(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._under_way and time.monotonic() < deadline:
            time.sleep(0.02)

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            transport, self._transport = self._transport, None
        if transport is not None:
            atexit.unregister(self.close)
            asyncio.run_coroutine_threadsafe(transport.close(), event_loop()).result(timeout=10)

    def _connect(self) -> None:
        with self._lock:
            if self._transport is None:
                self.permitted()
                key = self._key()
                make = TRANSPORTS[self._transport_name]
                self._transport = make(self.base_url, key or "none", self._in_flight, self._timeout, self._most_bytes)
                atexit.register(self.close)

    def _key(self) -> str:
        found = os.environ.get(self.key_env, "")
        key = found.strip()  # a key read from a file ends in a newline
        if not key and not network.is_local(self.base_url):
            raise ModelError(f"no key for {self.base_url}: set the environment variable {self.key_env}")
        register(found, self.key_env)
        if not key.isascii() or not key.isprintable() or " " in key:
            raise ModelError(
                f"the environment variable {self.key_env} holds no key: a key has no spaces and is plain ASCII"
            )
        return key

    # --- in the loop's thread ------------------------------------------------------------------------------------------

    def _begin(self, future: Future[Read], sending: Coroutine[Any, Any, Sent], read: Reading[Read]) -> None:
        # One future from end to end: asyncio.run_coroutine_threadsafe chains two more behind it, at a twentieth of a call's CPU.
        task = event_loop().create_task(self._carry(future, sending, read))
        self._under_way.add(task)  # the loop alone keeps no task alive
        task.add_done_callback(lambda task: self._ended(task, future, sending))

    def _ended(self, task: asyncio.Task[None], future: Future[Read], sending: Coroutine[Any, Any, Sent]) -> None:
        self._under_way.discard(task)
        self._finished += 1
        if not future.done():  # cancelled before its first step, of which nothing has run then
            sending.close()
            future.set_exception(_cancelled())

    async def _carry(self, future: Future[Read], sending: Coroutine[Any, Any, Sent], read: Reading[Read]) -> None:
        try:
            sent = await sending
        except asyncio.CancelledError:
            # Taken up here, where the call ends: the loop goes on, whoever waits is told.
            future.set_exception(_cancelled())
        except BaseException as error:
            future.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            settle(future, lambda: self._made(read, sent))

    def _made(self, read: Reading[Read], sent: Sent) -> Read:
        try:
            return read(*sent)
        except ModelError:
            raise
        except Exception as odd:
            why = redact(f"{self.base_url}: unexpected reply ({odd!r})")[:500]
            raise ModelError(why, attempts=sent[2], seconds=sent[1]) from odd

    async def _send(self, path: str, body: Mapping[str, Any], worst: float | None, price: Price) -> Sent:
        attempts = failures = refusals = pauses = 0
        spent_seconds = 0.0
        async with self._gate:
            while True:
                await self._ready()
                attempts += 1
                self._retried += attempts > 1
                outcome, seconds = await self._attempt(path, body, worst, price)
                spent_seconds += seconds
                if outcome.value is not None:
                    return outcome.value, seconds, attempts
                if outcome.unreachable:
                    refusals += 1
                    if refusals > (self.retries if self._reached else min(self.retries, 2)):
                        pauses += 1
                        await self._pause(outcome.why, pauses, attempts)
                        refusals = 0
                        continue
                else:
                    failures += 1
                    if not outcome.retry or failures > self.retries:
                        raise outcome.error(outcome.why, attempts=attempts, seconds=spent_seconds)
                await asyncio.sleep(self._backoff(max(failures, refusals), outcome.retry_after))

    async def _ready(self) -> None:
        """Wait for the end of a pause.

        Raises:
            Stopped: the user asked for a stop.
            Unreachable: the server did not come back.
        """
        stopping.check()
        if self._outage is not None:
            await asyncio.shield(self._outage)  # one call's end is not that of the others' pause
            stopping.check()

    async def _pause(self, why: str, pauses: int, attempts: int) -> None:
        """Pause all calls until the server is back.

        Raises:
            Unreachable: it does not come back, was never there, or accepts connections of the probe only.
        """
        if not self._reached or self.patience <= 0 or pauses > PAUSES:
            ended = Unreachable(why)
            ended.attempts = attempts
            raise ended
        if self._outage is None:
            self._paused = (time.time(), why)
            self._outage = asyncio.get_running_loop().create_task(until_back(self.base_url, why, self.patience))
            self._outage.add_done_callback(self._resume)
        await asyncio.shield(self._outage)

    def _resume(self, outage: asyncio.Task[None]) -> None:
        self._outage, self._paused = None, (None, "")
        if not outage.cancelled():
            outage.exception()  # told to the calls that wait; asyncio would complain that nobody asked

    async def _attempt(
        self, path: str, body: Mapping[str, Any], worst: float | None, price: Price
    ) -> tuple[_Outcome, float]:
        """One attempt and its seconds, with its worst case set aside while it is under way."""
        reserved, actual, task = self.purse.reserve(worst), None, asyncio.current_task()
        self._sent[task] = started = time.perf_counter()
        try:
            outcome = await self._outcome(path, body)
            if outcome.value is not None:
                actual = self._booked(outcome.value, price)
            elif outcome.refused:
                actual = 0.0
        finally:
            del self._sent[task]
            # A refused call costs nothing; one that was cut off may have been billed in full.
            self.purse.settle(reserved, actual)
        return outcome, time.perf_counter() - started

    def _booked(self, value: Mapping[str, Any], price: Price) -> float | None:
        """What a reply cost, as far as it tells."""
        try:
            usage = usage_of(value)
            self._tokens_in += usage.prompt or 0
            self._tokens_out += usage.completion or 0
            dollars = price(value)
            return dollars if dollars is not None and dollars >= 0.0 else None
        except Exception:  # a malformed account is no reason to lose the reply: it is booked at its worst
            return None

    async def _outcome(self, path: str, body: Mapping[str, Any]) -> _Outcome:
        assert self._transport is not None
        url = self.base_url + path
        try:
            for _ in range(REDIRECTS + 1):
                reply = await self._transport.post(url, body)
                self._reached = True
                target = urljoin(url, reply.location)
                if reply.status not in (307, 308) or not reply.location or _origin(target) != _origin(url):
                    break
                url = target
            return _read(url, reply)
        except TimeoutError:
            why, more = f"no reply within {self._timeout} s", _Outcome(retry=True)
        except Unconnected as error:
            why = f"cannot connect ({error}); is the server running?"
            more = _Outcome(retry=True, refused=True, unreachable=True)
        except TooLarge as error:
            why, more = f"{error}; refused while it was read", _Outcome()
        except (OSError, asyncio.IncompleteReadError) as error:
            why, more = f"connection failed ({error})", _Outcome(retry=True)
        except Exception as error:
            # The clients' own errors for replies that broke off; anything else is a bug and is raised.
            if type(error).__module__.split(".")[0] not in ("aiohttp", "httpx", "httpcore", "h11"):
                raise
            why, more = f"reply broke off ({type(error).__name__}: {error})", _Outcome(retry=True)
        return _Outcome(None, redact(f"{url}: {why}"), more.retry, more.refused, more.unreachable)

    def _backoff(self, failures: int, retry_after: float) -> float:
        backoff: float = min(self.max_backoff, self.backoff * 2.0 ** (failures - 1))
        return max(retry_after, float(backoff * self._jitter.uniform(0.5, 1.0)))


@dataclass(frozen=True, slots=True)
class _Outcome:
    value: Any = None
    why: str = ""
    """Redacted."""
    retry: bool = False
    refused: bool = False
    """The server said no before working on it."""
    unreachable: bool = False
    retry_after: float = 0.0
    error: type[ModelError] = ModelError
    """What a failure for good is raised as."""


def _read(url: str, reply: Reply) -> _Outcome:
    if 300 <= reply.status < 400:
        target = _origin(urljoin(url, reply.location)) if reply.location else "nowhere"
        why = f"HTTP {reply.status}: redirects to {target}, which is not followed; put the server's own address into the base URL"
        return _Outcome(why=redact(f"{url}: {why}"), refused=True)
    if reply.status >= 400:
        why = f"{url}: HTTP {reply.status}: {_said(reply.body, 500)}"
        if is_overflow(reply.status, reply.body):
            return _Outcome(why=redact(why), refused=True, error=ContextOverflow)
        return _Outcome(
            why=redact(why), retry=reply.status in RETRIED, refused=True, retry_after=_seconds(reply.retry_after)
        )
    try:
        value = received(redact_bytes(reply.body))
    except ValueError:
        return _Outcome(why=f"{url}: the reply is not JSON: {_said(reply.body, 200)!r}", retry=True)
    if not isinstance(value, dict) or not (value.get("choices") or value.get("data")):
        return _Outcome(why=f"{url}: the reply holds neither choices nor data: {_said(reply.body, 200)}", retry=True)
    return _Outcome(value=value)


def _cancelled() -> ModelError:
    return stopping.Stopped("stopped before the reply came") if stopping.requested() else ModelError("cancelled")


def _said(body: bytes, most: int) -> str:
    """The beginning of what a server said."""
    return redact(body[:SHOWN].decode(errors="replace"))[:most]


def _seconds(retry_after: str) -> float:
    """Retry-After is a number of seconds or a date."""
    if not retry_after:
        return 0.0
    try:
        return min(300.0, max(0.0, float(retry_after)))
    except ValueError:
        pass
    try:
        return min(300.0, max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time()))
    except (ValueError, OverflowError):
        return 0.0


def _origin(url: str) -> str:
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port or (443 if parts.scheme == 'https' else 80)}"


def _check_url(base_url: str) -> None:
    try:
        parts = urlsplit(base_url)
        parts.port  # noqa: B018  # looked at, because only then a wrong one raises
    except ValueError as error:
        raise ModelError(f"endpoint.base_url is no URL ({error})") from None
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ModelError(
            f"endpoint.base_url for {parts.hostname}: a name and password or a query in it would be written to files; "
            "put the key into the environment variable that endpoint.key_env names"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ModelError(
            f"endpoint.base_url must be an http or https URL such as http://127.0.0.1:8000/v1, found {base_url!r}"
        )
