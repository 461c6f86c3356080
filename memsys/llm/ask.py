"""The three ways to use a language model: `complete`, `ask`, `ask_all`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from memsys.llm import meter
from memsys.llm.parsing import ParseFailure, parse_reply
from memsys.llm.protocol import LLM, Completion, Request

if TYPE_CHECKING:
    from memsys.prompts import Prompt


def complete(llm: LLM, request: Request) -> Completion:
    """Make one call and wait for it.

    Raises:
        ModelError: the call failed for good.
    """
    return llm.submit(request).result()


def ask(llm: LLM, prompt: Prompt, *, retries: int = 0, sample: int = 0, **fields: Any) -> Any:
    """Render a prompt, make the call and parse the reply: returns a value, or a `ParseFailure` after `retries` more attempts.

    The value is text, one of the labels, or a value that satisfies the prompt's JSON schema. The meter counts every reply that cannot be
    parsed, and every reply that was cut where only a complete reply can be used.

    Raises:
        ModelError: the call failed for good.
    """
    return ask_all(llm, [(prompt, fields)], retries=retries, sample=sample)[0]


def ask_all(
    llm: LLM, asks: Sequence[tuple[Prompt, Mapping[str, Any]]], *, retries: int = 0, sample: int = 0
) -> list[Any]:
    """`ask` for calls that do not depend on each other: submit all, collect in order.

    Raises:
        ModelError: one of the calls failed for good; raised after all calls have ended.
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
        parse_reply(future.result(), prompt, fields) for (prompt, fields), future in zip(asks, futures, strict=True)
    ]
    for value, request in zip(values, requests, strict=True):
        if isinstance(value, ParseFailure):
            meter.count_parse_failure(request.purpose)
    return values
