"""Checks of the bodies of chat requests: their form, their highest possible cost, and fields that no price covers. And the shapes of
replies: streams of chat completions, and lists of vectors.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from memsys.jsons import encoded
from memsys.llm.gateway.accounts import text_of
from memsys.tokens import decode_tokens

LIMITS = ("max_tokens", "max_completion_tokens")
MOST_TOKENS = 2**31
MOST_CHOICES = 128
"""The same limit as at OpenAI."""
IMAGE_TOKENS = 50_000
"""Upper bound for an image in tokens, because its URL says nothing about its size. The highest number in OpenAI's guide to images is
that of gpt-4o-mini: 2,833 and 5,667 for each of eight tiles, 48,169 together."""
PRICED = frozenset(
    "messages model temperature top_p top_k min_p n stop seed tools tool_choice parallel_tool_calls functions function_call "
    "response_format logprobs top_logprobs logit_bias presence_penalty frequency_penalty repetition_penalty user metadata store stream "
    "stream_options max_tokens max_completion_tokens reasoning_effort verbosity safety_identifier prompt_cache_key "
    "prompt_cache_retention chat_template_kwargs enable_thinking think".split()
)
"""Fields of a body whose cost is that of the tokens sent and received."""
PRICED_PARTS = frozenset(("text", "refusal", "image_url"))
"""Types and fields of a message's parts, likewise."""
PRICED_OF_MESSAGES = frozenset(
    "role content name tool_calls tool_call_id function_call refusal reasoning reasoning_content reasoning_details thinking "
    "annotations provider_specific_fields prefix partial".split()
)
"""Fields of a message, likewise: `audio` names speech that is billed and not sent."""


class MalformedBody(ValueError):
    """A body that the gateway refuses, in words for its client."""


def checked(body: Mapping[str, Any]) -> dict[str, Any]:
    """A chat body whose parts have the types that the API declares, its limits as whole numbers.

    Raises:
        MalformedBody: a part has another type, or a number is out of range.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise MalformedBody("messages must be a list that is not empty")
    for place, message in enumerate(messages):
        _check_message(f"messages[{place}]", message)
    for name in ("stream", "parallel_tool_calls"):
        _check(body, name, bool, "true or false")
    for name in ("response_format", "stream_options"):
        _check(body, name, dict, "an object")
    _check(body, "tool_choice", str | dict, "a text or an object")
    form = body.get("response_format") or {}
    _check(form, "json_schema", dict, "an object", "response_format.")
    _check(form.get("json_schema") or {}, "schema", dict, "an object", "response_format.json_schema.")
    _check_tools(body)
    limits = {name: whole(body[name], name, MOST_TOKENS) for name in LIMITS if body.get(name) is not None}
    choices = {} if body.get("n") is None else {"n": whole(body["n"], "n", MOST_CHOICES)}
    return {**{name: value for name, value in body.items() if name not in LIMITS}, **limits, **choices}


def whole(value: Any, name: str, most: int) -> int:
    """A positive whole number, which some programs write as 3.0.

    Raises:
        MalformedBody: it is another value.
    """
    if type(value) is float and value.is_integer():
        value = int(value)
    if type(value) is not int or not 0 < value <= most:
        raise MalformedBody(f"{name} must be a whole number from 1 to {most}, found {repr(value)[:40]}")
    return value


def _check_message(name: str, message: Any) -> None:
    if not isinstance(message, dict):
        raise MalformedBody(f"{name} must be an object with role and content")
    if not isinstance(message.get("role"), str):
        raise MalformedBody(f"{name}.role must be a text")
    content = message.get("content")
    if isinstance(content, list):
        if not all(isinstance(part, dict) for part in content):
            raise MalformedBody(f"each part of {name}.content must be an object with a type")
    elif content is not None and not isinstance(content, str):
        raise MalformedBody(f"{name}.content must be a text, a list of parts, or null")
    _check(message, "tool_calls", list, "a list", f"{name}.")
    if not all(isinstance(call, dict) for call in message.get("tool_calls") or ()):
        raise MalformedBody(f"each of {name}.tool_calls must be an object")


def _check_tools(body: Mapping[str, Any]) -> None:
    for name in ("tools", "functions"):
        _check(body, name, list, "a list")
    for place, tool in enumerate(body.get("tools") or ()):
        if not isinstance(tool, dict):
            raise MalformedBody(f"tools[{place}] must be an object")
        function = tool.get("function")
        if tool.get("type", "function") == "function":
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                raise MalformedBody(f"tools[{place}].function must be an object with a name")
            _check(function, "parameters", dict, "an object", f"tools[{place}].function.")


def _check(body: Mapping[str, Any], name: str, kind: Any, words: str, where: str = "") -> None:
    if body.get(name) is not None and not isinstance(body[name], kind):
        raise MalformedBody(f"{where}{name} must be {words}, found {repr(body[name])[:40]}")


def check_priced(body: Mapping[str, Any]) -> None:
    """Check that a request is billed only for the tokens of prompt and reply.

    Raises:
        MalformedBody: it asks for something that is billed separately, or for something that is not known here.
    """
    for name, value in body.items():
        if value is not None and name not in PRICED and (name, value) != ("service_tier", "default"):
            raise MalformedBody(
                f"the gateway cannot price {name!r}: no field of that name is covered by the model's price per token"
            )
    for message in body.get("messages") or ():
        for name, value in message.items():
            if value and name not in PRICED_OF_MESSAGES:
                raise MalformedBody(f"the gateway cannot price {name!r} of a message")
    for part in _parts(body):
        # Some servers infer the type of a part without a type from its other fields, such as `video_url`.
        for name in (part.get("type") or "text", *(name for name, value in part.items() if value is not None)):
            if name not in PRICED_PARTS and name != "type":
                raise MalformedBody(f"the gateway cannot price a message part with {str(name)[:40]!r}")
    for tool in body.get("tools") or ():
        if tool.get("type", "function") not in ("function", "custom"):
            raise MalformedBody(f"the gateway cannot price a tool of type {str(tool.get('type'))[:40]!r}")


def _parts(body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for message in body.get("messages") or ():
        if isinstance(content := message.get("content"), list):
            yield from content


def most_tokens_in(body: Mapping[str, Any]) -> int:
    """Upper bound for the prompt tokens of a body: a token is at least one byte of it, images apart."""
    images = sum("image_url" in part for part in _parts(body))
    return len(encoded(body)) + images * IMAGE_TOKENS


def limit_of(body: Mapping[str, Any]) -> int | None:
    """The smallest of a checked body's limits on the tokens of the reply."""
    return min((body[name] for name in LIMITS if body.get(name) is not None), default=None)


