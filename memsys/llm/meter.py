"""Cost accounting: calls, tokens and provider seconds of each step.

`metering()` opens a ledger for the current context; `Metered` (a wrapper around a model) and the embedders write into it. The ledger
is looked up in the caller's thread at `submit`, so an answer that arrives in the event loop's thread is still charged to the step
that made the call.

A tracer, such as that of `eval.report.otel_log`, is told of memory operations and model calls as well; without a tracer nothing happens.
No tracer is imported here, because the modules that memories and the run loop import are part of a run's identity.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

from memsys.llm import stopping
from memsys.llm.protocol import LLM, Awaited, Completion, Request, settle


class Recorder(Protocol):
    """The interface of a tracer."""

    def operation(self, phase: str, store: str, subject: str) -> AbstractContextManager[None]:
        """A step of a memory: `write` of a unit, `consolidate`, `read` for a question, or `close`; other phases are ignored."""

    def query(self, text: str) -> None:
        """The query of the current operation."""

    def records(self, records: Sequence[tuple[str, str]]) -> None:
        """Ids and texts of the records that the current operation stores or recalls."""

    def chat(self, model: str, request: Request) -> Callable[[Completion | BaseException], None]:
        """Note that a call of a model begins in the current operation; the returned function is called with its outcome."""

    def embedding(self, model: str) -> AbstractContextManager[Callable[[int], None]]:
        """Trace the block as a call of an embedder; yields a function that takes its tokens."""

    def resumable(self) -> Callable[[], AbstractContextManager[None]]:
        """A context to open later, from any thread: calls inside it belong to the present operation, which may have ended by then."""


recorder: Recorder | None = None
"""The tracer of this process, to which everything is reported from when it is set; None for none."""


@contextmanager
def operation(phase: str, store: str, subject: str = "") -> Iterator[None]:
    """Name the block as a step of a memory, for a message that it hangs (`stopping.steps`) and for the tracer (`Recorder.operation`)."""
    thread = threading.get_ident()
    stopping.steps[thread] = f"{phase} {subject} of {store}" if subject else f"{phase} of {store}"
    try:
        with nullcontext() if recorder is None else recorder.operation(phase, store, subject):
            yield
    finally:
        stopping.steps.pop(thread, None)


@dataclass
class Ledger:
    """Running totals of one step. Thread-safe."""

    calls: Counter[str] = field(default_factory=Counter)
    """Logical calls by purpose, as papers count them: a retried call counts once."""
    attempts: Counter[str] = field(default_factory=Counter)
    """HTTP attempts by purpose, retries included."""
    failures: Counter[str] = field(default_factory=Counter)
    """Calls that failed for good, by purpose."""
    parse_failures: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    """Other events worth counting: truncated inputs, capped prompts, fallbacks of a method."""
    sent: int = 0
    """Logical calls that were not answered from the cache."""
    tokens_in: int = 0
    tokens_out: int = 0
    tokens_cached: int = 0
    tokens_reasoning: int = 0
    embedding_calls: int = 0
    embedding_tokens: int = 0
    seconds: float = 0.0
    """Sum of the provider seconds of all calls."""
    service_cpu: float = 0.0
    """CPU seconds that the services (cache, embedder, client) spent in the caller's thread; they do not count as the memory's own."""
    worker_cpu: float = 0.0
    """CPU seconds that processes of the memory itself spent; they count as its own."""
    roles: dict[str, Counter[str]] = field(default_factory=dict)
    """Calls and tokens of models that are counted apart, by role; they are part of the totals."""
    _groups: dict[int, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def critical_seconds(self) -> float:
        """Provider seconds on the critical path: of calls made together only the longest counts."""
        with self._lock:
            return sum(self._groups.values())

    @property
    def dependent(self) -> int:
        """Calls on the critical path: calls made together count as one."""
        with self._lock:
            return len(self._groups)

    def took(self, seconds: float, group: int) -> None:
        """Note the seconds of a call; the lock is held."""
        self.seconds += seconds
        self._groups[group] = max(self._groups.get(group, 0.0), seconds)

    def add_call(self, purpose: str, role: str = "") -> None:
        with self._lock:
            self.calls[purpose] += 1
            if role:
                self.roles.setdefault(role, Counter())["calls"] += 1

    def add_completion(self, purpose: str, completion: Completion, group: int, role: str = "") -> None:
        with self._lock:
            self.took(completion.seconds, group)
            if role:
                own = self.roles.setdefault(role, Counter())
                own["tokens_in"] += completion.prompt_tokens
                own["tokens_out"] += completion.completion_tokens
                own["tokens_cached"] += completion.cached_prompt_tokens
            self.attempts[purpose] += completion.attempts
            self.sent += not completion.cached
            self.tokens_in += completion.prompt_tokens
            self.tokens_out += completion.completion_tokens
            self.tokens_cached += completion.cached_prompt_tokens
            self.tokens_reasoning += completion.reasoning_tokens
            self.notes.update(completion.notes)
            if completion.stopped:
                self.notes[f"{purpose}: {completion.stopped}"] += 1

    def add_failure(self, purpose: str, attempts: int, seconds: float, group: int) -> None:
        with self._lock:
            self.took(seconds, group)
            self.attempts[purpose] += attempts
            self.sent += 1
            self.failures[purpose] += 1

    def add_embedding(self, tokens: int, seconds: float) -> None:
        with self._lock:
            self.took(seconds, next(_numbers))
            self.embedding_calls += 1
            self.embedding_tokens += tokens

    def add_worker_cpu(self, seconds: float) -> None:
        with self._lock:
            self.worker_cpu += seconds

    def count(self, counter: Counter[str], key: str, amount: int = 1) -> None:
        with self._lock:
            counter[key] += amount


_numbers = itertools.count()
_ledger: ContextVar[Ledger | None] = ContextVar("ledger", default=None)
_group: ContextVar[int | None] = ContextVar("group", default=None)
_serving: ContextVar[bool] = ContextVar("serving", default=False)


@contextmanager
def metering(ledger: Ledger | None = None) -> Iterator[Ledger]:
    """Charge everything called inside the `with` block to a ledger, by default to a new one."""
    ledger = ledger or Ledger()
    token = _ledger.set(ledger)
    try:
        yield ledger
    finally:
        _ledger.reset(token)


@contextmanager
def together() -> Iterator[None]:
    """Mark the calls submitted inside the `with` block as independent: only the longest counts on the critical path."""
    token = _group.set(next(_numbers))
    try:
        yield
    finally:
        _group.reset(token)


def current() -> Ledger | None:
    """The ledger of this context; None when none is open."""
    return _ledger.get()


def count_parse_failure(purpose: str) -> None:
    """Count one reply that could not be parsed."""
    if (ledger := _ledger.get()) is not None:
        ledger.count(ledger.parse_failures, purpose)


def note(event: str, amount: int = 1) -> None:
    """Count an event that a report should show: a fallback, a truncated input, a capped prompt."""
    if (ledger := _ledger.get()) is not None:
        ledger.count(ledger.notes, event, amount)


@contextmanager
def service_time() -> Iterator[None]:
    """Charge the CPU time of the `with` block to the services instead of the calling memory; nested blocks count once."""
    ledger = None if _serving.get() else _ledger.get()
    token = _serving.set(True)
    started = time.thread_time()
    try:
        yield
    finally:
        _serving.reset(token)
        if ledger is not None:
            with ledger._lock:
                ledger.service_cpu += time.thread_time() - started


def embedding(model: str) -> AbstractContextManager[Callable[[int], None]]:
    """Trace the block as a call of an embedder; yields a function that takes its tokens. A call without a ledger is not traced."""
    if recorder is None or _ledger.get() is None:
        return nullcontext(lambda tokens: None)
    return recorder.embedding(model)


@dataclass(frozen=True, eq=False)
class Metered:
    """A wrapper that writes a model's calls into the caller's ledger."""

    inner: LLM
    role: str = ""
    """Also count the calls separately under this name, because the role may have another model than the step; empty: do not."""
    model: str = ""
    """Its name, for a tracer (`Recorder`)."""

    def submit(self, request: Request) -> Future[Completion]:
        ledger = _ledger.get()
        if ledger is None:
            return self.inner.submit(request)
        group = _group.get()
        number = next(_numbers) if group is None else group
        ledger.add_call(request.purpose, self.role)
        traced = None if recorder is None else recorder.chat(self.model, request)
        try:
            with service_time():
                inner = self.inner.submit(request)
        except BaseException as error:
            if traced is not None:
                traced(error)
            raise
        # A second future, because the inner one wakes its waiters before it runs callbacks, and the ledger must be written first.
        outer: Awaited[Completion] = Awaited()

        def recorded(done: Future[Completion]) -> Completion:
            error = CancelledError() if done.cancelled() else done.exception()
            if traced is not None:
                traced(done.result() if error is None else error)
            if error is None:
                ledger.add_completion(request.purpose, done.result(), number, self.role)
                return done.result()
            ledger.add_failure(request.purpose, getattr(error, "attempts", 1), getattr(error, "seconds", 0.0), number)
            raise error

        inner.add_done_callback(lambda done: settle(outer, lambda: recorded(done)))
        return outer
