"""The language model protocol: request, completion and errors. `ask.py` has the functions that use it.

A `Request` holds everything that can change the output. Its `kind` and `fields` are for the offline engine and are never sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

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
