"""Model text to a value: one tolerant reader for JSON, labels and prose. Nothing is ever evaluated."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from memsys.llm.protocol import Completion, Stopped
from memsys.prompts import Prompt

_FENCE = re.compile(r"```[a-zA-Z]*\s*([\[{].*?)```", re.DOTALL)
_OPENING = re.compile(r"\A```[a-zA-Z]*\s*")
_LABEL_EDGES = " \t\r\n.,:;!?\"'`*()[]{}"
_DEEPEST = 50


@dataclass(frozen=True, slots=True)
class ParseFailure:
    """A reply that did not hold what the prompt asked for."""

    text: str
    """What the model answered, without its reasoning."""
    why: str
    stopped: Stopped = ""
    """Why the reply is not whole, where that is the reason."""

    def __bool__(self) -> bool:
        return False


def parse_reply(reply: Completion, prompt: Prompt, fields: Mapping[str, Any]) -> Any:
    """The value in the reply to a prompt; a `ParseFailure` where there is no answer, or a cut one that has to be whole.

    A list that was cut would be a shorter list and a cut label another label: only JSON that closes before the cut is a value, and
    nothing is repaired. Prose stays prose when it is cut. A prompt says otherwise in its front matter (`cut: keep` or `cut: fail`).
    What was cut is counted either way, by purpose, in the notes of the meter.
    """
    if not reply.usable:
        return ParseFailure(reply.text, f"the reply was {reply.stopped}", reply.stopped)
    labels = prompt.labels_for(fields)
    prose = prompt.schema is None and not labels
    whole = prompt.cut == "fail" if prompt.cut else not prose
    if reply.stopped != "cut" or not whole:
        return parse(reply.text, prompt.schema, labels)
    value = ParseFailure(reply.text, "cut") if prompt.schema is None else _closed_json(reply.text)
    if not isinstance(value, ParseFailure) and prompt.schema is not None:
        value = _checked(reply.text, value, prompt.schema)
    return ParseFailure(reply.text, "the reply was cut", "cut") if isinstance(value, ParseFailure) else value


def parse(text: str, schema: Mapping[str, Any] | None, labels: Sequence[str]) -> Any:
    """The value a whole reply holds: JSON that satisfies `schema`, one of `labels`, or the stripped text; else a `ParseFailure`."""
    if not text.strip():
        return ParseFailure(text, "the reply is empty")
    if schema is not None:
        return _validated(text, schema)
    if labels:
        return _label(text, labels)
    return text.strip()


def _closed_json(text: str) -> Any:
    """The JSON value that a cut reply begins with, if it closes before the cut."""
    body = _OPENING.sub("", text.strip())
    if _depth(body) > _DEEPEST:
        return ParseFailure(text, f"JSON nested deeper than {_DEEPEST}")
    try:
        return _plain(json.JSONDecoder(parse_constant=_no_constant).raw_decode(body)[0])
    except ValueError:
        return ParseFailure(text, "JSON that does not close")


def read_json(text: str) -> Any:
    """The JSON value in a reply: fences stripped, first bracket to its last partner, then one repair; else a `ParseFailure`.

    Numbers are finite and whole ones are integers (2.0 reads as 2); strings can be written as UTF-8.
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
        return _repaired(text, candidate)


def _repaired(text: str, candidate: str) -> Any:
    from json_repair import repair_json

    try:
        value = _plain(repair_json(candidate, return_objects=True, skip_json_loads=True))
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict | list) and value else ParseFailure(text, "JSON that cannot be repaired")


def _plain(value: Any) -> Any:
    """The value again, or a `ValueError` where it holds an infinite number or half a surrogate pair."""
    text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    text.encode()
    return json.loads(text, parse_float=_number)


def _number(text: str) -> int | float:
    # JSON schema takes 2.0 for an integer, a list index does not.
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


def _validated(text: str, schema: Mapping[str, Any]) -> Any:
    value = read_json(text)
    return value if isinstance(value, ParseFailure) else _checked(text, value, schema)


def _checked(text: str, value: Any, schema: Mapping[str, Any]) -> Any:
    error = next(_validator(json.dumps(schema, sort_keys=True)).iter_errors(value), None)
    if error is not None:
        return ParseFailure(text, f"{'/'.join(map(str, error.path)) or 'reply'}: {error.message}"[:300])
    return value


@lru_cache(maxsize=256)
def _validator(schema: str) -> Any:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(json.loads(schema))


def _label(text: str, labels: Sequence[str]) -> Any:
    wanted = {label.casefold(): label for label in labels}
    found = wanted.get(text.strip(_LABEL_EDGES).casefold())
    return found if found is not None else ParseFailure(text, f"expected exactly one of {', '.join(labels)}")
