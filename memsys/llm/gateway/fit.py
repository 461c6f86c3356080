"""Check that a chat reply has the requested form. Most programs ignore a reply that does not, so the gateway counts such replies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from memsys.llm.gateway.accounts import first_choice, text_of
from memsys.llm.gateway.upstream import inlined


def misfit(body: Mapping[str, Any], reply: Mapping[str, Any]) -> str:
    """The fault of a reply's form: `no JSON`, `not the schema`, `no tool call`, `unknown tool`, `cut` or `empty`; "" without a fault."""
    choice, message = first_choice(reply)
    calls = message.get("tool_calls") or []
    if choice.get("finish_reason") == "length":
        return "cut"
    if body.get("tools"):
        return _wrong_calls(body, calls)
    text = text_of(message.get("content"))
    if not text.strip() and not calls:
        return "empty"
    form = body.get("response_format") or {}
    if form.get("type") not in ("json_object", "json_schema"):
        return ""
    try:
        value = json.loads(text)
    except ValueError:
        return "no JSON"
    schema = {"type": "object"} if form["type"] == "json_object" else (form.get("json_schema") or {}).get("schema")
    return "not the schema" if schema and not fits(value, schema) else ""


def _wrong_calls(body: Mapping[str, Any], calls: list[Any]) -> str:
    functions = [tool["function"] for tool in body["tools"] if tool.get("type", "function") == "function"]
    tools = {function["name"]: function.get("parameters") for function in functions}
    if not calls:
        wanted = body.get("tool_choice", "auto")
        return "no tool call" if wanted == "required" or isinstance(wanted, Mapping) else ""
    for call in calls:
        if call.get("type", "function") != "function":
            continue  # a custom tool takes any text
        function = call.get("function") or {}
        if function.get("name") not in tools:
            return "unknown tool"
        try:
            arguments = json.loads(function.get("arguments") or "{}")
        except ValueError:
            return "no JSON"
        if (schema := tools[function["name"]]) and not fits(arguments, schema):
            return "not the schema"
    return ""


def fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a value satisfies a JSON schema; a schema that is not valid itself is satisfied by everything."""
    from jsonschema_rs import Draft202012Validator

    try:
        validator = Draft202012Validator(inlined(schema), retriever=_refused)
    except (KeyError, TypeError, ValueError):
        return True
    try:
        return bool(validator.is_valid(value))
    except UnicodeEncodeError:  # half of a surrogate pair in a name: no text
        return False


def _refused(address: str) -> Any:
    """Refuse to fetch the remote references of a schema, because the schema comes from a product."""
    raise ValueError(f"{address} is not fetched")
