"""One OpenAI-compatible server: its in-flight limit, retries, pauses during an outage, and the state of its calls.

No call blocks a thread: `start` hands a coroutine to the single event loop and returns a future. `transport.py` has the loop and the
HTTP transport.
"""

from __future__ import annotations

import asyncio
import atexit
import random
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from memsys.llm import network, stopping
from memsys.llm.limits import CallQueue, estimated_tokens, urgency
from memsys.llm.outcome import (
    Outcome,
    check_base_url,
    key_for,
    located,
    note_unencrypted,
    origin,
    outcome_of,
    redirected,
)
from memsys.llm.pricing import ModelSettings, Purse
from memsys.llm.protocol import EndOfRun, ModelError, Reply, settle
from memsys.llm.replies import Usage
from memsys.llm.secrets import redact
from memsys.llm.transport import LeanTransport, TooLarge, Unconnected, Untrusted, event_loop

Price = Callable[[Usage], float | None]
"""Computes the cost of a reply in US dollars; None when the reply has no usage or the price is unknown."""


@dataclass(frozen=True, slots=True)
class Sent:
    """The reply to a call."""

    value: Any
    """The decoded reply."""
    usage: Usage
    """Its token counts."""
    seconds: float
    """Seconds of the successful attempt."""
    attempts: int


@dataclass(frozen=True, slots=True)
class Call:
    """A call to a server."""

    path: str
    body: Mapping[str, Any]
    worst: float | None
    """Its highest possible cost in US dollars; None: unknown."""
    price: Price
    """Computes its actual cost."""
    name: str = ""
    """Its cache key in hexadecimal digits, the `custom_id` of a batch; empty where the server does not want names (`Server.named`)."""
    patient: bool = True
    """Whether the call is worth a pause of all calls until the server accepts connections again (`EndpointLimits.patience`)."""


Result = TypeVar("Result")
Parse = Callable[[Sent], Result]
"""Turns a reply into the call's result."""


