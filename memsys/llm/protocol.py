"""The language model protocol: a request, what comes back, and how a call fails; `ask.py` has the ways to use it.

A `Request` says what can change the output; `kind` and `fields` ride along for the offline engine and are never sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Request:
    """One chat completion to be made."""

    messages: tuple[tuple[str, str], ...]
    """(role, content) pairs; role is system, user or assistant."""
    purpose: str
    """`<system>.<step>`: under which the meter counts it."""
    max_tokens: int = 512
    temperature: float = 0.0
    schema: Mapping[str, Any] | None = None
    """JSON schema of the reply, for providers that enforce one."""
    logprobs: bool = False
    sample: int = 0
    """Replicate number: another number is another draw of the same request."""
    retry: int = 0
    """Which attempt at a parsable reply this is; a retry must not be answered from the cache of the first."""
    kind: str = ""
    fields: Mapping[str, Any] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class Completion:
    """What a model replied, and what it cost."""

    text: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_prompt_tokens: int = 0
    reasoning_tokens: int = 0
    seconds: float = 0.0
    """Provider time of the successful attempt, without queueing here; a cached answer keeps the recorded value."""
    finish_reason: str = "stop"
    logprobs: tuple[float, ...] | None = None
    """Natural log-probability of each generated token, where the provider gives them."""
    model: str = ""
    endpoint: str = ""
    attempts: int = 1
    cached: bool = False
    """True when it came from this project's cache."""


class ModelError(RuntimeError):
    """A call that failed for good, after its retries; carries what was spent on it."""

    def __init__(self, message: str, *, attempts: int = 1, seconds: float = 0.0) -> None:
        super().__init__(message)
        self.attempts = attempts
        self.seconds = seconds


class EndOfRun(ModelError):
    """No further call can be made, whatever it is: the run ends, and what was not reached has no line."""


class LLM(Protocol):
    """A language model, or a wrapper around one."""

    def submit(self, request: Request) -> Future[Completion]:
        """Start a call; the future raises `ModelError` when it fails for good."""
