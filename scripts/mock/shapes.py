"""The shapes in which servers send the same answer, for the mock endpoint: each function turns a plain reply and a thought into a shape."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

Reply = dict[str, Any]
Shape = Callable[[Reply, str], Reply]


def _with(reply: Reply, reason: str = "stop", **message: Any) -> Reply:
    """The reply with other fields in its message, and another finish reason."""
    choice = reply["choices"][0]
    changed = {**choice, "finish_reason": reason, "message": {**choice["message"], **message}}
    return {**reply, "choices": [changed]}


def _text(reply: Reply) -> str:
    return str(reply["choices"][0]["message"]["content"])


def _rewritten(form: str) -> Shape:
    """A shape that puts the text into a form with {thought} and {text}."""
    return lambda reply, thought: _with(
        reply, content=form.replace("{thought}", thought).replace("{text}", _text(reply))
    )


def _number(reply: Reply, thought: str) -> Reply:
    try:
        return _with(reply, content=json.loads(_text(reply)))
    except ValueError:
        return _with(reply, content=42)


def _cut(reply: Reply, thought: str) -> Reply:
    text = _text(reply)
    return _with(reply, "length", content=text[: -(-len(text) // 2)])


def _used(**usage: Any) -> Shape:
    return lambda reply, thought: {**reply, "usage": {**reply["usage"], **usage}}


_CALL = {"id": "call_1", "type": "function", "function": {"name": "answer", "arguments": "{}"}}

SHAPES: Mapping[str, Shape] = {
    "bare": lambda reply, thought: reply,
    "thought before": _rewritten("<think>\n{thought}\n</think>\n\n{text}"),
    "thought without opening tag": _rewritten("{thought}\n</think>\n\n{text}"),
    "thought unclosed": lambda reply, thought: _with(reply, "length", content=f"<think>\n{thought}"),
    "thought in its own field": lambda reply, thought: _with(reply, reasoning_content=thought),
    "thought in a part": lambda reply, thought: _with(
        reply,
        content=[
            {"type": "thinking", "thinking": [{"type": "text", "text": thought}]},
            {"type": "text", "text": _text(reply)},
        ],
    ),
    "cut": _cut,
    "cut in thought": lambda reply, thought: _with(reply, "length", content=None, reasoning=thought),
    "fenced": _rewritten("```json\n{text}\n```"),
    "harmony": _rewritten(
        "<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant<|channel|>final<|message|>{text}<|return|>"
    ),
    "harmony without tokens": _rewritten("analysisWell. {thought}assistantfinal{text}"),
    "parts": lambda reply, thought: _with(
        reply,
        content=[{"type": "text", "text": _text(reply)[:3]}, {"type": "text", "text": _text(reply)[3:]}],
    ),
    "number": _number,
    "null usage": _used(prompt_tokens=None),
    "string usage": _used(prompt_tokens="12", completion_tokens="many", prompt_tokens_details=[1]),
    "no usage": lambda reply, thought: {name: part for name, part in reply.items() if name != "usage"},
    "empty": lambda reply, thought: _with(reply, content=""),
    "refused": lambda reply, thought: _with(reply, "content_filter", content=None, refusal="I cannot help with that."),
    "tool call only": lambda reply, thought: _with(reply, "tool_calls", content=None, tool_calls=[_CALL]),
    "prompt cut": _used(prompt_tokens=1500),
}
"""Shapes by name; `prompt cut` reports too few prompt tokens, like a server with a short window."""

OVERFLOWS: Mapping[str, Reply] = {
    "overflow openai": {
        "error": {
            "message": "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens.",
            "type": "invalid_request_error",
            "param": "messages",
            "code": "context_length_exceeded",
        }
    },
    "overflow vllm": {
        "object": "error",
        "message": "The decoder prompt (length 9001) is longer than the maximum model length of 8192.",
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    },
    "overflow llama.cpp": {
        "error": {
            "code": 400,
            "message": "request (9001 tokens) exceeds the available context size (8192 tokens), try increasing it",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 9001,
            "n_ctx": 8192,
        }
    },
    "overflow ollama": {"error": "the input length exceeds the context length"},
}
"""Bodies of the HTTP 400 with which servers refuse a prompt that is too long."""
