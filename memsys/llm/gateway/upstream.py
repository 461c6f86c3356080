"""The sources of the gateway's chat replies: an endpoint, or the offline engine in its place."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from memsys.llm.endpoint import Endpoint
from memsys.llm.gateway.accounts import Purpose, text_of
from memsys.llm.gateway.bodies import LIMITS, MalformedBody, check_priced, limit_of, most_tokens_in
from memsys.llm.pricing import ModelSettings
from memsys.llm.protocol import LLM, Request
from memsys.llm.server import Sent
from memsys.tokens import count_tokens


class Upstream(Protocol):
    """Answers bodies of chat completions."""

    label: str
    """Part of the cache key, as in `memsys.llm.cache`."""
    model: str

    def prepared(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The body as it is sent: with the row's model and limits in place of the client's.

        Args:
            body: as `bodies.checked` returned it.

        Raises:
            MalformedBody: it cannot be sent, because its cost would have no bound.
        """

    async def reply(self, body: Mapping[str, Any], purpose: str, declared: Purpose | None) -> Sent:
        """The reply to a prepared body.

        Raises:
            ModelError: the call failed for good.
        """


class EndpointUpstream:
    """An endpoint, with its limits, retries and spending cap."""

    def __init__(self, endpoint: Endpoint, settings: ModelSettings) -> None:
        self._endpoint, self._settings = endpoint, settings
        self.label, self.model = endpoint.label, settings.model

    def prepared(self, body: Mapping[str, Any]) -> dict[str, Any]:
        settings = self._settings
        if settings.usd_per_million_in is not None:
            check_priced(body)
        sent = {name: value for name, value in body.items() if name not in LIMITS} | {"model": settings.model}
        if (asked := limit_of(body)) is not None:
            sent[settings.token_limit_field] = settings.output_limit(asked)
        elif settings.max_output_tokens is not None:
            sent[settings.token_limit_field] = settings.max_output_tokens
        elif settings.context_tokens is None and self._endpoint.purse.max_usd is not None:
            raise MalformedBody(
                "max_usd is set, so the length of the reply needs a limit: send max_tokens, or set one for all replies "
                "(--max-output-tokens of the gateway, endpoint.max_output_tokens of a run)"
            )
        if not settings.send_temperature:
            sent = {name: value for name, value in sent.items() if name not in ("temperature", "top_p")}
        if settings.reasoning_effort is not None:
            sent["reasoning_effort"] = settings.reasoning_effort
        return {**sent, **settings.extra_body}

    async def reply(self, body: Mapping[str, Any], purpose: str, declared: Purpose | None) -> Sent:
        self._endpoint.permitted()
        sent = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
        return await self._endpoint.reply("/chat/completions", sent, self._worst(sent), self._settings.cost_of)

    def _worst(self, sent: Mapping[str, Any]) -> float | None:
        """The highest possible cost in US dollars; None where the price is unknown or nothing limits the reply."""
        limit = limit_of(sent) or self._settings.context_tokens
        if self._settings.usd_per_million_in is None or limit is None:
            return None
        return self._settings.cost(most_tokens_in(sent), limit * (sent.get("n") or 1))


