"""The language model protocol: a request, what comes back, and how a call fails; `ask.py` has the ways to use it.

A `Request` says what can change the output; `kind` and `fields` ride along for the offline engine and are never sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Stopped = Literal["", "cut", "cut in thought", "refused", "empty", "tool call only"]
"""Why a reply is not what was asked for; `memsys.llm.replies` decides it."""


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
    """What the model answers, without its reasoning."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    """Reasoning included, as providers count."""
    cached_prompt_tokens: int = 0
    reasoning_tokens: int = 0
    """As the provider counts them; our own count of `reasoning` where it does not."""
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
    reasoning: str = ""
    """What the model thought before it answered: kept, never parsed and never judged."""
    stopped: Stopped = ""
    """Empty for a whole reply; `cut` has the beginning of an answer in `text`, the others have no answer."""
    notes: tuple[str, ...] = ()
    """What was odd about the reply, for the meter to count."""

    @property
    def usable(self) -> bool:
        """Whether there is an answer, whole or cut."""
        return self.stopped in ("", "cut")

    @property
    def keepable(self) -> bool:
        """Whether the cache may keep it: the same request would be answered alike, or be cut at the same limit, which is in the key.

        An empty or refused reply, or a tool call that nobody asked for, is an outcome of this one attempt and is asked for again.
        """
        return self.stopped in ("", "cut", "cut in thought")


class ModelError(RuntimeError):
    """A call that failed for good, after its retries; carries what was spent on it."""

    def __init__(self, message: str, *, attempts: int = 1, seconds: float = 0.0) -> None:
        super().__init__(message)
        self.attempts = attempts
        self.seconds = seconds


class ContextOverflow(ModelError):
    """The server refused a prompt, or prompt and reply together, as longer than its context window."""


class EndOfRun(ModelError):
    """No further call can be made, or every one would be wasted: the run ends, and what was not reached has no line."""


class PromptTruncated(EndOfRun):
    """The server silently cut a prompt to its context window."""


class LLM(Protocol):
    """A language model, or a wrapper around one."""

    def submit(self, request: Request) -> Future[Completion]:
        """Start a call; the future raises `ModelError` when it fails for good."""
