"""The two ways to ask a language model with a prompt: `ask` and `ask_all`.

A tolerant parser turns a reply into JSON, a label or prose. It never evaluates code.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from memsys.llm import meter
from memsys.llm.protocol import LLM, Completion, Stopped

if TYPE_CHECKING:
    from memsys.prompts import Prompt


def ask(
    llm: LLM,
    prompt: Prompt,
    *,
    retries: int = 0,
    sample: int = 0,
    noted: str = "",
    counts: Counts = None,
    **fields: Any,
) -> Any:
    """Render a prompt, make the call and parse the reply: returns a value, or a `ParseFailure` after `retries` more attempts.

    The value is text, one of the labels, or a value that satisfies the prompt's JSON schema. The meter counts every reply that cannot be
    parsed, and every reply that was cut where only a complete reply can be used.

    Args:
        noted: the meter counts a `ParseFailure` that is returned as this event, too.
        counts: counts these events as well, without the name of the system.

    Raises:
        ModelError: the call failed for good.
    """
    return ask_all(llm, [(prompt, fields)], retries=retries, sample=sample, noted=noted, counts=counts)[0]


Counts = Counter[str] | None

Read = Callable[[Completion, "Prompt", Mapping[str, Any]], Any]
"""Reads the reply to a prompt that was rendered with these fields; returns a `ParseFailure` where it cannot be used."""


def ask_all(
    llm: LLM,
    asks: Sequence[tuple[Prompt, Mapping[str, Any]]],
    *,
    retries: int = 0,
    sample: int = 0,
    noted: str = "",
    counts: Counts = None,
    read: Read | None = None,
) -> list[Any]:
    """`ask` for calls that do not depend on each other: submit all, collect in order.

    Args:
        read: reads the replies in place of `parse_reply`.

    Raises:
        ModelError: one of the calls failed for good; raised after all calls have ended.
    """
    requests = [replace(prompt.render(fields), sample=sample) for prompt, fields in asks]
    values: list[Any] = [None] * len(asks)
    unanswered = list(range(len(asks)))
    for retry in range(retries + 1):
        with meter.together():
            futures = {index: llm.submit(replace(requests[index], retry=retry)) for index in unanswered}
            errors = [error for future in futures.values() if (error := future.exception()) is not None]
        if errors:
            raise errors[0]
        for index, future in futures.items():
            values[index] = (read or parse_reply)(future.result(), asks[index][0], requests[index].fields)
        unanswered = [index for index in unanswered if isinstance(values[index], ParseFailure)]
        for index in unanswered:
            meter.count_parse_failure(requests[index].purpose)
        if not unanswered:
            break
    if noted and unanswered:
        meter.note(noted, len(unanswered))
        if counts is not None:
            counts[noted.partition(".")[2]] += len(unanswered)
    return values


_FENCE = re.compile(r"```[a-zA-Z]*\s*([\[{].*?)```", re.DOTALL)
_OPENING = re.compile(r"\A```[a-zA-Z]*\s*")
_LABEL_EDGES = " \t\r\n.,:;!?\"'`*()[]{}"
_DEEPEST = 50


@dataclass(frozen=True, slots=True)
class ParseFailure:
    """A reply that does not have the form that the prompt asks for. It is false as a boolean."""

    text: str
    """The model's answer without its reasoning."""
    why: str
    stopped: Stopped = ""
    """The reason for an incomplete reply, if that made it unusable."""

    def __bool__(self) -> bool:
        return False


def parse_reply(reply: Completion, prompt: Prompt, fields: Mapping[str, Any]) -> Any:
    """The value of a reply; a `ParseFailure` when there is no answer, or when the answer was cut and must be complete to be used.

    A cut list would pass for a shorter list, and a cut label for another label. So JSON that was cut is a value only if it closes
    before the cut, and it is not repaired. Cut prose is kept. A prompt's front matter can override both (`cut: keep` or
    `cut: fail`). The meter's notes count every cut reply by purpose.
    """
    if not reply.usable:
        return ParseFailure(reply.text, f"the reply was {reply.stopped}", reply.stopped)
    labels = fields["labels"]
    prose = prompt.schema is None and not labels
    must_be_complete = prompt.cut == "fail" if prompt.cut else not prose
    if reply.stopped != "cut" or not must_be_complete:
        return parse(reply.text, prompt.schema, labels)
    value = ParseFailure(reply.text, "cut") if prompt.schema is None else _closed_json(reply.text)
    if not isinstance(value, ParseFailure) and prompt.schema is not None:
        value = _checked(reply.text, value, prompt.schema)
    return ParseFailure(reply.text, "the reply was cut", "cut") if isinstance(value, ParseFailure) else value