class Server(Protocol):
    """The interface of a server to clients: calls one by one (`Endpoint`) or in batches (`batching.endpoint.BatchEndpoint`)."""

    base_url: str
    label: str
    named: bool
    """Whether `start` wants the name of each call; only batches do."""

    def serve(self, settings: ModelSettings) -> None:
        """Get ready for the calls of a model; raises `EndOfRun` where `network=false` forbids this server."""

    def start(self, call: Call, parse: Parse[Result]) -> Future[Result]:
        """Send a call and return a future of the reply as `parse` returns it."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """The state of an endpoint at one moment. Any thread may take one."""

    in_flight: int
    """Calls that were sent and are not answered yet."""
    waiting: int
    """Calls that wait for a free slot, for their next attempt or for the end of a pause."""
    finished: int
    """Calls that have ended, with or without success."""
    retried: int
    """Attempts after the first."""
    tokens_in: int
    """Prompt tokens as the replies report them."""
    tokens_out: int
    """Completion tokens as the replies report them."""
    oldest_seconds: float
    """Seconds since the oldest call in flight was sent; 0 when there is none."""
    paused_since: float | None
    """Unix time at which the current pause began; None when there is no pause."""
    paused_why: str
    """Reason for the pause; empty when there is none."""
    batched: int = 0
    """Calls that wait for a batch, or in one that the provider works on."""
    limit: int = 0
    """Calls that may be in flight now; 0 when unknown."""
    most: int = 0
    """Calls that may be in flight when the server is well (`endpoint.in_flight`)."""
    rpm: float | None = None
    """Maximum number of requests a minute; None when no limit is known."""
    dollars: float = 0.0
    """Amount spent by this process so far on calls of known price; of several snapshots of one purse, only the first has it."""


REDIRECTS = 3
"""Maximum number of redirects of a call; all must stay on the server of the base URL."""
PAUSES = 3
"""Maximum number of times that a call waits for the end of an outage."""


@dataclass(frozen=True, slots=True)
class EndpointLimits:
    """Limits on the use of a server, and the retry policy of a call."""

    in_flight: int = 64
    """Maximum number of calls in flight, over all models; fewer while the server is overloaded (`memsys.llm.limits`)."""
    timeout: float = 120.0
    """Seconds after which an attempt without a reply fails."""
    retries: int = 6
    """Maximum number of further attempts after a failure that may be temporary."""
    backoff: float = 0.5
    """Seconds before the first retry; doubles each time up to `max_backoff`, with jitter."""
    max_backoff: float = 30.0
    patience: float = 600.0
    """Seconds that the run waits when a server that has answered before refuses connections; 0 = it does not wait."""
    max_reply_mb: float = 32.0
    """A reply with more decompressed megabytes is rejected while it is read."""
    rpm: float | None = None
    """Maximum number of requests a minute to each model without its own `rpm`; None = as many as the server takes."""
    tpm: float | None = None
    """The same for tokens, prompt and reply together."""

    @property
    def most_bytes(self) -> int:
        """`max_reply_mb` in bytes."""
        return int(self.max_reply_mb * 2**20)


class Endpoint:
    """One server with its connections, its in-flight limit and its retry policy.

    Args:
        base_url: the server's URL up to and including `/v1`.
        label: part of the cache key, so that answers of different servers are kept apart; the base URL if empty.
        key_env: environment variable that holds the API key; a server on this machine needs none.
        purse: the spending cap; None = no cap.

    Raises:
        ModelError: the base URL is not an http(s) URL, or contains a user name, a password or a query, which would end up in files.
    """

    def __init__(
        self,
        base_url: str,
        limits: EndpointLimits = EndpointLimits(),
        *,
        label: str = "",
        key_env: str = "OPENAI_API_KEY",
        purse: Purse | None = None,
    ) -> None:
        check_base_url(base_url)
        self.base_url, self.label, self.key_env = base_url.rstrip("/"), label or base_url, key_env
        self.limits, self.purse = limits, purse or Purse()
        self._jitter = random.Random(base_url)
        self._lock = threading.Lock()
        self._transport: LeanTransport | None = None
        self.places = CallQueue(limits.in_flight)
        self.latency: float | None = None
        """Seconds of a short request, measured before the run; None when none was sent."""
        self._tasks: set[asyncio.Task[None]] = set()
        # Only the event loop's thread writes these; `snapshot` reads them from other threads.
        self._sent: dict[asyncio.Task[Any] | None, float] = {}
        self._finished = self._retried = self._tokens_in = self._tokens_out = 0
        self._reached = False
        self._outage: asyncio.Task[None] | None = None
        self._paused: tuple[float | None, str] = (None, "")
        stopping.senders.add(self)

    named = False
    _judged = staticmethod(outcome_of)

    def serve(self, settings: ModelSettings) -> None:
        """Get ready for the calls of a model: check that they are permitted, and take over its limits of requests and tokens a minute.

        Raises:
            EndOfRun: the network is forbidden, and the base URL is on another machine.
        """
        network.check_url(self.base_url)
        rpm, tpm = settings.rpm, settings.tpm
        self.places.rates.allow(
            settings.model, self.limits.rpm if rpm is None else rpm, self.limits.tpm if tpm is None else tpm
        )

    def start(self, call: Call, parse: Parse[Result]) -> Future[Result]:
        """Send a call, with retries, and return a future of the reply as `parse` returns it.

        The future raises `ModelError`, also when `parse` raises another exception, because then the reply is malformed.

        Raises:
            Stopped: the user requested a stop.
        """
        stopping.check()
        if self._transport is None:
            self._connect()
        future: Reply[Result] = Reply(lambda reply: self.places.saved(reply, event_loop()))
        event_loop().call_soon_threadsafe(self._begin, future, call, parse, urgency())
        return future

    def snapshot(self) -> Traffic:
        """The state of this server's calls at this moment."""
        sent = list(self._sent.values())
        since, why = self._paused
        return Traffic(
            in_flight=len(sent),
            waiting=max(0, len(self._tasks) - len(sent)),
            finished=self._finished,
            retried=self._retried,
            tokens_in=self._tokens_in,
            tokens_out=self._tokens_out,
            oldest_seconds=max(0.0, time.perf_counter() - min(sent)) if sent else 0.0,
            paused_since=since,
            paused_why=why,
            limit=self.places.adaptive.present,
            most=self.places.adaptive.most,
            rpm=self.places.rates.per_minute(),
        )

    def refuse(self) -> None:
        """Fail the calls that are not sent yet: those that wait for a free slot, for their next attempt or for the server."""

        def cancel_unsent() -> None:
            if self._outage is not None:
                self._outage.cancel()
            for task in self._tasks - self._sent.keys():
                task.cancel()

        if self._tasks:
            event_loop().call_soon_threadsafe(cancel_unsent)

    def finish(self, seconds: float) -> int:
        """Wait up to `seconds` until the calls in flight have replies and these are on disk; cancel the rest and return their number."""
        self._wait_for_tasks(seconds)
        unfinished = list(self._tasks)
        for task in unfinished:
            event_loop().call_soon_threadsafe(task.cancel)
        unsaved = len(self.places.unsaved)
        self._wait_for_tasks(1.0)
        return len(unfinished) + unsaved

    def _wait_for_tasks(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (self._tasks or self.places.unsaved) and time.monotonic() < deadline:
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
                network.check_url(self.base_url)
                key = self.key()
                note_unencrypted(self.base_url, self.key_env, key)
                self._transport = self._new_transport(key)
                atexit.register(self.close)

    def _new_transport(self, key: str) -> LeanTransport:
        limits = self.limits
        return LeanTransport(self.base_url, key or "none", limits.in_flight, limits.timeout, limits.most_bytes)

    def key(self) -> str:
        """As `memsys.llm.outcome.key_for`."""
        return key_for(self.base_url, self.key_env)

    # --- in the event loop's thread ------------------------------------------------------------------------------------

    def _begin(self, future: Reply[Result], call: Call, parse: Parse[Result], urgency: float) -> None:
        # Not asyncio.run_coroutine_threadsafe: it adds two more futures, which take a twentieth of a call's CPU time.
        task = event_loop().create_task(self._run(future, call, parse, urgency))
        self._tasks.add(task)  # the event loop holds only a weak reference to a task
        task.add_done_callback(lambda task: self._on_done(task, future))

    def _on_done(self, task: asyncio.Task[None], future: Reply[Result]) -> None:
        self._tasks.discard(task)
        self._finished += 1
        if not future.done():  # cancelled before its first step, so `_run` never started
            future.set_exception(_cancelled())

    async def _run(self, future: Reply[Result], call: Call, parse: Parse[Result], urgency: float) -> None:
        try:
            await self._send(future, call, parse, urgency)
        except asyncio.CancelledError:
            future.set_exception(_cancelled())  # not re-raised: the call ends here, and the future tells the caller
        except BaseException as error:
            if not future.done():
                future.set_exception(error)
            if not isinstance(error, Exception):
                raise

    async def _send(self, future: Reply[Result], call: Call, parse: Parse[Result], urgency: float) -> None:
        """Make attempts until one succeeds, and hand the reply over.

        Raises:
            Stopped: the user requested a stop.
            Unreachable: the server did not accept connections in time.
            ModelError: the attempts failed for good.
        """
        attempts = failures = refusals = pauses = 0
        spent_seconds, model, tokens = 0.0, str(call.body.get("model", "")), estimated_tokens(call.body)
        while True:
            stopping.check()
            if self._outage is not None:
                await asyncio.shield(self._outage)  # cancelling one call must not end the wait of the others
                stopping.check()
            await self.places.take(model, tokens, urgency)
            try:
                if self._outage is not None or stopping.requested():  # it began during this call's wait for a slot
                    continue
                attempts += 1
                self._retried += attempts > 1
                outcome, seconds = await self._attempt(call, tokens)
                spent_seconds += seconds
                if outcome.value is not None:
                    sent = Sent(outcome.value, outcome.usage, seconds, attempts)
                    if future.kept:
                        self.places.unsaved.add(future)
                    return settle(future, partial(parsed, self.base_url, parse, sent))
            finally:
                self.places.release(urgency)
            if outcome.unreachable:
                refusals += 1
                if refusals > (self.limits.retries if self._reached else min(self.limits.retries, 2)):
                    pauses = pauses + 1 if call.patient else PAUSES + 1
                    await self._pause(outcome.why, pauses, attempts)
                    refusals = 0
                    continue
            else:
                failures += 1
                if not outcome.retry or failures > self.limits.retries:
                    raise outcome.error(outcome.why, attempts=attempts, seconds=spent_seconds)
            doubled = self.limits.backoff * 2.0 ** (max(failures, refusals) - 1)
            backoff = min(self.limits.max_backoff, doubled) * self._jitter.uniform(0.5, 1.0)
            await asyncio.sleep(max(outcome.retry_after, backoff))

    async def _pause(self, why: str, pauses: int, attempts: int) -> None:
        """Pause all calls until the server accepts connections again.

        Raises:
            Stopped: the user requested a stop, after which no pause begins.
            Unreachable: the server does not do so in time, was never reached, or accepts connections from the probe only.
        """
        stopping.check()
        if not self._reached or self.limits.patience <= 0 or pauses > PAUSES:
            raise Unreachable(why, attempts=attempts)
        if self._outage is None:
            self._paused = (time.time(), why)
            self._outage = asyncio.get_running_loop().create_task(until_back(self.base_url, why, self.limits.patience))
            self._outage.add_done_callback(self._resume)
        await asyncio.shield(self._outage)

    def _resume(self, outage: asyncio.Task[None]) -> None:
        self._outage, self._paused = None, (None, "")
        if not outage.cancelled():
            outage.exception()  # the waiting calls raise it; retrieved here so that asyncio does not log it as never retrieved

    async def _attempt(self, call: Call, tokens: int) -> tuple[Outcome, float]:
        """Make one attempt; returns its outcome and its seconds. Its highest possible cost stays reserved until it ends."""
        reserved = await self.purse.admitted(call.worst, (self.base_url, call.body.get("model")))
        actual, task = None, asyncio.current_task()
        sent, self._sent[task] = time.monotonic(), time.perf_counter()
        started, full = self._sent[task], self.places.full
        try:
            outcome = await self._outcome(call.path, call.body)
            if outcome.value is not None:
                self._tokens_in += outcome.usage.prompt or 0
                self._tokens_out += outcome.usage.completion or 0
                actual = billed(call.price, outcome.usage)
            elif outcome.refused:
                actual = 0.0
        finally:
            del self._sent[task]
            # A refused call costs nothing; one that was interrupted may have been billed in full.
            self.purse.settle(reserved, actual)
        seconds = time.perf_counter() - started
        self._learn(call.body, outcome, sent, seconds, tokens, full)
        return outcome, seconds

    def _learn(
        self, body: Mapping[str, Any], outcome: Outcome, sent: float, seconds: float, tokens: int, full: bool
    ) -> None:
        """Adapt the limits to the outcome of an attempt."""
        places, model = self.places, str(body.get("model", ""))
        if outcome.limits:
            places.rates.heard(model, outcome.limits)
        if outcome.overloaded:
            places.adaptive.overloaded(sent)
            places.rates.refused(model, outcome.retry_after)
        elif outcome.value is not None:
            limit = body.get("max_tokens", body.get("max_completion_tokens", 0))
            places.adaptive.answered((model, limit), seconds, full=full)
            if outcome.usage.prompt is not None:
                places.rates.corrected(model, tokens, outcome.usage.prompt + (outcome.usage.completion or 0))

    async def _outcome(self, path: str, body: Mapping[str, Any]) -> Outcome:
        assert self._transport is not None
        url = located(self.base_url, path)
        try:
            for _ in range(REDIRECTS + 1):
                reply = await self._transport.post(url, body)
                self._reached = True
                target = redirected(url, reply)
                if reply.status not in (307, 308) or not target or origin(target) != origin(url):
                    break
                url = target
            return self._judged(url, reply)
        except TimeoutError:
            why, failure = f"no reply within {self.limits.timeout} s", Outcome(retry=True)
        except Unconnected as error:
            why = f"cannot connect ({error}); is the server running?"
            failure = Outcome(retry=True, refused=True, unreachable=True)
        except TooLarge as error:
            why, failure = f"{error}; rejected while it was read", Outcome()
        except (OSError, asyncio.IncompleteReadError) as error:
            failure = Outcome(retry=True, refused=isinstance(error, Untrusted))
            why = f"connection failed ({error})"
        except Exception as error:
            # aiohttp's own errors for interrupted replies; any other exception is a bug and is raised.
            if type(error).__module__.split(".")[0] != "aiohttp":
                raise
            why, failure = f"reply broke off ({type(error).__name__}: {error})", Outcome(retry=True)
        return replace(failure, why=redact(f"{url}: {why}"))


def billed(price: Price, usage: Usage) -> float | None:
    """The cost of a reply in US dollars. None when it is unknown, negative or not computable, and so counts as the highest."""
    try:
        dollars = price(usage)
        return dollars if dollars is not None and dollars >= 0.0 else None
    except Exception:  # the reply is kept
        return None


def parsed(where: str, parse: Parse[Result], sent: Sent) -> Result:
    """A reply as `parse` returns it.

    Raises:
        ModelError: the reply is malformed; keys are redacted.
    """
    try:
        return parse(sent)
    except ModelError:
        raise
    except Exception as error:
        why = redact(f"{where}: unexpected reply ({error!r})")[:500]
        raise ModelError(why, attempts=sent.attempts, seconds=sent.seconds) from error


def _cancelled() -> ModelError:
    return stopping.Stopped("stopped before the reply came") if stopping.requested() else ModelError("cancelled")


FIRST_PAUSE, LONGEST_PAUSE = 2.0, 30.0
"""Seconds between two probes: the first pause, which doubles each time, and the longest."""
CONNECTING = 5.0
"""Time limit of a probe in seconds."""


class Unreachable(EndOfRun):
    """The server does not accept connections, and the run no longer waits for it."""


async def until_back(url: str, why: str, patience: float) -> None:
    """Wait until the server of a URL accepts connections again. Prints to standard error when the pause begins and ends.

    Raises:
        Unreachable: the server did not accept connections within `patience` seconds.
    """
    started, pause = time.monotonic(), FIRST_PAUSE
    _print(f"paused since {time.strftime('%H:%M:%S')}: {why}; waiting for the server, for up to {patience:g} s")
    while (left := patience - (time.monotonic() - started)) > 0:
        await asyncio.sleep(min(pause, left))
        if await accepts(url):
            _print(
                f"resumed after {time.monotonic() - started:.0f} s: {urlsplit(url).netloc} accepts connections again"
            )
            return
        pause = min(LONGEST_PAUSE, 2 * pause)
    raise Unreachable(f"{why}; waited {patience:g} s for the server; start it and run the same command again to resume")


async def accepts(url: str) -> bool:
    """Whether the server of a URL accepts a connection. Sends nothing."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(CONNECTING):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except OSError:  # a TimeoutError is one
        return False
    writer.close()
    return True


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
