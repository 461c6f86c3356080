"""An endpoint that collects calls and sends them as batches: half the price, and replies within a day instead of a second.

It has the interface of `memsys.llm.endpoint.Endpoint`, so that clients need no change. One thread takes the calls that arrive, sends
a batch when no call has arrived for a while, and polls its batches under way. `journal.py` says why a killed process repeats
nothing, and what several processes with the same cache file share. `Provider` makes the five requests of an OpenAI-compatible batch API
(upload, create, look up, list, download) with the openai package.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

from memsys.jsons import decoded, encoded, received
from memsys.llm import stopping
from memsys.llm.batching.journal import Batch, Journal, JournalledCall, Reply
from memsys.llm.endpoint import Call, Endpoint, Parse, Price, Result, Sent, Traffic, billed, parsed
from memsys.llm.network import check_url
from memsys.llm.outcome import RETRIED, outcome_of
from memsys.llm.pricing import ModelSettings, Reservation, SpendingCapReached
from memsys.llm.protocol import EndOfRun, ModelError, settle
from memsys.llm.secrets import redact
from memsys.llm.transport import HttpReply

ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
"""States after which a batch does not change."""
CLOCKS = 86_400.0
"""Seconds by which the provider's clock and ours may differ."""


class UnknownBatch(ModelError):
    """The provider does not know a batch or file that we sent."""


@dataclass(frozen=True, slots=True)
class Status:
    """A batch as the provider describes it."""

    id: str
    state: str
    output: str
    """The file with the replies; empty when there is none."""
    errors: str
    """The file with the failed calls; empty when there is none."""
    code: str
    """Code of the first error of a batch that failed as a whole, such as `token_limit_exceeded`."""
    why: str
    answered: int
    """Number of calls that have a response; 0 where the provider does not count them."""


class Provider:
    """The batch API of one server.

    Args:
        base_url: the server's URL up to and including `/v1`.
        key: API key.
        timeout: seconds after which a request without a reply fails.
        retries: further attempts of a request that fails, made by the package.
    """

    def __init__(self, base_url: str, key: str, *, timeout: float, retries: int) -> None:
        import httpx
        import openai

        self.base_url = base_url
        self._client = openai.OpenAI(
            base_url=base_url,
            api_key=key,
            timeout=timeout,
            max_retries=retries,
            http_client=httpx.Client(timeout=timeout, follow_redirects=False),  # type: ignore[arg-type]
        )

    def upload(self, name: str, lines: bytes) -> str:
        """Upload a batch file; return the provider's name for it."""
        with self._asking():
            return str(self._client.files.create(file=(name, lines), purpose="batch").id)

    def create(self, file: str, path: str, ours: str) -> Status:
        """Create a batch of an uploaded file, with our own name of it in its metadata.

        The request is sent only once: if the reply is lost, the batch may exist all the same, and `find` shows whether it does.
        """
        with self._asking():
            made = self._client.with_options(max_retries=0).batches.create(
                input_file_id=file,
                endpoint=f"/v1{path}",  # type: ignore[arg-type]
                completion_window="24h",
                metadata={"memsys": ours},
            )
            return _status(made.to_dict())

    def status(self, batch: str) -> Status:
        """Look a batch up.

        Raises:
            UnknownBatch: the provider has no batch of this name.
        """
        with self._asking(named=True):
            return _status(self._client.batches.retrieve(batch).to_dict())

    def find(self, ours: str, begun: float | None) -> Status | None:
        """The batch with our name in its metadata; None when the provider has none.

        Args:
            begun: seconds since the epoch at which we began it; the list, newest first, is read until batches are older.
        """
        with self._asking():
            for batch in self._client.batches.list(limit=100):
                if (batch.metadata or {}).get("memsys") == ours:
                    return _status(batch.to_dict())
                if begun is not None and batch.created_at and batch.created_at < begun - CLOCKS:
                    break
        return None

    def replies(self, file: str) -> list[tuple[str, tuple[int, bytes]]]:
        """The replies in an output or error file, as `replies_of`.

        Raises:
            UnknownBatch: the provider has no file of this name.
        """
        with self._asking(named=True):
            return list(replies_of(self._client.files.content(file).iter_lines()))

    def close(self) -> None:
        self._client.close()

    @contextmanager
    def _asking(self, *, named: bool = False) -> Iterator[None]:
        """Turn an error of the package into a `ModelError`.

        Args:
            named: the request names a batch or a file, which the provider may not know.
        """
        import openai

        try:
            yield
        except openai.APIStatusError as error:
            if error.status_code == 404 and named:
                raise UnknownBatch(f"{self.base_url} does not know it (HTTP 404)") from error
            if error.status_code in (404, 405, 501):
                raise EndOfRun(
                    f"{self.base_url} has no batch API (HTTP {error.status_code}): set endpoint.mode=live"
                ) from error
            why = redact(f"{self.base_url}: the batch API failed: {error}")[:500]
            raise (ModelError if error.status_code in RETRIED else EndOfRun)(why) from error
        except openai.OpenAIError as error:
            raise ModelError(redact(f"{self.base_url}: the batch API failed: {error}")[:500]) from error