DELTA_CHARACTERS = 64
"""Characters of each piece of a streamed text."""
MOST_TEXTS = 2048
"""Texts of one embedding request, as at OpenAI."""


def events(reply: Mapping[str, Any], *, usage: bool) -> Iterator[bytes]:
    """A complete chat completion as the events of a stream, with a last event for the usage if the client asked for it."""
    head = {name: reply[name] for name in ("id", "created", "model") if name in reply}
    head["object"] = "chat.completion.chunk"
    for choice in reply.get("choices", ()):
        index, message = choice.get("index", 0), choice.get("message") or {}
        for delta in _deltas(message):
            yield event({**head, "choices": [{"index": index, "delta": delta, "finish_reason": None}]})
        last = {"index": index, "delta": {}, "finish_reason": choice.get("finish_reason") or "stop"}
        if choice.get("logprobs"):
            last["logprobs"] = choice["logprobs"]
        yield event({**head, "choices": [last]})
    if usage:
        yield event({**head, "choices": [], "usage": reply.get("usage") or {}})
    yield b"data: [DONE]\n\n"


def _deltas(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"role": message.get("role", "assistant"), "content": ""}
    others = {name: value for name, value in message.items() if name not in ("role", "content", "tool_calls")}
    if others:
        yield others
    for piece in pieces(text_of(message.get("content"))):
        yield {"content": piece}
    for place, call in enumerate(message.get("tool_calls") or ()):
        yield {"tool_calls": [{"index": place, **call}]}


def pieces(text: str) -> Iterator[str]:
    """A text as the pieces of a stream."""
    return (text[start : start + DELTA_CHARACTERS] for start in range(0, len(text), DELTA_CHARACTERS))


def event(value: Mapping[str, Any]) -> bytes:
    """A server-sent event."""
    return b"data: " + encoded(value) + b"\n\n"


def embedding_texts(body: Mapping[str, Any]) -> list[str]:
    """The texts of an embedding request: a string, a list of strings, or token ids in place of either.

    Raises:
        MalformedBody: the input is none of these, or has too many texts; or the form of the vectors is not known.
        ValueError: a token id is beyond the vocabulary.
    """
    if body.get("encoding_format") not in (None, "float", "base64"):
        raise MalformedBody(f"encoding_format must be float or base64, found {repr(body['encoding_format'])[:40]}")
    given = body.get("input")
    if isinstance(given, str):
        return [given]
    if isinstance(given, list) and given:
        if all(type(token) is int for token in given):
            return [decode_tokens(given)]
        if len(given) > MOST_TEXTS:
            raise MalformedBody(f"input has {len(given)} texts: send at most {MOST_TEXTS} in one request")
        if all(isinstance(entry, str) for entry in given):
            return list(given)
        if all(isinstance(entry, list) and entry and all(type(token) is int for token in entry) for entry in given):
            return [decode_tokens(entry) for entry in given]
    raise MalformedBody("input must be a text, a list of texts, or token ids")


def fitted(vectors: np.ndarray, dimensions: int | None) -> np.ndarray:
    """The first `dimensions` numbers of each vector, scaled to unit length; the vector of a text without words gets an arbitrary direction.

    Raises:
        MalformedBody: more dimensions are asked for than the model has.
    """
    vectors = vectors.copy()
    if dimensions is not None:
        vectors = vectors[:, : whole(dimensions, "dimensions", vectors.shape[1])].copy()
    vectors[~vectors.any(axis=1), 0] = 1.0
    scaled: np.ndarray = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return scaled.astype(np.float32)


def embedding_reply(vectors: np.ndarray, model: str, tokens: int, *, base64_encoded: bool) -> dict[str, Any]:
    """The reply of an embedding request, vectors as lists of numbers or as base64 of little-endian float32."""
    rows: Sequence[Any] = (
        [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in vectors]
        if base64_encoded
        else [row.tolist() for row in vectors]
    )
    data = [{"object": "embedding", "index": place, "embedding": row} for place, row in enumerate(rows)]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}
