"""The shapes of requests and replies: streams of chat completions, the Responses API, lists of vectors."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from memsys.jsons import encoded
from memsys.llm.gateway.accounts import text_of
from memsys.tokens import decode_tokens

DELTA_CHARACTERS = 64
"""Characters of each piece of a streamed text."""


def events(reply: Mapping[str, Any], *, usage: bool) -> Iterator[bytes]:
    """A complete chat completion as the events of a stream, with a last one for the usage if the client asked for it."""
    head = {name: reply[name] for name in ("id", "created", "model") if name in reply}
    head["object"] = "chat.completion.chunk"
    for choice in reply.get("choices", ()):
        index, message = choice.get("index", 0), choice.get("message") or {}
        for delta in _deltas(message):
            yield _event({**head, "choices": [{"index": index, "delta": delta, "finish_reason": None}]})
        last = {"index": index, "delta": {}, "finish_reason": choice.get("finish_reason") or "stop"}
        if choice.get("logprobs"):
            last["logprobs"] = choice["logprobs"]
        yield _event({**head, "choices": [last]})
    if usage:
        yield _event({**head, "choices": [], "usage": reply.get("usage") or {}})
    yield b"data: [DONE]\n\n"


def _deltas(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"role": message.get("role", "assistant"), "content": ""}
    others = {name: value for name, value in message.items() if name not in ("role", "content", "tool_calls")}
    if others:
        yield others
    text = text_of(message.get("content"))
    for start in range(0, len(text), DELTA_CHARACTERS):
        yield {"content": text[start : start + DELTA_CHARACTERS]}
    for place, call in enumerate(message.get("tool_calls") or ()):
        yield {"tool_calls": [{"index": place, **call}]}


def _event(value: Mapping[str, Any]) -> bytes:
    return b"data: " + encoded(value) + b"\n\n"


# --- the Responses API ----------------------------------------------------------------------------------------------

_SAME_FIELDS = ("model", "temperature", "top_p", "store", "user", "metadata", "parallel_tool_calls", "seed", "stream")


def chat_from_response(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a chat completion that asks for the same as a body of the Responses API.

    Raises:
        ValueError: the input holds items that have no counterpart.
    """
    chat: dict[str, Any] = {name: body[name] for name in _SAME_FIELDS if name in body}
    system = [{"role": "system", "content": body["instructions"]}] if body.get("instructions") else []
    given = body.get("input", "")
    entries = [{"role": "user", "content": given}] if isinstance(given, str) else [_message(item) for item in given]
    chat["messages"] = [*system, *entries]
    if (limit := body.get("max_output_tokens")) is not None:
        chat["max_completion_tokens"] = limit
    form = (body.get("text") or {}).get("format") or {}
    if form.get("type") == "json_schema":
        inner = {name: value for name, value in form.items() if name != "type"}
        chat["response_format"] = {"type": "json_schema", "json_schema": inner}
    elif form.get("type") == "json_object":
        chat["response_format"] = {"type": "json_object"}
    if effort := (body.get("reasoning") or {}).get("effort"):
        chat["reasoning_effort"] = effort
    if tools := [tool for tool in body.get("tools") or () if tool.get("type") == "function"]:
        inner_tools = [{name: value for name, value in tool.items() if name != "type"} for tool in tools]
        chat["tools"] = [{"type": "function", "function": tool} for tool in inner_tools]
        choice = body.get("tool_choice", "auto")
        named = isinstance(choice, Mapping) and choice.get("name")
        chat["tool_choice"] = {"type": "function", "function": {"name": named}} if named else choice
    return chat


def _message(item: Mapping[str, Any]) -> dict[str, Any]:
    kind = item.get("type", "message")
    if kind == "message":
        return {"role": item.get("role", "user"), "content": text_of(item.get("content"))}
    if kind == "function_call":
        function = {"name": item["name"], "arguments": item["arguments"]}
        call = {"id": item["call_id"], "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    if kind == "function_call_output":
        return {"role": "tool", "tool_call_id": item["call_id"], "content": text_of(item.get("output"))}
    raise ValueError(f"the gateway does not know input items of type {kind!r}")


def response_from_chat(reply: Mapping[str, Any]) -> dict[str, Any]:
    """A chat completion in the form of the Responses API."""
    choice = reply["choices"][0]
    message, name = choice["message"], str(reply.get("id", "reply"))
    output: list[dict[str, Any]] = []
    if text := text_of(message.get("content")):
        part = {"type": "output_text", "text": text, "annotations": []}
        output.append(
            {"type": "message", "id": f"msg_{name}", "role": "assistant", "status": "completed", "content": [part]}
        )
    for call in message.get("tool_calls") or ():
        ids = {"id": f"fc_{call['id']}", "call_id": call["id"], "status": "completed"}
        output.append({"type": "function_call", **ids, **call["function"]})
    usage = reply.get("usage") or {}
    counts = {"input_tokens": usage.get("prompt_tokens", 0), "output_tokens": usage.get("completion_tokens", 0)}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    cut = choice.get("finish_reason") == "length"
    return {
        "id": f"resp_{name}",
        "object": "response",
        "created_at": reply.get("created", 0),
        "model": reply.get("model", ""),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "error": None,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {**counts, **details, "total_tokens": sum(counts.values())},
    }


def response_events(response: Mapping[str, Any]) -> Iterator[bytes]:
    """A complete response as the events of a stream of the Responses API: text as one piece, then the whole."""
    yield _typed({"type": "response.created", "response": {**response, "status": "in_progress", "output": []}})
    for place, item in enumerate(response["output"]):
        yield _typed({"type": "response.output_item.added", "output_index": place, "item": item})
        for part in item.get("content", ()):
            where = {"item_id": item["id"], "output_index": place, "content_index": 0}
            yield _typed({"type": "response.output_text.delta", **where, "delta": part["text"]})
            yield _typed({"type": "response.output_text.done", **where, "text": part["text"]})
        yield _typed({"type": "response.output_item.done", "output_index": place, "item": item})
    yield _typed({"type": "response.completed", "response": response})


def _typed(event: Mapping[str, Any]) -> bytes:
    return f"event: {event['type']}\n".encode() + _event(event)


# --- embeddings -----------------------------------------------------------------------------------------------------


def embedding_texts(body: Mapping[str, Any]) -> list[str]:
    """The texts of an embedding request: a string, a list of strings, or token ids in place of either.

    Raises:
        ValueError: the input is none of these.
    """
    given = body.get("input")
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list) or not given:
        raise ValueError("input must be a text, a list of texts, or token ids")
    if all(isinstance(token, int) for token in given):
        return [decode_tokens(given)]
    if all(isinstance(entry, str) for entry in given):
        return list(given)
    if all(isinstance(entry, list) and entry and all(isinstance(token, int) for token in entry) for entry in given):
        return [decode_tokens(entry) for entry in given]
    raise ValueError("input must be a text, a list of texts, or token ids")


def fitted(vectors: np.ndarray, dimensions: int | None) -> np.ndarray:
    """The first `dimensions` numbers of each vector, scaled to unit length again; a vector of a text without words points anywhere.

    Raises:
        ValueError: more dimensions are asked for than the model has.
    """
    vectors = vectors.copy()
    if dimensions is not None:
        if not 0 < dimensions <= vectors.shape[1]:
            raise ValueError(f"dimensions must be from 1 to {vectors.shape[1]}, found {dimensions}")
        vectors = vectors[:, :dimensions].copy()
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
