"""The language model protocol, and the three ways to use it: `complete`, `ask`, `ask_all`.

A `Request` says what can change the output; `kind` and `fields` ride along for the offline engine and are never sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from memsys.llm import meter
from memsys.llm.parsing import ParseFailure, parse
from memsys.prompts import Prompt


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


class LLM(Protocol):
    """A language model, or a wrapper around one."""

    def submit(self, request: Request) -> Future[Completion]:
        """Start a call; the future raises `ModelError` when it fails for good."""


def complete(llm: LLM, request: Request) -> Completion:
    """Make one call and wait for it.

    Raises:
        ModelError: the call failed for good.
    """
    return llm.submit(request).result()


def ask(llm: LLM, prompt: Prompt, *, retries: int = 0, sample: int = 0, **fields: Any) -> Any:
    """Render a prompt, make the call, parse the reply: a value, or a `ParseFailure` after `retries` more attempts.

    The value is text, one of the labels, or what the prompt's JSON schema describes. A reply that could not be parsed is
    counted by the meter, each time.

    Raises:
        ModelError: the call failed for good.
    """
    return ask_all(llm, [(prompt, fields)], retries=retries, sample=sample)[0]


def ask_all(
    llm: LLM, asks: Sequence[tuple[Prompt, Mapping[str, Any]]], *, retries: int = 0, sample: int = 0
) -> list[Any]:
    """`ask` for calls that do not depend on each other: submit all, collect in order.

    Raises:
        ModelError: one of the calls failed for good; the others have been waited for.
    """
    requests = [replace(prompt.render(fields), sample=sample) for prompt, fields in asks]
    values = _round(llm, asks, requests)
    for retry in range(1, retries + 1):
        failed = [index for index, value in enumerate(values) if isinstance(value, ParseFailure)]
        if not failed:
            break
        again = [replace(requests[index], retry=retry) for index in failed]
        for index, value in zip(failed, _round(llm, [asks[index] for index in failed], again), strict=True):
            values[index] = value
    return values


def _round(llm: LLM, asks: Sequence[tuple[Prompt, Mapping[str, Any]]], requests: Sequence[Request]) -> list[Any]:
    with meter.together():
        futures = [llm.submit(request) for request in requests]
        errors = [error for future in futures if (error := future.exception()) is not None]
    if errors:
        raise errors[0]
    values = [
        parse(future.result().text, prompt.schema, prompt.labels_for(fields))
        for (prompt, fields), future in zip(asks, futures, strict=True)
    ]
    for value, request in zip(values, requests, strict=True):
        if isinstance(value, ParseFailure):
            meter.count_parse_failure(request.purpose)
    return values
