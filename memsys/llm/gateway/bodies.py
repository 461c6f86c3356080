"""Checks of the bodies of chat requests: their form, their highest possible cost, and fields that no price covers. And the shapes of
replies: streams of chat completions, and lists of vectors.

The Responses API stands on top of chat completions: a body, a reply, and the events of a stream are translated. A field that has no
counterpart in a chat completion is refused by name, because a reply that ignored it would look complete.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from memsys.jsons import encoded
from memsys.llm.gateway.accounts import Item, first_choice, text_of
from memsys.llm.replies import usage_of
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


_SAME = ("model", "temperature", "top_p", "store", "user", "metadata", "parallel_tool_calls", "seed", "stream", "top_logprobs",
         "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "service_tier")  # fmt: skip
_MAPPED = "input instructions max_output_tokens text reasoning tools tool_choice include stream_options".split()
_VAIN = {"truncation": "disabled", "background": False}
"""Fields that a body may have, with the value that changes nothing."""
_LOGPROBS = "message.output_text.logprobs"
_INCLUDABLE = (_LOGPROBS, "reasoning.encrypted_content")
"""The second value concerns items that no chat completion has, so there is nothing to leave out."""
_ECHOED = ("instructions", "metadata", "temperature", "top_p", "tools", "tool_choice", "parallel_tool_calls", "text")


def chat_from_response(
    body: Mapping[str, Any], items: Mapping[str, Item | None] = MappingProxyType({})
) -> dict[str, Any]:
    """The body of a chat completion that asks for the same as a body of the Responses API.

    Args:
        items: what an `item_reference` stands for, as `Account.items`.

    Raises:
        MalformedBody: it asks for something that has no counterpart, or a part has another type than the API declares; or it refers to
            an item that is not among `items`.
    """
    body = {name: value for name, value in body.items() if value is not None}
    for name, value in body.items():
        if name not in (*_SAME, *_MAPPED) and (name not in _VAIN or value != _VAIN[name]):
            raise MalformedBody(f"the gateway does not serve the field {name!r} of the Responses API")
    chat: dict[str, Any] = {name: body[name] for name in _SAME if name in body}
    instructions = body.get("instructions", "")
    if not isinstance(instructions, str):
        raise MalformedBody("instructions must be a text")
    system = [{"role": "system", "content": instructions}] if instructions else []
    chat["messages"] = [*system, *_messages(body.get("input"), items)]
    if "max_output_tokens" in body:
        chat["max_completion_tokens"] = body["max_output_tokens"]
    text, reasoning = _object(body, "text"), _object(body, "reasoning")
    form = _object(text, "format")
    if form.get("type") == "json_schema":
        schema = {name: value for name, value in form.items() if name != "type"}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif form.get("type") == "json_object":
        chat["response_format"] = {"type": "json_object"}
    if text.get("verbosity"):
        chat["verbosity"] = text["verbosity"]
    if reasoning.get("effort"):
        chat["reasoning_effort"] = reasoning["effort"]
    include = body.get("include", [])
    for name in include if isinstance(include, list) else [include]:
        if name not in _INCLUDABLE:
            raise MalformedBody(f"the gateway cannot include {str(name)[:60]!r}")
    if _LOGPROBS in include or "top_logprobs" in body:
        chat["logprobs"] = True
    return chat | _tools(body)


def _object(body: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = body.get(name, {})
    if not isinstance(value, dict):
        raise MalformedBody(f"{name} must be an object, found {repr(value)[:40]}")
    return value


def _tools(body: Mapping[str, Any]) -> dict[str, Any]:
    given = body.get("tools", [])
    if not isinstance(given, list) or not all(isinstance(tool, dict) for tool in given):
        raise MalformedBody("tools must be a list of objects")
    for tool in given:
        if tool.get("type") != "function":
            raise MalformedBody(
                f"the gateway does not serve tools of type {str(tool.get('type'))[:40]!r}: functions alone"
            )
    if not given:
        return {}
    functions = [{name: value for name, value in tool.items() if name != "type"} for tool in given]
    choice = body.get("tool_choice", "auto")
    if isinstance(choice, dict):
        if choice.get("type") != "function" or not isinstance(choice.get("name"), str):
            raise MalformedBody(f"the gateway does not serve a tool_choice of type {str(choice.get('type'))[:40]!r}")
        choice = {"type": "function", "function": {"name": choice["name"]}}
    return {"tools": [{"type": "function", "function": function} for function in functions], "tool_choice": choice}


def _messages(given: Any, items: Mapping[str, Item | None]) -> list[dict[str, Any]]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list) or not all(isinstance(item, dict) for item in given):
        raise MalformedBody("input must be a text or a list of objects")
    messages: list[dict[str, Any]] = []
    for sent in given:
        item = _referred(_text(sent, "id"), items) if sent.get("type") == "item_reference" else sent
        kind = item.get("type", "message")
        if kind == "message":
            messages.append({"role": item.get("role", "user"), "content": _content(item.get("content"))})
        elif kind == "function_call":
            function = {"name": _text(item, "name"), "arguments": _text(item, "arguments")}
            call = {"id": _text(item, "call_id"), "type": "function", "function": function}
            if messages and messages[-1].get("tool_calls"):  # calls made together form one message of a chat
                messages[-1]["tool_calls"].append(call)
            else:
                messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        elif kind == "function_call_output":
            output = {"role": "tool", "tool_call_id": _text(item, "call_id"), "content": _content(item.get("output"))}
            messages.append(output)
        elif kind != "reasoning":  # reasoning of an earlier reply, sent back by agents; no chat takes it
            raise MalformedBody(f"the gateway does not know input items of type {str(kind)[:40]!r}")
    return messages


def _referred(name: str, items: Mapping[str, Item | None]) -> Item:
    """The item that a reference means: clients of the Responses API send references to earlier replies unless they say `store: false`."""
    if (item := items.get(name)) is None:
        why = "has sent different items under" if name in items else "has sent this account no item with"
        raise MalformedBody(
            f"the gateway {why} the id {name[:60]!r} of the 'item_reference': send the items themselves (store: false)"
        )
    return item


def _text(item: Mapping[str, Any], name: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise MalformedBody(f"an input item of type {item.get('type')!r} needs {name} as a text")
    return value


def _content(content: Any) -> Any:
    """Content of a chat message: a text, or parts where there are images among them."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise MalformedBody("content must be a text or a list of objects")
    parts = [_part(part) for part in content]
    if all(part["type"] == "text" for part in parts):
        return text_of(parts)
    return parts


