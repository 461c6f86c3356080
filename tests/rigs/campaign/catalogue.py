"""Bad replies, one line each: description, required reaction of the run, and change of a good reply.

- `read`: the answer can still be read; the run writes the same bytes as an undisturbed run.
- `none`: the reply has no usable answer; this is counted, and all files say so.
- `fails`: the call fails for good; a healthy rerun completes the results, with the same bytes as an undisturbed run.
- `told`: the reply differs from the good reply, and is kept; scores may change, but the counts add up.
"""

from __future__ import annotations

import copy
import gzip
import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from scripts.mock.shapes import OVERFLOWS, SHAPES
from tests.rigs.campaign.trial import KEY

Taken = Literal["read", "none", "fails", "told"]
Reply = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Sent:
    """A response of the server."""

    body: bytes
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    broken_off: bool = False
    """Whether the connection is closed before the announced length."""
    late: bool = False
    """Whether the response comes after the client's timeout."""


@dataclass(frozen=True, slots=True)
class Bad:
    """One kind of reply."""

    kind: str
    to: Literal["chat", "embeddings"]
    taken: Taken
    made: Callable[[Reply], Reply | Sent]


def usage(**counts: Any) -> Callable[[Reply], Reply]:
    return lambda reply: {**reply, "usage": {**reply["usage"], **counts}}


def field_is(name: str, value: Any) -> Callable[[Reply], Reply]:
    return lambda reply: {**reply, name: value}


def without(name: str) -> Callable[[Reply], Reply]:
    return lambda reply: {key: value for key, value in reply.items() if key != name}


def choice(**fields: Any) -> Callable[[Reply], Reply]:
    return lambda reply: {**reply, "choices": [{**reply["choices"][0], **fields}]}


def content(value: Any) -> Callable[[Reply], Reply]:
    return lambda reply: choice(message={"role": "assistant", "content": value})(reply)


def text(change: Callable[[str], str]) -> Callable[[Reply], Reply]:
    return lambda reply: content(change(reply["choices"][0]["message"]["content"]))(reply)


def raw(body: bytes | str, status: int = 200, **headers: str) -> Callable[[Reply], Sent]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda reply: Sent(body if isinstance(body, bytes) else body.encode(), status, named)


def packed(pack: Callable[[bytes], bytes], encoding: str) -> Callable[[Reply], Sent]:
    return lambda reply: Sent(pack(json.dumps(reply).encode()), headers={"Content-Encoding": encoding})


def written(change: Callable[[str], str]) -> Callable[[Reply], Sent]:
    """The reply's JSON text, changed."""
    return lambda reply: Sent(change(json.dumps(reply)).encode())


def vectors(change: Callable[[list[Any]], Any]) -> Callable[[Reply], Reply]:
    """The list of vectors, changed."""
    return lambda reply: {**reply, "data": change(copy.deepcopy(reply["data"]))}


def first(value: Callable[[list[float]], Any]) -> Callable[[Reply], Reply]:
    """The first vector, changed."""
    return vectors(lambda rows: [{**rows[0], "embedding": value(rows[0]["embedding"])}, *rows[1:]])


def number(value: Any) -> Callable[[Reply], Reply]:
    """The first number of the first vector."""
    return first(lambda vector: [value, *vector[1:]])


def indexes(index: Callable[[int, int], Any]) -> Callable[[Reply], Reply]:
    """Change the index of each vector, from its position and the number of vectors."""
    return vectors(lambda rows: [{**row, "index": index(at, len(rows))} for at, row in enumerate(rows)])


def shape(name: str) -> Callable[[Reply], Reply]:
    return lambda reply: SHAPES[name](reply, "Could it be yes? Or no?")


READ: tuple[str, ...] = (
    *("thought before", "thought without opening tag", "thought in its own field", "thought in a part", "harmony"),
    *("harmony without tokens", "parts", "null usage", "string usage", "no usage"),
)
NONE = ("thought unclosed", "cut in thought", "empty", "refused", "tool call only")
TOLD = ("cut", "fenced", "number", "prompt cut")
HUGE = b'{"choices": [{"message": {"content": "' + b"x" * (33 << 20)
BOMB = gzip.compress(HUGE, 1)
OTHER = {"index": 1, "message": {"role": "assistant", "content": "no"}, "finish_reason": "stop"}
WRONG_TYPES = '{"facts": 7, "answer": [], "keywords": {"a": null}, "score": "high"}'
DEEP = "[" * 100_000 + "]" * 100_000