def best(replies: Iterable[tuple[str, tuple[int, bytes]]]) -> dict[str, tuple[int, bytes]]:
    """The replies by name; of several replies to a call, the first good reply, or else the last reply."""
    chosen: dict[str, tuple[int, bytes]] = {}
    for name, reply in replies:
        if chosen.get(name, (0, b""))[0] != 200:
            chosen[name] = reply
    return chosen


def replies_of(lines: Iterator[str]) -> Iterator[tuple[str, tuple[int, bytes]]]:
    """Name, HTTP status and body of each undamaged line of an output file; an error without a response has status 0."""
    for line in lines:
        if not line.strip():
            continue
        try:
            value = received(line.encode("utf-8", "surrogatepass"))
        except ValueError:
            continue
        if isinstance(value, dict) and isinstance(value.get("custom_id"), str):
            response = value.get("response")
            if isinstance(response, dict) and not value.get("error"):
                code = response.get("status_code")  # vLLM leaves it out in some releases
                yield value["custom_id"], (code if type(code) is int else 200, encoded(response.get("body")))
            else:
                yield value["custom_id"], (0, encoded({"error": value.get("error")}))


def _status(batch: Mapping[str, Any]) -> Status:
    errors = (batch.get("errors") or {}).get("data") or [{}]
    answered = (batch.get("request_counts") or {}).get("completed")
    return Status(
        id=str(batch["id"]),
        state=str(batch.get("status")),
        output=batch.get("output_file_id") or "",
        errors=batch.get("error_file_id") or "",
        code=str(errors[0].get("code") or ""),
        why=str(errors[0].get("message") or ""),
        answered=answered if type(answered) is int else 0,
    )


MOST_BYTES = 100_000_000
"""Maximum size of a batch file in bytes; OpenAI takes 200 MB."""
BYTES_A_TOKEN = 3
"""Assumed bytes per token in the estimate of enqueued tokens; English text has about four, so the estimate is high."""
ENQUEUED_RETRIES = 100
"""Maximum number of times that a call is sent again because the provider's queue was full."""
FORGET = "`python -m scripts batch forget {}` forgets it, and the next run sends its calls again"


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """Settings for sending and polling batches (`endpoint.batch`)."""

    idle: float = 20.0
    """Seconds without a new call after which the open calls are sent."""
    poll: float = 30.0
    """Seconds between two status requests for the batches under way."""
    most_calls: int = 50_000
    """Maximum number of calls in a batch."""
    enqueued_tokens: int | None = None
    """Maximum number of prompt tokens in all batches under way (estimated); None: until the provider refuses."""
    discount: float = 0.5
    """Price of a batched call divided by that of a live one."""
    collect: bool = False
    """Send nothing: calls stay in the journal for `memsys-bench batch export`, and fail."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A caller that waits for the reply to a call."""

    call: JournalledCall
    future: Future[Any]
    reserved: Reservation
    price: Price
    parse: Parse[Any]