class EngineUpstream:
    """The offline engine: it answers requests by the `stand_in` of their purpose, and fills the schema or tool of other requests.

    A declared schema replaces the client's, which may allow replies that make no sense together. A declared `record` turns the values of
    the schema into plain text, for clients that do not ask for JSON.
    """

    def __init__(self, engine: LLM) -> None:
        self._engine = engine
        self.label, self.model = "offline", "extractive"

    def prepared(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {**body, "model": self.model}

    async def reply(self, body: Mapping[str, Any], purpose: str, declared: Purpose | None) -> Sent:
        stand_in = declared.stand_in if declared else {}
        tool = asked_tool(body, str(stand_in.get("tool", "")))
        schema = dict(stand_in.get("schema") or {}) or asked_schema(body, tool)
        request = self._request(body, purpose, stand_in, schema)
        # In a thread: the engine computes, and the loop serves others meanwhile.
        completion = await asyncio.to_thread(lambda: self._engine.submit(request).result())
        text, tokens_out = completion.text, completion.completion_tokens
        if "record" in stand_in:
            text = _records(stand_in, text)
            tokens_out = count_tokens(text)
        return _as_reply(tool, text, completion.prompt_tokens, tokens_out), 0.0, 1

    def _request(
        self, body: Mapping[str, Any], purpose: str, stand_in: Mapping[str, Any], schema: Mapping[str, Any]
    ) -> Request:
        messages = tuple((str(each.get("role")), text_of(each.get("content"))) for each in body["messages"])
        last = messages[-1][1] if messages else ""
        fields: dict[str, Any] = {"text": last, "texts": [last], "question": last}
        for name, pattern in (stand_in.get("fields") or {}).items():
            fields[name] = _picked([pattern] if isinstance(pattern, str) else pattern, last)
        limit = limit_of(body) or 512
        kind = str(stand_in.get("kind", "summarise" if schema else "chat"))
        return Request(messages, purpose, limit, schema=schema or None, kind=kind, fields=fields)


def asked_schema(body: Mapping[str, Any], tool: Mapping[str, Any] | None) -> dict[str, Any]:
    """The JSON schema that the reply, or the arguments of the called tool, must satisfy; empty if the request has no schema."""
    if tool is not None:
        return inlined(tool.get("parameters") or {"type": "object"})
    form = (body.get("response_format") or {}).get("json_schema") or {}
    return inlined(form["schema"]) if form.get("schema") else {}


def asked_tool(body: Mapping[str, Any], preferred: str = "") -> Mapping[str, Any] | None:
    """The tool to call: the tool that the client names, else the preferred tool, else the first; None if no tool is requested."""
    offered = [tool.get("function") for tool in body.get("tools") or ()]
    tools: list[Mapping[str, Any]] = [tool for tool in offered if isinstance(tool, Mapping)]
    choice = body.get("tool_choice", "auto")
    if not tools or choice == "none":
        return None
    wanted = choice.get("function", {}).get("name") if isinstance(choice, Mapping) else preferred
    return next((tool for tool in tools if tool.get("name") == wanted), tools[0])


def inlined(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema with its local references (`$ref`) replaced by their targets; a reference to itself becomes an empty object."""

    def resolve(value: Any, above: tuple[str, ...]) -> Any:
        if isinstance(value, list):
            return [resolve(inner, above) for inner in value]
        if not isinstance(value, Mapping):
            return value
        target = value.get("$ref")
        if isinstance(target, str) and target.startswith("#/"):
            if target in above:
                return {"type": "object", "properties": {}}
            found: Any = schema
            for part in target[2:].split("/"):
                found = found[part]
            return resolve(found, (*above, target))
        return {name: resolve(inner, above) for name, inner in value.items() if name not in ("$defs", "definitions")}

    resolved: dict[str, Any] = resolve(dict(schema), ())
    return resolved


def _as_reply(tool: Mapping[str, Any] | None, text: str, tokens_in: int, tokens_out: int) -> dict[str, Any]:
    """A chat completion with this text, or with a call of the tool."""
    name = hashlib.sha256(text.encode(errors="replace")).hexdigest()[:12]
    message: dict[str, Any] = {"role": "assistant", "content": text}
    reason = "stop"
    if tool is not None:
        arguments = text if _is_object(text) else json.dumps({"text": text})
        function = {"name": tool.get("name"), "arguments": arguments}
        message = {"role": "assistant", "content": None}
        message["tool_calls"] = [{"id": f"call_{name}", "type": "function", "function": function}]
        reason = "tool_calls"
    usage = {"prompt_tokens": tokens_in, "completion_tokens": tokens_out, "total_tokens": tokens_in + tokens_out}
    choice = {"index": 0, "message": message, "finish_reason": reason}
    return {"id": f"engine-{name}", "object": "chat.completion", "created": 0, "choices": [choice], "usage": usage}


def _records(stand_in: Mapping[str, Any], text: str) -> str:
    """A reply in plain text in place of JSON: a record for each element of a list, or one for an object."""
    value = json.loads(text)
    records = [stand_in["record"].format(**each) for each in (value if isinstance(value, list) else [value])]
    return str(stand_in.get("between", "\n")).join(records) + str(stand_in.get("end", ""))


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def _picked(patterns: Sequence[str], text: str) -> str | list[str]:
    """The first group of a pattern; with two patterns, the groups of each match of the second in the match of the first, joined by `: `."""
    outer, *inner = patterns
    match = re.search(outer, text, re.DOTALL)
    found = match[1] if match else ""
    return [_joined(each) for each in re.finditer(inner[0], found, re.DOTALL)] if inner else found


def _joined(match: re.Match[str]) -> str:
    """The groups that took part in a match; the whole match if there are none."""
    groups = [group for group in match.groups() if group is not None]
    return ": ".join(groups) if groups else match[0]