CATALOGUE: tuple[Bad, ...] = (
    *(Bad(name, "chat", "read", shape(name)) for name in READ),
    *(Bad(name, "chat", "none", shape(name)) for name in NONE),
    *(Bad(name, "chat", "told", shape(name)) for name in TOLD),
    *(Bad(name, "chat", "fails", raw(json.dumps(body), 400)) for name, body in OVERFLOWS.items()),
    Bad("usage is null", "chat", "read", field_is("usage", None)),
    Bad("usage is a list", "chat", "read", field_is("usage", [1, 2])),
    Bad("usage is text", "chat", "read", field_is("usage", "many")),
    Bad("prompt tokens negative", "chat", "read", usage(prompt_tokens=-7)),
    Bad("prompt tokens true", "chat", "read", usage(prompt_tokens=True)),
    Bad("prompt tokens a fraction", "chat", "read", usage(prompt_tokens=12.5)),
    Bad("prompt tokens beyond 64 bits", "chat", "read", usage(prompt_tokens=10**30)),
    Bad("prompt tokens NaN", "chat", "read", usage(prompt_tokens=float("nan"))),
    Bad("completion tokens infinite", "chat", "read", usage(completion_tokens=float("inf"))),
    Bad("completion tokens null", "chat", "read", usage(completion_tokens=None)),
    Bad("completion tokens an object", "chat", "read", usage(completion_tokens={"count": 3})),
    Bad("token details text", "chat", "read", usage(prompt_tokens_details="none", completion_tokens_details=7)),
    Bad("model missing", "chat", "read", without("model")),
    Bad("model a number", "chat", "read", field_is("model", 7)),
    Bad("id null", "chat", "read", field_is("id", None)),
    Bad("unknown fields", "chat", "read", field_is("x_vendor", {"deep": [None, {"": 1e308}]})),
    Bad("second choice that differs", "chat", "read", lambda reply: {**reply, "choices": [*reply["choices"], OTHER]}),
    Bad("finish reason missing", "chat", "read", choice(finish_reason=None)),
    Bad("finish reason a number", "chat", "read", choice(finish_reason=7)),
    Bad("finish reason unknown", "chat", "read", choice(finish_reason="because")),
    Bad("log-probabilities of the wrong type", "chat", "told", choice(logprobs="none")),
    Bad("log-probabilities null inside", "chat", "told", choice(logprobs={"content": [None, {"token": None, "logprob": "x"}]})),
    Bad("log-probabilities NaN", "chat", "told", choice(logprobs={"content": [{"token": "1", "logprob": float("nan")}]})),
    Bad("gzip", "chat", "read", packed(gzip.compress, "gzip")),
    Bad("deflate", "chat", "read", packed(zlib.compress, "deflate")),
    Bad("space around", "chat", "read", written(lambda body: f"\r\n\r\n  {body}  \n\n")),
    Bad("choices empty", "chat", "fails", field_is("choices", [])),
    Bad("choices null", "chat", "fails", field_is("choices", None)),
    Bad("choices missing", "chat", "fails", without("choices")),
    Bad("choices an object", "chat", "fails", field_is("choices", {"0": {}})),
    Bad("choices text", "chat", "fails", field_is("choices", "yes")),
    Bad("choice null", "chat", "fails", field_is("choices", [None])),
    Bad("choice a number", "chat", "fails", field_is("choices", [7])),
    Bad("message missing", "chat", "fails", field_is("choices", [{"index": 0, "finish_reason": "stop"}])),
    Bad("message null", "chat", "fails", choice(message=None)),
    Bad("message text", "chat", "fails", choice(message="yes")),
    Bad("message a list", "chat", "fails", choice(message=["yes"])),
    Bad("content null", "chat", "none", content(None)),
    Bad("content white space", "chat", "none", content(" \n\t ")),
    Bad("content an empty list", "chat", "none", content([])),
    Bad("content true", "chat", "told", content(True)),
    Bad("content an object", "chat", "told", content({"answer": "yes"})),
    Bad("content parts null", "chat", "told", content([None, {"type": "text", "text": None}])),
    Bad("content with control characters", "chat", "told", text(lambda said: f"\x00\x1b[2J\r\x08{said}\u202e")),
    Bad("content with a lone surrogate", "chat", "told", text(lambda said: f"{said} \ud800")),
    Bad("content with line separators", "chat", "told", text(lambda said: f"{said}\u2028\u2029\x85")),
    Bad("content of a megabyte", "chat", "told", content("word " * 200_000)),
    Bad("content of deep brackets", "chat", "told", content(DEEP)),
    Bad("content of deep tags", "chat", "told", content("<think>" * 20_000)),
    Bad("content NaN as JSON", "chat", "told", content('{"score": NaN, "importance": Infinity, "index": 1e999}')),
    Bad("content with a number of ten thousand digits", "chat", "told", content("9" * 10_000)),
    Bad("content of JSON of the wrong types", "chat", "told", content(WRONG_TYPES)),
    Bad("content of another object", "chat", "told", content('[[[{"unexpected": true}]]]')),
    Bad("content with the key", "chat", "told", text(lambda said: f"{said} {KEY}")),
    Bad("content with half of the key at a limit", "chat", "told", text(lambda said: f"{'x' * 490}{KEY}")),
    Bad("error with status 200", "chat", "fails", raw('{"error": {"message": "overloaded"}}')),
    Bad("HTTP 400", "chat", "fails", raw('{"error": "no"}', 400)),
    Bad("HTTP 400 of a content filter", "chat", "none", raw('{"error": {"code": "content_filter", "innererror": {}}}', 400)),
    Bad("HTTP 401 with the key", "chat", "fails", raw(json.dumps({"error": f"Incorrect API key provided: {KEY}"}), 401)),
    Bad("HTTP 403 without a body", "chat", "fails", raw(b"", 403)),
    Bad("HTTP 404 in HTML with the key", "chat", "fails", raw(f"<html>{'x' * 480}{KEY}</html>", 404)),
    Bad("HTTP 418", "chat", "fails", raw("teapot", 418)),
    Bad("HTTP 429 without end", "chat", "fails", raw("slow down", 429, Retry_After="0.01")),
    Bad("HTTP 429 with a malformed wait", "chat", "fails", raw("slow down", 429, Retry_After="soon, NaN")),
    Bad("HTTP 500 of bytes that are no text", "chat", "fails", raw(b"\xff\xfe\x00\x80" * 400, 500)),
    Bad("HTTP 503", "chat", "fails", raw("away", 503)),
    Bad("HTTP 204", "chat", "fails", raw(b"", 204)),
    Bad("redirect to another server", "chat", "fails", raw(b"", 307, Location="http://127.0.0.1:9/v1/chat/completions")),
    Bad("redirect to itself", "chat", "fails", raw(b"", 308, Location="/v1/chat/completions")),
    Bad("redirect as a GET", "chat", "fails", raw(b"", 302, Location="/v1/chat/completions")),
    Bad("redirect to nowhere", "chat", "fails", raw(b"", 307)),
    Bad("nothing", "chat", "fails", raw(b"")),
    Bad("not JSON", "chat", "fails", raw("<html>not the API</html>")),
    Bad("not JSON, with the key", "chat", "fails", raw(f"{'x' * 190}{KEY}")),
    Bad("not UTF-8", "chat", "fails", raw(b'{"choices": [{"message": {"content": "\xff\xfe"}}]}')),
    Bad("a byte order mark", "chat", "read", written(lambda body: f"\ufeff{body}")),
    Bad("null", "chat", "fails", raw("null")),
    Bad("a number", "chat", "fails", raw("7")),
    Bad("a list", "chat", "fails", raw("[1, 2]")),
    Bad("JSON nested too deep", "chat", "fails", raw(DEEP)),
    Bad("JSON cut in the middle", "chat", "fails", written(lambda body: body[: len(body) // 2])),
    Bad("JSON twice", "chat", "fails", written(lambda body: body + body)),
    Bad("an event stream", "chat", "fails", written(lambda body: f"data: {body}\n\ndata: [DONE]\n\n")),
    Bad("more than 32 MB", "chat", "fails", raw(HUGE)),
    Bad("gzip bomb", "chat", "fails", raw(BOMB, 200, Content_Encoding="gzip")),
    Bad("gzip that is none", "chat", "fails", raw("{}", 200, Content_Encoding="gzip")),
    Bad("gzip cut off", "chat", "fails", packed(lambda body: gzip.compress(body)[:-12], "gzip")),
    Bad("an encoding not asked for", "chat", "fails", raw("{}", 200, Content_Encoding="br")),
    Bad("broken off", "chat", "fails", lambda reply: Sent(b'{"choices": [{"mess', broken_off=True)),
    Bad("closed without a word", "chat", "fails", lambda reply: Sent(b"", broken_off=True)),
    Bad("never", "chat", "fails", lambda reply: Sent(b"", late=True)),
    Bad("usage missing", "embeddings", "read", without("usage")),
    Bad("usage null", "embeddings", "read", field_is("usage", None)),
    Bad("tokens text", "embeddings", "read", usage(prompt_tokens="many")),
    Bad("tokens negative", "embeddings", "read", usage(prompt_tokens=-1)),
    Bad("order reversed, index right", "embeddings", "read", vectors(lambda rows: rows[::-1])),
    Bad("ten times as long", "embeddings", "told", first(lambda vector: [10 * x for x in vector])),
    Bad("data empty", "embeddings", "fails", field_is("data", [])),
    Bad("data null", "embeddings", "fails", field_is("data", None)),
    Bad("data an object", "embeddings", "fails", field_is("data", {"embedding": [1.0]})),
    Bad("one vector too few", "embeddings", "fails", vectors(lambda rows: rows[:-1])),
    Bad("one vector too many", "embeddings", "fails", vectors(lambda rows: [*rows, rows[0]])),
    Bad("index always 0", "embeddings", "fails", indexes(lambda at, count: 0 if count > 1 else 1)),
    Bad("index missing", "embeddings", "fails", vectors(lambda rows: [{"embedding": row["embedding"]} for row in rows])),
    Bad("index from 1", "embeddings", "fails", indexes(lambda at, count: at + 1)),
    Bad("index text", "embeddings", "fails", indexes(lambda at, count: str(at))),
    Bad("index true", "embeddings", "fails", indexes(lambda at, count: bool(at % 2))),
    Bad("index negative", "embeddings", "fails", indexes(lambda at, count: at - count)),
    Bad("vector null", "embeddings", "fails", first(lambda vector: None)),
    Bad("vector empty", "embeddings", "fails", first(lambda vector: [])),
    Bad("vector text", "embeddings", "fails", first(lambda vector: "AACAPwAAAEA=")),
    Bad("vector nested", "embeddings", "fails", first(lambda vector: [vector])),
    Bad("vector of zeros", "embeddings", "fails", first(lambda vector: [0.0] * len(vector))),
    Bad("vector of another length", "embeddings", "fails", first(lambda vector: vector[:-1])),
    Bad("vector holds NaN", "embeddings", "fails", number(float("nan"))),
    Bad("vector holds infinity", "embeddings", "fails", number(float("inf"))),
    Bad("vector holds null", "embeddings", "fails", number(None)),
    Bad("vector holds text", "embeddings", "fails", number("0.5")),
    Bad("vector holds true", "embeddings", "fails", number(True)),
    Bad("vector holds 1e39", "embeddings", "fails", number(1e39)),
    Bad("vector holds a list", "embeddings", "fails", number([0.5])),
    Bad("chat reply", "embeddings", "fails", raw('{"choices": [{"message": {"content": "yes"}}]}')),
    Bad("never", "embeddings", "fails", lambda reply: Sent(b"", late=True)),
    Bad("HTTP 400", "embeddings", "fails", raw('{"error": "no"}', 400)),
    Bad("HTTP 500 with the key", "embeddings", "fails", raw(KEY, 500)),
    Bad("not JSON", "embeddings", "fails", raw("<html>")),
    Bad("gzip bomb", "embeddings", "fails", raw(BOMB, 200, Content_Encoding="gzip")),
    Bad("redirect to another server", "embeddings", "fails", raw(b"", 307, Location="http://127.0.0.1:9/v1/embeddings")),
    Bad("broken off", "embeddings", "fails", lambda reply: Sent(b'{"data": [', broken_off=True)),
)  # fmt: skip
