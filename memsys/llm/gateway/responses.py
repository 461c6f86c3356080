"""The Responses API on top of chat completions: translates a body, a reply, and the events of a stream.

A field that has no counterpart in a chat completion is refused by name, because a reply that ignored it would look complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from memsys.llm.gateway.accounts import first_choice, text_of
from memsys.llm.gateway.bodies import MalformedBody, event, pieces

_SAME = ("model", "temperature", "top_p", "store", "user", "metadata", "parallel_tool_calls", "seed", "stream", "top_logprobs",
         "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "service_tier")  # fmt: skip
_MAPPED = (
    "input",
    "instructions",
    "max_output_tokens",
    "text",
    "reasoning",
    "tools",
    "tool_choice",
    "include",
    "stream_options",
)
_VAIN = {"truncation": "disabled", "background": False}
"""Fields that a body may have, with the value that changes nothing."""
_LOGPROBS = "message.output_text.logprobs"
_INCLUDABLE = (_LOGPROBS, "reasoning.encrypted_content")
"""The second value concerns items that no chat completion has, so there is nothing to leave out."""
_ECHOED = ("instructions", "metadata", "temperature", "top_p", "tools", "tool_choice", "parallel_tool_calls", "text")


def chat_from_response(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a chat completion that asks for the same as a body of the Responses API.

    Raises:
        MalformedBody: it asks for something that has no counterpart, or a part has another type than the API declares.
    """
    body = {name: value for name, value in body.items() if value is not None}
    for name, value in body.items():
        if name not in (*_SAME, *_MAPPED) and (name not in _VAIN or value != _VAIN[name]):
            raise MalformedBody(f"the gateway does not serve the field {name!r} of the Responses API")
    chat: dict[str, Any] = {name: body[name] for name in _SAME if name in body}
    chat["messages"] = [*_system(body), *_messages(body.get("input", ""))]
    if "max_output_tokens" in body:
        chat["max_completion_tokens"] = body["max_output_tokens"]
    text, reasoning = _object(body, "text"), _object(body, "reasoning")
    chat |= _format(text)
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


def _system(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    instructions = body.get("instructions", "")
    if not isinstance(instructions, str):
        raise MalformedBody("instructions must be a text")
    return [{"role": "system", "content": instructions}] if instructions else []


def _format(text: Mapping[str, Any]) -> dict[str, Any]:
    form = _object(text, "format")
    if form.get("type") == "json_schema":
        inner = {name: value for name, value in form.items() if name != "type"}
        return {"response_format": {"type": "json_schema", "json_schema": inner}}
    return {"response_format": {"type": "json_object"}} if form.get("type") == "json_object" else {}


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


def _messages(given: Any) -> list[dict[str, Any]]:
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list) or not all(isinstance(item, dict) for item in given):
        raise MalformedBody("input must be a text or a list of objects")
    messages: list[dict[str, Any]] = []
    for item in given:
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
    usage = reply.get("usage") or {}
    tokens_in, tokens_out = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
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
            "input_tokens_details": {"cached_tokens": _detail(usage, "prompt_tokens_details", "cached_tokens")},
            "output_tokens": tokens_out,
            "output_tokens_details": {
                "reasoning_tokens": _detail(usage, "completion_tokens_details", "reasoning_tokens")
            },
            "total_tokens": tokens_in + tokens_out,
        },
    }


def _detail(usage: Mapping[str, Any], group: str, name: str) -> int:
    details = usage.get(group)
    count = details.get(name) if isinstance(details, Mapping) else None
    return count if isinstance(count, int) else 0


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
