"""The language model protocol: request, completion and errors. `ask.py` has the functions that use it.

A `Request` holds everything that can change the output. Its `kind` and `fields` are for the offline engine and are never sent.
A thread that waits for the future of a call always gets a value or an exception, and lets other threads compute meanwhile. The number of
replies that are not on disk yet is limited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

Stopped = Literal["", "cut", "cut in thought", "refused", "empty", "tool call only"]
"""The reason why a reply is incomplete or has no answer; `memsys.llm.replies` determines it."""


@dataclass(frozen=True, slots=True)
class Option:
    """A labelled text for a model to choose from."""

    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Request:
    """A request for one chat completion."""

    messages: tuple[tuple[str, str], ...]
    """(role, content) pairs; role is system, user or assistant."""
    purpose: str
    """`<system>.<step>`: the meter counts calls under this name."""
    max_tokens: int = 512
    temperature: float = 0.0
    schema: Mapping[str, Any] | None = None
    """JSON schema of the reply, for providers that enforce one."""
    logprobs: bool = False
    sample: int = 0
    """Replicate number: each number is an independent sample of the same request."""
    retry: int = 0
    """Number of earlier replies that could not be parsed. It is part of the cache key, so a retry is not answered from the cache."""
    kind: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Completion:
    """A model's reply and its cost."""

    text: str
    """The answer without the reasoning."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    """Includes reasoning tokens, as providers count them."""
    cached_prompt_tokens: int = 0
    """Prompt tokens that the provider read from its own cache."""
    reasoning_tokens: int = 0
    """The provider's count, or our own count of `reasoning` if it reports none."""
    seconds: float = 0.0
    """Provider time of the successful attempt, without waiting here; a cached answer keeps the recorded value."""
    finish_reason: str = "stop"
    logprobs: tuple[float, ...] | None = None
    """Natural log-probability of each token of the answer; None when the provider returns none."""
    model: str = ""
    endpoint: str = ""
    attempts: int = 1
    cached: bool = False
    """True when it came from this project's cache."""
    reasoning: str = ""
    """The model's reasoning before its answer. It is stored, but never parsed or judged."""
    stopped: Stopped = ""
    """Empty for a complete reply. With `cut`, `text` is the beginning of an answer; with the others there is no answer."""
    notes: tuple[str, ...] = ()
    """Irregularities of the reply, which the meter counts."""

    @property
    def usable(self) -> bool:
        """Whether there is an answer, complete or cut."""
        return self.stopped in ("", "cut")


class ModelError(RuntimeError):
    """A call that failed for good, after all retries. `attempts` and `seconds` are the number of attempts and the time spent."""

    def __init__(self, message: str, *, attempts: int = 1, seconds: float = 0.0) -> None:
        super().__init__(message)
        self.attempts = attempts
        self.seconds = seconds


class ContextOverflow(ModelError):
    """The server rejected a prompt, or prompt and reply limit together, as longer than its context window."""


class EndOfRun(ModelError):
    """No further call can or should be made: the run ends, and questions that were not reached get no line."""


class QuotaExhausted(EndOfRun):
    """The account has no quota left, so every further call would be refused."""


class PromptTruncated(EndOfRun):
    """The server cut a prompt to its context window without reporting it."""


class LLM(Protocol):
    """A language model, or a wrapper around one."""

    def submit(self, request: Request) -> Future[Completion]:
        """Start a call and return at once; the future raises `ModelError` when the call fails for good."""


Value = TypeVar("Value")

Pauses = tuple[Callable[[], None], Callable[[], None]]
"""Functions called before a thread waits, and afterwards."""

_pauses: ContextVar[Pauses | None] = ContextVar("pauses", default=None)
_keeping: ContextVar[bool] = ContextVar("keeping", default=False)


class Reply(Future[Value]):
    """The result of a call. That of a call made inside `keeping()` counts as not on disk until `release` is called.

    So when a process is killed, the number of replies that are paid for and not on disk is at most the in-flight limit and an eighth more
    (`memsys.llm.limits.SAVING`).
    """

    def __init__(self, on_release: Callable[[Reply[Any]], None]) -> None:
        super().__init__()
        self.kept, self._on_release = _keeping.get(), on_release

    def release(self) -> None:
        """State that it is on disk, or will never be; from any thread."""
        if self.kept:
            self._on_release(self)


class Awaited(Future[Value]):
    """A future whose waiting thread gives its turn to compute to other threads (`while_waiting`)."""

    def result(self, timeout: float | None = None) -> Value:
        if self.done():
            return super().result()
        with waiting():
            return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if self.done():
            return super().exception()
        with waiting():
            return super().exception(timeout)


@contextmanager
def while_waiting(pause: Callable[[], None], resume: Callable[[], None]) -> Iterator[None]:
    """Inside the `with` block, `pause` is called whenever this thread begins to wait for a call, and `resume` when the wait has ended."""
    token = _pauses.set((pause, resume))
    try:
        yield
    finally:
        _pauses.reset(token)


@contextmanager
def waiting() -> Iterator[None]:
    """State that this thread computes nothing in the `with` block: it waits for a call, a service or another thread."""
    pauses = _pauses.get()
    if pauses is None:
        yield
        return
    pause, resume = pauses
    token = _pauses.set(None)  # nested waits count as a single wait
    pause()
    try:
        yield
    finally:
        resume()
        _pauses.reset(token)


@contextmanager
def keeping() -> Iterator[None]:
    """The replies to calls made inside the `with` block count as not on disk until the caller calls `release` with their futures."""
    token = _keeping.set(True)
    try:
        yield
    finally:
        _keeping.reset(token)


def release(future: Future[Value]) -> None:
    """State that the reply to a call is on disk, or that it is certain that it will not be."""
    if isinstance(future, Reply):
        future.release()


def failed(error: BaseException) -> Future[Any]:
    """A future that has ended with an error."""
    future: Future[Any] = Future()
    future.set_exception(error)
    return future


def settle(future: Future[Value], value_of: Callable[[], Value]) -> None:
    """Set the future to what `value_of` returns, or to the exception it raises.

    `concurrent.futures` ignores an exception raised in a callback, so without this a waiting thread would wait for ever.
    """
    try:
        value = value_of()
    except BaseException as error:
        future.set_exception(error)
        if not isinstance(error, Exception):
            raise
    else:
        future.set_result(value)
