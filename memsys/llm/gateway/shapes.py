"""The shapes of requests and replies: streams of chat completions, and lists of vectors."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from memsys.jsons import encoded
from memsys.llm.gateway.accounts import text_of
from memsys.llm.gateway.bodies import MalformedBody, whole
from memsys.tokens import decode_tokens

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
