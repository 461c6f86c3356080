"""What clients ask of the gateway: a name, a request, and what its client and the server behind the gateway must see of it.

`shows` and `sent` are texts that the reply, and the body that goes upstream, must hold; `paid` is how many calls go upstream. Each case is
asked live, and again in a replay with the server stopped, which must give the same bytes (`test_gateway_cases`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CHAT, RESPONSES, EMBEDDINGS = "v1/chat/completions", "v1/responses", "v1/embeddings"
REFUSED = 400
USER = {"role": "user", "content": "What grows in the garden?"}
PNG = "data:image/png;base64,iVBORw0KGgo="


@dataclass(frozen=True, slots=True)
class Case:
    """One request of a client and what becomes of it."""

    name: str
    path: str
    body: Any
    """JSON, or bytes as they are sent."""
    shows: tuple[str, ...] = ()
    sent: tuple[str, ...] = ()
    status: int = 200
    paid: int = 1
    shape: str = "bare"
    """How the server behind the gateway answers (`scripts.mock.shapes`)."""
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)


def chat(name: str, *shows: str, messages: Any = None, sent: Any = (), shape: str = "bare", **fields: Any) -> Case:
    """A chat request that is answered."""
    body = {"model": "any", "messages": [USER] if messages is None else messages, **fields}
    return Case(name, CHAT, body, shows, tuple(sent), shape=shape)


def response(name: str, *shows: str, given: Any = "Hello", sent: Any = (), shape: str = "bare", **fields: Any) -> Case:
    """A request of the Responses API that is answered."""
    return Case(name, RESPONSES, {"model": "any", "input": given, **fields}, shows, tuple(sent), shape=shape)


def refused(name: str, path: str, why: str, **body: Any) -> Case:
    """A request that is refused by name, before anything is paid."""
    return Case(name, path, body, (why, '"code":"invalid_request_error"'), status=REFUSED, paid=0)


def tool(name: str, **parameters: Any) -> dict[str, Any]:
    form = {"type": "object", "properties": parameters, "required": list(parameters)}
    return {"type": "function", "function": {"name": name, "parameters": form}}


def call(name: str, number: int = 1, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": f"call_{number}", "type": "function", "function": function}


WEATHER = tool("weather", place={"type": "string"})
PLANT = {"name": "plant", "schema": {"$ref": "#/$defs/plant", "$defs": {"plant": {"type": "object", "properties": {
    "name": {"type": "string"}, "age": {"type": "integer", "minimum": 3, "maximum": 9}}, "required": ["name", "age"]}}}}  # fmt: skip
ASKED = {"role": "assistant", "content": None, "tool_calls": [call("weather", place="Turin")]}
OUTPUT = {"role": "tool", "tool_call_id": "call_1", "content": "rain"}
WITHOUT = {name: value for name, value in ASKED.items() if name != "content"}
FUNCTION = {"type": "function", **WEATHER["function"]}
MADE = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"place": "Turin"}'}
GOT = {"type": "function_call_output", "call_id": "call_1", "output": "rain"}
EACH = {"stream_options": {"include_usage": True}, "stream": True}

CHATS = [
    chat("text", '"content":"mock answer', '"object":"chat.completion"', '"model":"any"'),
    chat("text, streamed", "data: [DONE]", '"finish_reason":"stop"', stream=True),
    chat("text, streamed with usage", '"prompt_tokens":6', **EACH),
    chat("n choices", '"index":2', '"finish_reason":"stop"', n=3, sent=['"n": 3']),
    chat("n choices, streamed", '"index":2', n=3, stream=True),
    chat("log-probabilities", '"logprob":-0.25', logprobs=True),
    chat("log-probabilities, streamed", '"logprob":-0.25', logprobs=True, stream=True),
    chat("stop, seed, penalties", seed=7, stop=["."], presence_penalty=0.1, logit_bias={"50256": -100},
         sent=['"seed": 7', '"stop": ["."]']),
    chat("max_tokens", max_tokens=9, sent=['"max_tokens": 9']),
    chat("max_tokens as 3.0", max_tokens=3.0, sent=['"max_tokens": 3']),
    chat("max_tokens null", max_tokens=None),
    chat("max_completion_tokens", max_completion_tokens=11, sent=['"max_tokens": 11']),
    chat("a developer's message", messages=[{"role": "developer", "content": "Be brief."}, USER], sent=["developer"]),
    chat("several turns", messages=[USER, {"role": "assistant", "content": "Tomatoes."}, USER], sent=["Tomatoes."]),
    chat("content in parts", messages=[{"role": "user", "content": [{"type": "text", "text": "parted"}]}],
         sent=["parted"]),
    chat("an image by URL", messages=[{"role": "user", "content": [
        {"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": "https://x.test/a.png"}}]}],
         sent=["https://x.test/a.png"]),
    chat("an image in the body", messages=[{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}]}], sent=["iVBORw0KGgo="]),
    chat("audio", messages=[{"role": "user", "content": [
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}]}], sent=["input_audio"]),
    chat("a tool is called", '"tool_calls"', '"name":"weather"', '"finish_reason":"tool_calls"', tools=[WEATHER]),
    chat("a tool is called, streamed", '"tool_calls"', '"index":0', tools=[WEATHER], stream=True),
    chat("a tool that is named", '"name":"second"', tools=[WEATHER, tool("second")],
         tool_choice={"type": "function", "function": {"name": "second"}}),
    chat("a tool that is required", '"name":"weather"', tools=[WEATHER], tool_choice="required"),
    chat("a choice of tools", '"name":"weather"', tools=[WEATHER], tool_choice={
        "type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [WEATHER]}}, sent=["allowed_tools"]),
    chat("no tool is wanted", '"content":"mock answer', tools=[WEATHER], tool_choice="none"),
    chat("a tool loop, content null", '"content":"mock answer', messages=[USER, ASKED, OUTPUT], tools=[WEATHER],
         sent=['"tool_call_id": "call_1"', '"content": null']),
    chat("a tool loop, no content", '"content":"mock answer', messages=[USER, WITHOUT, OUTPUT], tools=[WEATHER]),
    chat("a tool loop, streamed", '"delta":{"content":"mock answer', messages=[USER, ASKED, OUTPUT], tools=[WEATHER],
         stream=True),
    chat("a tool loop without tools", '"content":"mock answer', messages=[USER, ASKED, OUTPUT]),
    chat("a tool loop, content empty", messages=[USER, {**ASKED, "content": ""}, OUTPUT], tools=[WEATHER]),
    chat("a tool loop, output in parts", messages=[USER, ASKED,
         {**OUTPUT, "content": [{"type": "text", "text": "rain"}]}], tools=[WEATHER]),
    chat("two calls at once", messages=[USER, {**ASKED, "tool_calls": [call("weather", 1), call("weather", 2)]}, OUTPUT,
         {**OUTPUT, "tool_call_id": "call_2"}], tools=[WEATHER]),
    chat("a second round of tools", '"content":"mock answer', messages=[USER, ASKED, OUTPUT, USER, ASKED, OUTPUT],
         tools=[WEATHER]),
    chat("parallel_tool_calls false", '"tool_calls"', tools=[WEATHER], parallel_tool_calls=False),
    chat("128 tools", '"name":"tool_0"', tools=[tool(f"tool_{number}") for number in range(128)]),
    chat("a custom tool beside a function", '"name":"weather"',
         tools=[{"type": "custom", "custom": {"name": "shell"}}, WEATHER], sent=['"custom"']),
    chat("a custom tool alone", '"content":"mock answer', tools=[{"type": "custom", "custom": {"name": "shell"}}]),
    chat("a tool without parameters", '"arguments":"{}"', tools=[tool("now")]),
    chat("a schema with references", r"\"age\":", response_format={"type": "json_schema", "json_schema": PLANT}),
    chat("a schema, streamed", "age", response_format={"type": "json_schema", "json_schema": PLANT}, stream=True),
    chat("any object", '"content":"{}"', response_format={"type": "json_object"}),
    chat("fields that do not change the reply", store=False, user="u", metadata={"a": "b"}, safety_identifier="s"),
    chat("stream false", '"object":"chat.completion"', stream=False),
    chat("stream null", '"object":"chat.completion"', stream=None),
    chat("reasoning_effort", reasoning_effort="low", sent=['"reasoning_effort": "low"']),
    chat("a lone surrogate", messages=[{"role": "user", "content": "cut \ud83d emoji"}]),
    chat("other alphabets", messages=[{"role": "user", "content": "Ĝardeno 庭 🌱"}], sent=[r"\u011cardeno"]),
    chat("a long prompt", messages=[{"role": "user", "content": "word " * 200_000}]),
    chat("an empty prompt", messages=[{"role": "user", "content": ""}]),
    chat("a reply in parts", '"type":"text"', shape="parts"),
    chat("a reply with thought in a field", '"reasoning_content"', shape="thought in its own field"),
    chat("a reply with thought, streamed", '"reasoning_content"', shape="thought in its own field", stream=True),
    chat("a reply with thought in the text", "think>", shape="thought before"),
    chat("a cut reply", '"finish_reason":"length"', shape="cut"),
    chat("an empty reply", '"content":""', shape="empty"),
    chat("a refusal", '"refusal":"I cannot help with that."', shape="refused"),
    chat("a call that nobody asked for", '"tool_calls"', shape="tool call only"),
    chat("no usage", '"prompt_tokens":6', shape="no usage"),
    chat("null usage", '"prompt_tokens":6', shape="null usage"),
    chat("cached and reasoning tokens", '"cached_tokens":3', '"reasoning_tokens":2', shape="detailed"),
    chat("cached tokens, streamed", '"cached_tokens":3', shape="detailed", **EACH),
    *(
        Case(f"{shape}, {way}", CHAT, {"messages": [{"role": "user", "content": f"too long {shape} {way}"}], **fields},
             ('"code":"context_length_exceeded"', "HTTP 400"), status=REFUSED, shape=shape)
        for shape in ("overflow openai", "overflow vllm", "overflow llama.cpp", "overflow ollama")
        for way, fields in (("whole", {}), ("streamed", {"stream": True}))
    ),
    Case("an overflow of a response", RESPONSES, {"input": "too long"}, ("context_length_exceeded",), status=REFUSED,
         shape="overflow openai"),
]  # fmt: skip

RESPONDED = [
    response("a response", '"type":"output_text"', '"status":"completed"', '"object":"response"', instructions="Be brief.",
             sent=['"role": "system"']),
    response("a response to items", given=[{"role": "user", "content": [{"type": "input_text", "text": "parted"}]}],
             sent=['"content": "parted"']),
    response("a response, streamed", "response.created", "response.in_progress", "response.output_item.added",
             "response.content_part.added", "response.output_text.delta", "response.output_text.done",
             "response.content_part.done", "response.output_item.done", "response.completed", '"sequence_number":8',
             stream=True),
    response("a function call", '"type":"function_call"', '"name":"weather"', tools=[FUNCTION]),
    response("a function call, streamed", "response.function_call_arguments.delta", tools=[FUNCTION], stream=True,
             sent=['"tool_choice": "auto"']),
    response("a function that is named", '"name":"weather"', tools=[FUNCTION],
             tool_choice={"type": "function", "name": "weather"}),
    response("a tool loop in responses", '"type":"output_text"', given=[{"role": "user", "content": "x"}, MADE, GOT],
             tools=[FUNCTION], sent=['"role": "tool"']),
    response("two calls of one turn", given=[{"role": "user", "content": "x"}, MADE, {**MADE, "call_id": "call_2"}, GOT,
             {**GOT, "call_id": "call_2"}], tools=[FUNCTION], sent=['}}, {"id": "call_2"']),
    response("a reasoning item that is sent back", given=[{"role": "user", "content": "x"},
             {"type": "reasoning", "id": "rs_1", "summary": []}, {"role": "assistant", "content": "y"},
             {"role": "user", "content": "z"}], include=["reasoning.encrypted_content"]),
    response("an image in a response", given=[{"role": "user", "content": [
             {"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": PNG, "detail": "auto"}]}],
             sent=['"type": "image_url"', "iVBORw0KGgo="]),
    response("log-probabilities of a response", '"logprob":-0.25', include=["message.output_text.logprobs"], top_logprobs=1,
             sent=['"logprobs": true', '"top_logprobs": 1']),
    response("usage of a response", '"cached_tokens":3', '"reasoning_tokens":2', shape="detailed"),
    response("a schema of a response", "age", text={"format": {"type": "json_schema", **PLANT}},
             sent=['"json_schema"']),
    response("any object of a response", text={"format": {"type": "json_object"}}, sent=['"json_object"']),
    response("plain text asked for by name", text={"format": {"type": "text"}, "verbosity": "low"},
             sent=['"verbosity": "low"']),
    response("a limit of a response", max_output_tokens=17, sent=['"max_tokens": 17']),
    response("an effort of a response", reasoning={"effort": "low"}, sent=['"reasoning_effort": "low"']),
    response("a cut response", '"status":"incomplete"', '"reason":"max_output_tokens"', shape="cut"),
    response("a cut response, streamed", "response.incomplete", shape="cut", stream=True),
    response("a refused response", '"type":"refusal"', shape="refused"),
    response("fields that are null", previous_response_id=None, tools=None, truncation=None, background=None, text=None),
    response("fields with the value that changes nothing", truncation="disabled", background=False, store=True),
    refused("an earlier response", RESPONSES, "'previous_response_id'", input="x", previous_response_id="resp_1"),
    refused("a conversation", RESPONSES, "'conversation'", input="x", conversation="c"),
    refused("a stored prompt", RESPONSES, "'prompt'", input="x", prompt={"id": "p"}),
    refused("a background response", RESPONSES, "'background'", input="x", background=True),
    refused("a truncated response", RESPONSES, "'truncation'", input="x", truncation="auto"),
    refused("a built-in tool", RESPONSES, "'web_search_preview'", input="x", tools=[{"type": "web_search_preview"}]),
    refused("a built-in tool among functions", RESPONSES, "'file_search'", input="x",
            tools=[FUNCTION, {"type": "file_search"}]),
    refused("a file in a response", RESPONSES, "'input_file'", input=[
            {"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]),
    refused("an image by its id", RESPONSES, "'input_image'", input=[
            {"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]),
    refused("a reference to an item", RESPONSES, "'item_reference': send the items themselves (store: false)",
            input=[{"type": "item_reference", "id": "x"}]),
    refused("something to include", RESPONSES, "file_search_call.results", input="x", include=["file_search_call.results"]),
    refused("tools of a response that are texts", RESPONSES, "tools must be a list of objects", input="x", tools=["x"]),
    refused("text of a response that is a text", RESPONSES, "text must be an object", input="x", text="x"),
    refused("reasoning that is a text", RESPONSES, "reasoning must be an object", input="x", reasoning="low"),
    refused("a response without input", RESPONSES, "input must be"),
    refused("input that is a number", RESPONSES, "input must be", input=3),
    refused("a function call without a name", RESPONSES, "needs name", input=[{"type": "function_call", "call_id": "c"}]),
]  # fmt: skip

ODD = [
    *(
        refused(f"{name} {json.dumps(value)}", CHAT, name.split(".")[0], messages=[USER], **{name: value})
        for name, values in {
            "max_tokens": ["3", True, -1, 0, 2.5, 1e30, [], {}], "max_completion_tokens": [-1_000_000_000, False],
            "n": [0, -1, 1.5, "2", 129, True], "response_format": ["json", [1]], "stream_options": [[1], "x"],
            "stream": ["true", 1], "tools": ["x", {}, [1], [{"type": "function"}], [{"type": "function", "function": {}}]],
            "tool_choice": [3], "functions": ["x"], "parallel_tool_calls": ["no"],
        }.items()
        for value in values
    ),
    *(
        refused(f"messages {json.dumps(value)}", CHAT, "messages", messages=value)
        for value in ([], "hi", {}, ["hi"], [3], [{"content": "x"}], [{"role": 3, "content": "x"}], None,
                      [{"role": "user", "content": 3}], [{"role": "user", "content": ["x"]}],
                      [{**ASKED, "tool_calls": "x"}], [{**ASKED, "tool_calls": [1]}])
    ),
    *(
        Case(f"a body that is {name}", CHAT, raw, ("invalid_request_error",), status=REFUSED, paid=0)
        for name, raw in {
            "cut": b'{"messages": [', "a list": b"[1]", "empty": b"", "a text": b'"x"', "null": b"null", "no UTF-8": b"\xff\xfe",
            "nested too deeply": b"[" * 100_000, "NaN": b'{"messages": NaN}',
        }.items()
    ),
]  # fmt: skip

OTHERS = [
    Case("embeddings", EMBEDDINGS, {"model": "any", "input": ["a tomato", "a boat"]}, ('"index":1', '"object":"list"')),
    Case("an embedding of one text", EMBEDDINGS, {"model": "any", "input": "one text"}, ('"embedding":[',)),
    Case("embeddings in base64", EMBEDDINGS, {"input": ["base"], "encoding_format": "base64"}, ('"embedding":"',)),
    Case("embeddings of token ids", EMBEDDINGS, {"input": [[15339], [1917]]}, ('"index":1',), ("hello",)),
    Case("dimensions", EMBEDDINGS, {"input": ["a short one"], "dimensions": 16}, (), ('"dimensions": 16',)),
    Case("dimensions above the usual number", EMBEDDINGS, {"input": ["a long one"], "dimensions": 96}, (),
         ('"dimensions": 96',)),
    Case("2,048 texts", EMBEDDINGS, {"input": [f"t{n}" for n in range(2048)]}, ('"index":2047',), paid=16),
    refused("2,049 texts", EMBEDDINGS, "at most 2048", input=[f"t{n}" for n in range(2049)]),
    refused("no input", EMBEDDINGS, "input must be"),
    refused("an input of numbers and texts", EMBEDDINGS, "input must be", input=[[1, "a"]]),
    refused("an unknown form of vectors", EMBEDDINGS, "encoding_format", input="x", encoding_format="int8"),
    *(
        refused(f"dimensions {json.dumps(value)}", EMBEDDINGS, "dimensions", input="one text", dimensions=value)
        for value in (0, -1, "16", True, 10**9)
    ),
    Case("the models", "v1/models", None, ('"id":"mock"', '"object":"list"'), paid=0, method="GET"),
    Case("one model", "v1/models/gpt-4.1", None, ('"id":"gpt-4.1"',), paid=0, method="GET"),
    Case("a model with a slash", "v1/models/org/name", None, ('"id":"org/name"',), paid=0, method="GET"),
    Case("HEAD of the models", "v1/models", None, paid=0, method="HEAD"),
    *(
        Case(f"{method} of {path}", f"v1/{path}", {} if method == "POST" else None, ('"not_found"', path), status=404,
             paid=0, method=method)
        for method, path in (("POST", "completions"), ("POST", "moderations"), ("GET", "responses/resp_1"),
                             ("POST", "audio/speech"), ("POST", "images/generations"), ("DELETE", "models/x"),
                             ("GET", "files"), ("POST", "batches"))
    ),
    Case("a form, as curl sends it", CHAT, {"messages": [USER]}, ("Content-Type: application/json",), status=415, paid=0,
         headers={"Content-Type": "application/x-www-form-urlencoded"}),
    Case("JSON with a charset", CHAT, {"messages": [USER]}, ("mock answer",),
         headers={"Content-Type": "application/json; charset=utf-8"}),
]  # fmt: skip

CASES = [*CHATS, *RESPONDED, *ODD, *OTHERS]