def parse(text: str, schema: Mapping[str, Any] | None, labels: Sequence[str]) -> Any:
    """The value of a complete reply: JSON that satisfies `schema`, one of `labels`, or the stripped text; else a `ParseFailure`."""
    if not text.strip():
        return ParseFailure(text, "the reply is empty")
    if schema is not None:
        value = read_json(text)
        return value if isinstance(value, ParseFailure) else _checked(text, value, schema)
    if not labels:
        return text.strip()
    label = {label.casefold(): label for label in labels}.get(text.strip(_LABEL_EDGES).casefold())
    return label if label is not None else ParseFailure(text, f"expected exactly one of {', '.join(labels)}")


def _closed_json(text: str) -> Any:
    """The JSON value at the beginning of a cut reply, if it closes before the cut; else a `ParseFailure`."""
    body = _OPENING.sub("", text.strip())
    if _depth(body) > _DEEPEST:
        return ParseFailure(text, f"JSON nested deeper than {_DEEPEST}")
    try:
        return _plain(json.JSONDecoder(parse_constant=_no_constant).raw_decode(body)[0])
    except ValueError:
        return ParseFailure(text, "JSON that does not close")


def read_json(text: str) -> Any:
    """The JSON value in a reply, from its first opening bracket to the last matching closing one; else a `ParseFailure`.

    Code fences are removed, and invalid JSON is repaired once. All numbers are finite, numbers without a fraction are integers
    (2.0 becomes 2), and all strings can be encoded as UTF-8.
    """
    body = text.strip()
    if not body.startswith(("{", "[")) and (fenced := _FENCE.search(text)):
        body = fenced.group(1).strip()
    starts = [position for position in (body.find("{"), body.find("[")) if position >= 0]
    if not starts:
        return ParseFailure(text, "no JSON in the reply")
    start = min(starts)
    end = body.rfind("}" if body[start] == "{" else "]")
    candidate = body[start : end + 1] if end > start else body[start:]
    if _depth(candidate) > _DEEPEST:
        return ParseFailure(text, f"JSON nested deeper than {_DEEPEST}")
    try:
        return _plain(json.loads(candidate, parse_constant=_no_constant))
    except ValueError:
        from json_repair import repair_json
    try:
        value = _plain(repair_json(candidate, return_objects=True, skip_json_loads=True))
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict | list) and value else ParseFailure(text, "JSON that cannot be repaired")


def _plain(value: Any) -> Any:
    """The value with fraction-less numbers as integers; a ValueError for an infinite number or a lone surrogate."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    text.encode()
    return json.loads(text, parse_float=_number)


def _number(text: str) -> int | float:
    # JSON schema accepts 2.0 as an integer; a list index does not.
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _depth(text: str) -> int:
    depth = deepest = 0
    for character in text:
        if character in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif character in "]}":
            depth = max(0, depth - 1)
    return deepest


def _checked(text: str, value: Any, schema: Mapping[str, Any]) -> Any:
    validator = _validator(json.dumps(schema, sort_keys=True))
    if validator.is_valid(value):
        return value
    error = next(iter(validator.iter_errors(value)))
    return ParseFailure(text, f"{'/'.join(map(str, error.instance_path)) or 'reply'}: {error.message}"[:300])


@lru_cache(maxsize=256)
def _validator(schema: str) -> Any:
    # Not the package jsonschema, the oracle of its tests: it takes a third of the CPU time of a build that asks for JSON.
    from jsonschema_rs import Draft202012Validator

    return Draft202012Validator(json.loads(schema))