def _part(part: Mapping[str, Any]) -> dict[str, Any]:
    kind = part.get("type")
    if kind in ("input_text", "output_text", "text", "refusal"):
        return {"type": "text", "text": str(part.get("refusal" if kind == "refusal" else "text", ""))}
    if kind == "input_image" and isinstance(part.get("image_url"), str):
        detail = {"detail": part["detail"]} if part.get("detail") else {}
        return {"type": "image_url", "image_url": {"url": part["image_url"], **detail}}
    raise MalformedBody(f"the gateway does not serve content of type {str(kind)[:40]!r}")


def response_from_chat(reply: Mapping[str, Any], body: Mapping[str, Any]) -> dict[str, Any]:
    """A chat completion in the form of the Responses API, with the settings of the request's body."""
    choice, message = first_choice(reply)
    name, reason = str(reply.get("id", "reply")), choice.get("finish_reason")
    why = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(str(reason))
    usage = usage_of(reply)
    tokens_in, tokens_out = usage.prompt or 0, usage.completion or 0
    echoed = {field: body[field] for field in _ECHOED if body.get(field) is not None}
    return {
        "id": f"resp_{name}",
        "object": "response",
        "created_at": reply.get("created", 0),
        "model": reply.get("model", ""),
        "status": "incomplete" if why else "completed",
        "incomplete_details": {"reason": why} if why else None,
        "error": None,
        "output": _output(choice, message, name),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        **echoed,
        "usage": {
            "input_tokens": tokens_in,
            "input_tokens_details": {"cached_tokens": usage.cached or 0},
            "output_tokens": tokens_out,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning or 0},
            "total_tokens": tokens_in + tokens_out,
        },
    }


def _output(choice: Mapping[str, Any], message: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    output: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    if text := text_of(message.get("content")):
        tokens = (choice.get("logprobs") or {}).get("content") or []
        parts.append({"type": "output_text", "text": text, "annotations": [], "logprobs": tokens})
    if message.get("refusal"):
        parts.append({"type": "refusal", "refusal": str(message["refusal"])})
    if parts:
        output.append(
            {"type": "message", "id": f"msg_{name}", "role": "assistant", "status": "completed", "content": parts}
        )
    for place, call in enumerate(message.get("tool_calls") or ()):
        made, function = str(call.get("id") or f"call_{name}_{place}"), call.get("function") or {}
        ids = {"id": f"fc_{made}", "call_id": made, "status": "completed"}
        asked = {"name": str(function.get("name", "")), "arguments": str(function.get("arguments") or "{}")}
        output.append({"type": "function_call", **ids, **asked})
    return output


def response_events(response: Mapping[str, Any]) -> Iterator[bytes]:
    """A complete response as the numbered events of a stream: each item first empty, then its parts in pieces, then as a whole."""
    for number, (kind, fields) in enumerate(_events(response)):
        value = {"type": kind, "sequence_number": number, **fields}
        yield f"event: {kind}\n".encode() + event(value)


def _events(response: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    begun = {**response, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    yield "response.created", {"response": begun}
    yield "response.in_progress", {"response": begun}
    for place, item in enumerate(response["output"]):
        at = {"output_index": place}
        empty: dict[str, Any] = {"content": []} if item["type"] == "message" else {"arguments": ""}
        yield "response.output_item.added", {**at, "item": {**item, "status": "in_progress", **empty}}
        where = {**at, "item_id": item["id"]}
        if item["type"] == "message":
            yield from _part_events(item["content"], where)
        else:
            for piece in pieces(item["arguments"]):
                yield "response.function_call_arguments.delta", {**where, "delta": piece}
            done = {"name": item["name"], "arguments": item["arguments"]}
            yield "response.function_call_arguments.done", {**where, **done}
        yield "response.output_item.done", {**at, "item": item}
    yield f"response.{response['status']}", {"response": response}


def _part_events(parts: Sequence[Mapping[str, Any]], where: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, part in enumerate(parts):
        at = {**where, "content_index": number}
        field = "text" if part["type"] == "output_text" else "refusal"
        tokens: dict[str, Any] = {"logprobs": part["logprobs"]} if field == "text" else {}
        none: dict[str, Any] = {"logprobs": []} if field == "text" else {}
        yield "response.content_part.added", {**at, "part": {**part, field: "", **none}}
        for index, piece in enumerate(pieces(part[field])):  # the tokens' log-probabilities come with the first piece
            yield f"response.{part['type']}.delta", {**at, "delta": piece, **(none if index else tokens)}
        yield f"response.{part['type']}.done", {**at, field: part[field], **tokens}
        yield "response.content_part.done", {**at, "part": part}