class BatchEndpoint:
    """Batches in front of a live endpoint, which keeps its other calls.

    Args:
        live: the server, with the key's variable, the retry policy and the spending cap.
        journal: tables in the cache file.
    """

    named = True

    def __init__(self, live: Endpoint, journal: Journal, settings: BatchSettings) -> None:
        self.live, self.journal, self.settings = live, journal, settings
        self.base_url, self.label, self.purse = live.base_url, live.label, live.purse
        self._lock, self._wake = threading.Lock(), threading.Event()
        self._waiting: dict[str, list[_Waiting]] = {}
        self._arrived: list[_Waiting] = []
        self._last_arrival = self._last_look = 0.0
        self._failing: tuple[float | None, str] = (None, "")  # since when (monotonic) the provider fails, and how
        self._begun: set[str] = set()  # batches of this process
        self._full: set[str] = set()  # batches under way when the provider's queue was full
        self._fetches: dict[str, int] = {}  # by batch: how often its files lacked replies
        self._ended: BaseException | None = None
        self._most_tokens = self.settings.enqueued_tokens
        self._provider: Provider | None = None
        self._worker: threading.Thread | None = None
        self._closed = False
        self._finished = 0
        stopping.senders.add(self)
        stopping.keepers.add(self)

    def serve(self, settings: ModelSettings) -> None:
        """As `Endpoint.serve`; a batch has no limits per minute."""
        check_url(self.base_url)

    def start(self, call: Call, parse: Parse[Result]) -> Future[Result]:
        """As `Endpoint.start`; the reply comes with the batch that holds the call.

        Raises:
            Stopped: the user requested a stop.
            SpendingCapReached: the call might cost more than is left.
        """
        stopping.check()
        discounted = None if call.worst is None else call.worst * self.settings.discount
        future: Future[Result] = Future()
        reserved = self.purse.reserve(discounted, (self.base_url, call.body.get("model")))
        noted = JournalledCall(call.name, call.path, encoded(call.body))
        waiting = _Waiting(noted, future, reserved, call.price, parse)
        with self._lock:
            self._last_arrival = time.monotonic()
            if (ended := self._ended) is None:
                self._arrived.append(waiting)
            if self._worker is None and ended is None:
                self._worker = threading.Thread(target=self._work, name="batches", daemon=True)
                self._worker.start()
        if ended is not None:
            self._fail([waiting], ended)
        self._wake.set()
        return future

    def snapshot(self) -> Traffic:
        """Calls that wait for a batch or in one count as batched, not as in flight."""
        with self._lock:
            batched = len(self._waiting) + len(self._arrived)
        since, why = self._failing
        paused = None if since is None else time.time() - (time.monotonic() - since)
        return Traffic(0, 0, self._finished, 0, 0, 0, 0.0, paused, why, batched=batched)

    def refuse(self) -> None:
        """Fail all calls; batches at the provider stay there, and the same command fetches them."""
        self._fail_all(stopping.Stopped("batches under way stay at the provider; run the same command to fetch them"))

    def finish(self, seconds: float) -> int:
        """Return at once: the provider keeps the batches, so nothing is lost."""
        return 0

    def flush(self, seconds: float) -> None:
        """Nothing to do: the journal has everything before the provider does."""

    def close(self) -> None:
        """End the thread and close the journal; batches under way stay at the provider. A second call does nothing."""
        self._closed = True
        self._wake.set()
        if self._worker is not None:
            self._worker.join(timeout=3)
        self._fail_all(stopping.Stopped("the batches were closed before the reply came"), ended=True)
        if self._worker is not None and self._worker.is_alive():
            return  # in a request: its lock is held until the process ends, so that no other process sends the same batch
        if self._provider is not None:
            self._provider.close()
        self.journal.close()
        stopping.keepers.discard(self)

    # --- in the worker's thread ------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            self.journal.forget_answered()
            if not self.settings.collect:
                check_url(self.base_url)
                self._provider = Provider(
                    self.base_url,
                    self.live.key() or "none",
                    timeout=self.live.limits.timeout,
                    retries=self.live.limits.retries,
                )
            while not self._closed:
                self._wake.wait(min(self.settings.idle, self.settings.poll) / 2)
                self._wake.clear()
                self._step()
        except BaseException as error:  # a waiting caller must not wait for ever
            self._fail_all(error, ended=True)
            if not isinstance(error, ModelError):
                raise
        finally:
            self.journal.release()

    def _step(self) -> None:
        self._take_arrivals()
        if self.settings.collect:
            return
        try:
            now = time.monotonic()
            if now - self._last_arrival >= self.settings.idle:
                self._fill_batches()
            if now - self._last_look >= self.settings.poll:
                self._last_look = now
                self.journal.take_over(self.base_url)
                for batch in self.journal.under_way(self.base_url, ours=True):
                    self._look_after(batch)
                self._answer_all()
                self._failing = (None, "")  # not in a step without a look, which says nothing about the provider
        except EndOfRun:
            raise
        except ModelError as error:
            since = self._failing[0] or time.monotonic()
            self._failing = (since, str(error))
            if time.monotonic() - since > self.live.limits.patience:
                raise EndOfRun(f"{error}; run the same command to fetch what the provider has") from error

    def _take_arrivals(self) -> None:
        with self._lock:
            arrived, self._arrived = self._arrived, []
            for waiting in arrived:
                self._waiting.setdefault(waiting.call.name, []).append(waiting)
        missing = [waiting.call for waiting in arrived if not self._answer(waiting.call.name)]
        self.journal.add(missing)
        if self.settings.collect:
            error = ModelError("collected, not sent: `python -m scripts batch export FILE` writes the batch file")
            for call in missing:
                self._fail(self._take_callers(call.name), error)

    def _answer_all(self) -> None:
        """Answer every caller whose reply is there, whichever process fetched it; note as ours the calls that left the journal."""
        # In this order: a call moves from the first to the second.
        noted, replied = self.journal.noted(), self.journal.replied()
        with self._lock:
            waiting = {name: each[0].call for name, each in self._waiting.items()}
        self.journal.add([call for name, call in waiting.items() if name not in noted and name not in replied])
        for name in waiting.keys() & replied:
            self._answer(name)

    def _fill_batches(self) -> None:
        """Put our open calls into batches: one path and model each, within the size limits, and no more tokens than the queue takes."""
        under_way = self.journal.under_way(self.base_url)
        if self._full and self._full <= {batch.id for batch in under_way}:
            return
        self._full = set()
        enqueued = sum(self._tokens(self.journal.calls_of(batch)) for batch in under_way)
        allowed = [call for call in self.journal.open_calls(ours=True) if self._allowed(call)]
        for chunk in _chunks(allowed, self.settings.most_calls, self._most_tokens):
            enqueued += self._tokens(chunk)
            if self._most_tokens is not None and enqueued > max(self._most_tokens, self._tokens(chunk)):
                return
            batch = self.journal.begin(chunk, self.base_url)
            self._begun.add(batch.id)
            self._look_after(batch)

    def _allowed(self, call: JournalledCall) -> bool:
        """Whether the cap permits a call now; the first call to a model is sent alone until it is answered (`memsys.llm.pricing.Purse`)."""
        if self.purse.max_usd is None:
            return True
        with self._lock:
            waiting = self._waiting.get(call.name, [])
        try:
            return bool(waiting) and self.purse.batched(waiting[0].reserved)
        except SpendingCapReached as error:
            self._fail(self._take_callers(call.name), error)
            return False

    @staticmethod
    def _tokens(calls: Sequence[JournalledCall]) -> int:
        return sum(len(call.body) for call in calls) // BYTES_A_TOKEN

    def _look_after(self, batch: Batch) -> None:
        """Take a batch one step further: send it to the provider, or fetch its replies."""
        assert self._provider is not None
        try:
            if batch.at_provider is None:
                # The process that began it may have ended before or after it sent the batch to the provider.
                at_provider = self._provider.find(batch.id, batch.begun)
                if at_provider is None and batch.id not in self._begun:
                    # Perhaps no caller waits for these calls, and their price is not reserved: `_answer_all` notes those that we wait for.
                    self.journal.end(batch, {}, [])
                    return
                if (status := at_provider) is None:
                    lines = b"".join(call.line() for call in self.journal.calls_of(batch))
                    file = self._provider.upload(f"memsys-{batch.id}.jsonl", lines)
                    status = self._provider.create(file, batch.path, batch.id)
                batch = self.journal.accepted(batch, status.id)
            else:
                status = self._provider.status(batch.at_provider)
            if status.state in ENDED:
                self._collect(batch, status)
        except UnknownBatch as error:
            raise EndOfRun(
                f"{error}: batch {batch.at_provider} or a file of it, which another key may have made; "
                f"{FORGET.format(batch.at_provider)}"
            ) from error

    def _collect(self, batch: Batch, status: Status) -> None:
        """Keep the replies of a batch that has ended; calls without a usable reply are open again as often as calls are retried."""
        assert self._provider is not None
        files = [file for file in (status.output, status.errors) if file]
        came = best(reply for file in files for reply in self._provider.replies(file))
        calls = self.journal.calls_of(batch)
        there = {call.name: came[call.name] for call in calls if call.name in came}
        responses = sum(code != 0 for code, _ in came.values())  # the other lines say that a call has none
        missing = len(calls) - len(there) if status.state == "completed" else status.answered - responses
        if missing > 0:
            self._fetch_again(batch, there, missing)
            return
        full = status.code == "token_limit_exceeded"
        if full:
            self._most_tokens = max(1, self._tokens(calls) // 2)
        replies, again = self._sorted(calls, came, status, full)
        self.journal.end(batch, replies, again)
        if full:
            self._full = {other.id for other in self.journal.under_way(self.base_url)}
        for name in replies:
            self._answer(name)
        if status.state == "cancelled":
            raise EndOfRun(
                f"batch {status.id} was cancelled at {self.base_url}: {len(calls) - len(replies)} of its {len(calls)} calls have "
                "no reply and are not sent again now; run the same command to send them"
            )

    def _sorted(
        self, calls: Sequence[JournalledCall], came: Mapping[str, Reply], status: Status, full: bool
    ) -> tuple[dict[str, Reply], list[str]]:
        """The replies to keep, and the names of the calls to send again; those of a cancelled batch without a reply are in neither."""
        most = ENQUEUED_RETRIES if full else self.live.limits.retries
        lost = encoded({"error": f"the batch is {status.state}: {status.why or 'it holds no reply to this call'}"})
        failed_as_a_whole = status.state == "failed" and not full
        replies: dict[str, Reply] = {}
        again: list[str] = []
        for call in calls:
            code, body = came.get(call.name, (0, lost))
            if status.state == "cancelled" and code != 200:
                continue
            if (code == 0 or code in RETRIED) and call.attempts <= most and not failed_as_a_whole:
                again.append(call.name)
            else:
                replies[call.name] = (code, body)
        return replies, again

    def _fetch_again(self, batch: Batch, came: Mapping[str, Reply], missing: int) -> None:
        """Keep the good replies of a torn file; its other calls are paid for, so the file is fetched again and they are not resent."""
        good = {name: reply for name, reply in came.items() if reply[0] == 200}
        self.journal.keep(good)
        for name in good:
            self._answer(name)
        self._fetches[batch.id] = self._fetches.get(batch.id, 0) + 1
        if self._fetches[batch.id] > self.live.limits.retries:
            raise EndOfRun(
                f"{self.base_url}: the files of {batch.at_provider} lack {missing} replies each time they are fetched; "
                f"run the same command to try again, or {FORGET.format(batch.at_provider)}"
            )

    def _answer(self, name: str) -> bool:
        """Hand the reply to a call to its callers, if there is a reply."""
        reply = self.journal.reply(name)
        if reply is None:
            return False
        status, body = reply
        outcome = outcome_of(f"{self.base_url} (batch)", HttpReply(status or 500, encoded(body)))
        if outcome.value is None:
            self.journal.forget(name)  # the next run must not take an error as the answer
            self._fail(self._take_callers(name), outcome.error(outcome.why))
        else:
            for one in self._take_callers(name):
                dollars = billed(one.price, outcome.usage)
                self.purse.settle(one.reserved, None if dollars is None else dollars * self.settings.discount)
                sent = Sent(outcome.value, outcome.usage, 0.0, one.call.attempts + 1)
                settle(one.future, partial(parsed, f"{self.base_url} (batch)", one.parse, sent))
        return True

    def _take_callers(self, name: str) -> list[_Waiting]:
        """Remove a call that has ended from the waiting ones; return its callers."""
        with self._lock:
            waiting = self._waiting.pop(name, [])
        self._finished += len(waiting)
        return waiting

    def _fail_all(self, error: BaseException, *, ended: bool = False) -> None:
        """Fail all calls; `ended` when the worker's thread ends, so that later calls fail at once."""
        with self._lock:
            self._ended = error if ended else self._ended
            waiting = [one for many in self._waiting.values() for one in many] + self._arrived
            self._waiting, self._arrived = {}, []
        self._fail(waiting, error)

    def _fail(self, waiting: Sequence[_Waiting], error: BaseException) -> None:
        for one in waiting:
            self.purse.settle(one.reserved, 0.0)
            one.future.set_exception(error)


def _chunks(
    calls: Sequence[JournalledCall], most_calls: int, most_tokens: int | None
) -> Iterator[list[JournalledCall]]:
    """Divide the calls into lists that fit into a batch: of one path and one model, in the order of their names."""

    def kind(call: JournalledCall) -> tuple[str, str]:
        return call.path, str(decoded(call.body).get("model"))

    most_bytes = MOST_BYTES if most_tokens is None else min(MOST_BYTES, most_tokens * BYTES_A_TOKEN)
    for _, same in groupby(sorted(calls, key=kind), key=kind):
        chunk: list[JournalledCall] = []
        size = 0
        for call in same:
            if chunk and (len(chunk) >= most_calls or size + len(call.body) > most_bytes):
                yield chunk
                chunk, size = [], 0
            chunk.append(call)
            size += len(call.body)
        yield chunk
