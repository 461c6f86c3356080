"""The shapes in which servers send the same answer, for the mock endpoint: each function turns a plain reply and a thought into a shape.

Quirks of real endpoints are features that they refuse, ignore, lack, or silently cut: `python -m scripts mock-endpoint --quirks ollama`
serves one of `SETS`. With quirks the mock also answers the doctor's few requests (a code word, counting, a random number) like a model, so
that every failure comes from the quirk.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from memsys.embed import HashingEmbedder
from memsys.llm.gateway.accounts import text_of
from memsys.tokens import count_tokens, truncate

Way = Literal["honoured", "ignored", "refused"]
Answered = tuple[int, dict[str, Any]]
"""HTTP status and body."""


@dataclass(frozen=True, slots=True)
class Quirks:
    """The behaviour of an endpoint; with the defaults it supports everything."""

    window: int | None = None
    cuts: bool = False
    """Whether a prompt beyond the window is silently cut from the front; else it is refused."""
    limit_field: str = ""
    """The only token limit field that it accepts; empty accepts both."""
    temperature: Way = "honoured"
    schema: Way = "honoured"
    json_object: Way = "honoured"
    logprobs: Way = "honoured"
    usage: bool = True
    thinks: Literal["", "text", "field"] = ""
    switch: str = ""
    """The field of the body that switches its reasoning off; empty if there is none."""
    key: str = ""
    """The only key that it accepts; empty accepts any."""
    at_once: int | None = None
    """Maximum number of concurrent calls; further calls get a 429."""
    reversed_batches: bool = False
    """Whether vectors of a batch come in the wrong order, with an index that hides it."""
    dimension: int = 512


SETS: Mapping[str, Quirks] = {
    "plain": Quirks(),
    "ollama": Quirks(window=4096, cuts=True, logprobs="ignored", schema="ignored", at_once=4),
    "reasoning": Quirks(
        limit_field="max_completion_tokens",
        temperature="refused",
        logprobs="refused",
        thinks="field",
        switch="reasoning_effort",
        window=8192,
        key="sk-quirks",
    ),
    "bare": Quirks(
        usage=False,
        temperature="ignored",
        schema="refused",
        json_object="refused",
        logprobs="ignored",
        thinks="text",
        reversed_batches=True,
        dimension=32,
    ),
}


class QuirkyServer:
    """Replies like an endpoint with these quirks; `plain` makes the text of requests that need no special answer."""

    def __init__(self, quirks: Quirks, plain: Callable[[dict[str, Any], str], str]) -> None:
        self.quirks, self._plain = quirks, plain
        self._under_way = 0
        self._embedder = HashingEmbedder(quirks.dimension)

    async def reply(self, path: str, body: dict[str, Any], authorization: str) -> Answered:
        """Status and body for one POST."""
        if self.quirks.key and authorization != f"Bearer {self.quirks.key}":
            return _error(401, "Incorrect API key provided")
        if path.endswith("/embeddings"):
            return self._embeddings(body)
        self._under_way += 1
        try:
            if self.quirks.at_once is not None:
                if self._under_way > self.quirks.at_once:
                    return _error(429, "too many requests at once")
                await asyncio.sleep(0.02)
                if self._under_way > 1:  # so that calls that are sent together are really concurrent
                    await asyncio.sleep(0.3)
            return self._chat(body)
        finally:
            self._under_way -= 1

    def _chat(self, body: dict[str, Any]) -> Answered:
        if (refusal := self._refusal(body)) is not None:
            return refusal
        quirks, prompt = self.quirks, "\n".join(text_of(message.get("content")) for message in body["messages"])
        tokens = count_tokens(prompt)
        if quirks.window is not None and tokens > quirks.window:
            if not quirks.cuts:
                return _error(400, f"This model's maximum context length is {quirks.window} tokens, not {tokens}")
            # About as many tokens as fit, at the end; the beginning is lost.
            prompt, tokens = prompt[-int(len(prompt) * quirks.window / tokens) :], quirks.window
        thinks = bool(quirks.thinks) and not (quirks.switch and body.get(quirks.switch) in ("none", "minimal", False))
        thought = "<think>Let me see.</think>" if thinks and quirks.thinks == "text" else ""
        said, finish = thought + self._text(body, prompt), "stop"
        limit = body.get("max_completion_tokens", body.get("max_tokens"))
        if limit is not None and count_tokens(said) > limit:
            said, finish = truncate(said, limit), "length"
        message: dict[str, Any] = {"role": "assistant", "content": said}
        if thinks and quirks.thinks == "field":
            message["reasoning_content"] = "Let me see."
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish, "message": message}
        if body.get("logprobs") and quirks.logprobs == "honoured":
            choice["logprobs"] = {"content": [{"token": word, "logprob": -0.25} for word in said.split()]}
        value: dict[str, Any] = {"id": "quirky", "model": body["model"], "choices": [choice]}
        if quirks.usage:
            spent = count_tokens(said)
            value["usage"] = {"prompt_tokens": tokens, "completion_tokens": spent, "total_tokens": tokens + spent}
        return 200, value

    def _refusal(self, body: Mapping[str, Any]) -> Answered | None:
        """The HTTP 400 for a field that it does not accept."""
        limits = {"max_tokens", "max_completion_tokens"} & set(body)
        if self.quirks.limit_field and limits - {self.quirks.limit_field}:
            return _error(400, f"Unsupported parameter: {limits.pop()}; use {self.quirks.limit_field} instead")
        form = (body.get("response_format") or {}).get("type")
        refused = {
            "temperature": "temperature" in body and self.quirks.temperature == "refused",
            "logprobs": bool(body.get("logprobs")) and self.quirks.logprobs == "refused",
            "response_format json_schema": form == "json_schema" and self.quirks.schema == "refused",
            "response_format json_object": form == "json_object" and self.quirks.json_object == "refused",
        }
        named = [name for name, applies in refused.items() if applies]
        return _error(400, f"Unsupported value: {named[0]} is not taken by this model") if named else None

    def _text(self, body: dict[str, Any], prompt: str) -> str:
        form = (body.get("response_format") or {}).get("type")
        if form == "json_object" and self.quirks.json_object == "honoured":
            return json.dumps({"greeting": "hello"})
        if form is not None:
            plain = {name: value for name, value in body.items() if name != "response_format"}
            return self._plain(body if self.quirks.schema == "honoured" else plain, _hash(body))
        if "What is the code word" in prompt:
            stated = re.search(r"The code word is ([a-z ]+)\.", prompt)
            return stated[1] if stated else "I was given none."
        if (count := re.search(r"Count from 1 to (\d+)", prompt)) is not None:
            return " ".join(map(str, range(1, int(count[1]) + 1)))
        if "random number" in prompt and self.quirks.temperature == "honoured":
            drawn = {"seed": body.get("seed")} if body.get("temperature") else {}
            return str(int(_hash({"prompt": prompt, **drawn})[:5], 16))
        return self._plain({"messages": body["messages"]}, _hash({"prompt": prompt}))

    def _embeddings(self, body: Mapping[str, Any]) -> Answered:
        texts = [body["input"]] if isinstance(body["input"], str) else list(body["input"])
        vectors = list(self._embedder.embed(texts))
        if self.quirks.reversed_batches:
            vectors.reverse()
        rows = [
            {"index": place, "embedding": [round(float(x), 6) for x in vector]} for place, vector in enumerate(vectors)
        ]
        value: dict[str, Any] = {"data": rows, "model": body["model"]}
        if self.quirks.usage:
            tokens = sum(map(count_tokens, texts))
            value["usage"] = {"prompt_tokens": tokens, "total_tokens": tokens}
        return 200, value


def _error(status: int, message: str) -> Answered:
    return status, {"error": {"message": message, "type": "invalid_request_error"}}


def _hash(parts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


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
