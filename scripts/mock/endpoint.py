"""The server of `memsys-bench mock-endpoint`, whose manual says what it does.

It knows tools (the first that is offered is called, then its output is answered), `n`, schemas with references and streams. The batch API
(files and batches with a delay, expiry, cancellation, partial failure, torn files and a limited queue) is answered by the same code as
live calls, so their replies are the same; `/stats` counts both.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from memsys.embed import HashingEmbedder
from memsys.jsons import encoded
from memsys.llm.gateway.accounts import text_of
from memsys.llm.transport import new_event_loop
from memsys.tokens import count_tokens
from scripts.mock.shapes import OVERFLOWS, SHAPES, Quirks, QuirkyServer

BYTES_A_TOKEN = 4
"""For the estimate that a server makes of a request before it answers."""


@dataclass(frozen=True, slots=True)
class BatchQuirks:
    delay: float = 0.0
    """Seconds until a batch ends."""
    expired: float = 0.0
    """Share of calls that a batch loses on the first attempt: it ends as `expired`, with the replies of the other calls."""
    failed: float = 0.0
    """Share of calls that fail with HTTP 500 on the first attempt."""
    enqueued_tokens: int | None = None
    """Maximum number of tokens in open batches; a batch beyond it fails with `token_limit_exceeded`."""
    cancelled: int = 0
    """Number of batches that are cancelled before they begin."""
    torn: int = 0
    """Number of downloads that end in the middle of the file."""
    doubled: bool = False
    """Whether answered calls are in the error file, too."""
    upload: float = 0.0
    """Seconds that an upload takes."""


@dataclass
class Batches:
    """The state of the batch API.

    Args:
        reply: gives status and reply of one call, by path and body.
    """

    reply: Callable[[str, bytes], tuple[int, dict[str, Any]]]
    quirks: BatchQuirks = field(default_factory=BatchQuirks)
    files: dict[str, bytes] = field(default_factory=dict)
    batches: dict[str, dict[str, Any]] = field(default_factory=dict)
    _tried: set[tuple[str, str]] = field(default_factory=set)
    _ends: dict[str, float] = field(default_factory=dict)
    _downloads: int = 0

    def routes(self, router: Any) -> None:
        router.add_post("/v1/files", self.upload)
        router.add_get("/v1/files/{file}/content", self.content)
        router.add_post("/v1/batches", self.create)
        router.add_get("/v1/batches", self.listed)
        router.add_get("/v1/batches/{batch}", self.retrieve)

    async def upload(self, request: Any) -> Any:
        form = await request.post()
        content = form["file"].file.read()
        await asyncio.sleep(self.quirks.upload)
        name = f"file-{len(self.files)}"
        self.files[name] = content
        described = {"bytes": len(content), "filename": form["file"].filename, "purpose": "batch", "created_at": 0}
        return web.json_response({"id": name, "object": "file", **described, "status": "processed"})

    async def content(self, request: Any) -> Any:
        content = self.files.get(request.match_info["file"])
        if content is None:
            return _unknown()
        self._downloads += 1
        return web.Response(body=content[: len(content) // 2] if self._downloads <= self.quirks.torn else content)

    async def create(self, request: Any) -> Any:
        asked = await request.json()
        name = f"batch-{len(self.batches)}"
        self.batches[name] = {
            "id": name,
            "object": "batch",
            "endpoint": asked["endpoint"],
            "input_file_id": asked["input_file_id"],
            "completion_window": "24h",
            "created_at": int(time.time()),
            "status": "cancelled" if len(self.batches) < self.quirks.cancelled else "in_progress",
            "metadata": asked.get("metadata"),
        }
        if self._too_much():
            errors = [{"code": "token_limit_exceeded", "message": "Enqueued token limit reached"}]
            self.batches[name] |= {"status": "failed", "errors": {"object": "list", "data": errors}}
        self._ends[name] = asyncio.get_running_loop().time() + self.quirks.delay
        return web.json_response(self.batches[name])

    async def listed(self, request: Any) -> Any:
        newest_first = list(self.batches.values())[::-1]
        ids = [batch["id"] for batch in newest_first]
        start = ids.index(request.query["after"]) + 1 if "after" in request.query else 0
        end = start + int(request.query.get("limit", 20))
        return web.json_response({"object": "list", "data": newest_first[start:end], "has_more": end < len(ids)})

    async def retrieve(self, request: Any) -> Any:
        batch = self.batches.get(request.match_info["batch"])
        if batch is None:
            return _unknown()
        due = asyncio.get_running_loop().time() >= self._ends[batch["id"]]
        if batch["status"] == "in_progress" and due:
            self._end(batch)
        return web.json_response(batch)

    def _too_much(self) -> bool:
        under_way = [batch for batch in self.batches.values() if batch["status"] == "in_progress"]
        tokens = sum(len(self.files[batch["input_file_id"]]) for batch in under_way) // BYTES_A_TOKEN
        return self.quirks.enqueued_tokens is not None and tokens > self.quirks.enqueued_tokens

    def _end(self, batch: dict[str, Any]) -> None:
        replies: list[str] = []
        errors: list[str] = []
        lost = False
        for line in self.files[batch["input_file_id"]].splitlines():
            call = json.loads(line)
            if self._first_time("expired", call["custom_id"], self.quirks.expired):
                lost = True
                continue
            if self._first_time("failed", call["custom_id"], self.quirks.failed):
                status, body = 500, {"error": {"message": "oops"}}
            else:
                status, body = self.reply(call["url"], encoded(call["body"]))
            response = {"status_code": status, "request_id": "mock", "body": body}
            answer = {"id": "x", "custom_id": call["custom_id"], "response": response, "error": None}
            (replies if status == 200 else errors).append(json.dumps(answer))
            if self.quirks.doubled:
                errors.append(json.dumps({**answer, "response": None, "error": {"code": "batch_expired"}}))
        batch["status"] = "expired" if lost else "completed"
        batch["request_counts"] = {"total": len(replies), "completed": len(replies), "failed": len(errors)}
        for name, lines in (("output_file_id", replies), ("error_file_id", errors)):
            if lines:
                batch[name] = f"file-{len(self.files)}"
                self.files[batch[name]] = "\n".join(reversed(lines)).encode()

    def _first_time(self, what: str, name: str, share: float) -> bool:
        """Whether a fault hits a call now: it hits a share of the calls, each once."""
        if (what, name) in self._tried or hashlib.sha256(f"{what}{name}".encode()).digest()[0] >= 256 * share:
            return False
        self._tried.add((what, name))
        return True


def _unknown() -> Any:
    return web.json_response({"error": {"message": "no such object", "code": "not_found"}}, status=404)


FAULTS = ("429", "500", "timeout", "garbage", "truncated")
TIMER = 0.0005
"""Mean delay in seconds of uvloop's timers, which count whole milliseconds."""


@dataclass(slots=True)
class Bucket:
    """A token bucket with a rate per minute. It holds the amount of a minute and begins with that of a second, as after earlier use."""

    per_minute: float
    level: float
    filled: float

    def fill(self, now: float) -> None:
        """Add the amount since the last call."""
        self.level = min(self.per_minute, self.level + (now - self.filled) * self.per_minute / 60.0)
        self.filled = now

    def seconds_until(self, amount: float) -> float:
        """Seconds until this amount is available."""
        return max(0.0, amount - self.level) * 60.0 / self.per_minute


class Rations:
    """Limits of one account per minute.

    Args:
        rpm: requests; None = any number.
        tpm: tokens; None = any number.
        quota: requests until the account has no quota left; None = it never ends.
    """

    def __init__(
        self,
        rpm: float | None = None,
        tpm: float | None = None,
        quota: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._quota = clock, quota
        given = {"requests": rpm, "tokens": tpm}
        self._buckets = {
            kind: Bucket(rate, max(1.0, rate / 60.0), clock()) for kind, rate in given.items() if rate is not None
        }

    def refusal(self, tokens: int) -> tuple[dict[str, Any], dict[str, str]] | None:
        """Body and headers of the 429 for a request of this many tokens; None when it is let through, and counted."""
        if self._quota is not None and self._quota <= 0:
            return _error("You exceeded your current quota, please check your plan.", "insufficient_quota"), {}
        now, wanted = self._clock(), {"requests": 1.0, "tokens": float(tokens)}
        for bucket in self._buckets.values():
            bucket.fill(now)
        wait = max((bucket.seconds_until(wanted[kind]) for kind, bucket in self._buckets.items()), default=0.0)
        if wait > 0.0:
            after = {"Retry-After": str(max(1, math.ceil(wait)))}
            return _error("Rate limit reached.", "rate_limit_exceeded"), {**self.headers(), **after}
        for kind, bucket in self._buckets.items():
            bucket.level -= wanted[kind]
        if self._quota is not None:
            self._quota -= 1
        return None

    def headers(self) -> Mapping[str, str]:
        """The `x-ratelimit-*` headers of a reply."""
        return {
            f"x-ratelimit-{name}-{kind}": value
            for kind, bucket in self._buckets.items()
            for name, value in (
                ("limit", f"{bucket.per_minute:g}"),
                ("remaining", str(int(bucket.level))),
                ("reset", f"{round(1000 * bucket.seconds_until(bucket.per_minute))}ms"),
            )
        }


def _error(message: str, code: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": code, "param": None, "code": code}}


class Mock:
    def __init__(
        self,
        latency: float = 0.0,
        faults: float = 0.0,
        seed: int = 0,
        hang: float = 5.0,
        shape: str = "bare",
        quirks: Quirks | None = None,
        batches: BatchQuirks | None = None,
        rations: Rations | None = None,
    ) -> None:
        self.latency, self.faults, self.seed, self.hang = latency, faults, seed, hang
        self.arrivals: Counter[str] = Counter()
        """Number of arrivals of each request body, by hash."""
        self.answered: Counter[str] = Counter()
        """Number of complete answers to each request body, by hash."""
        self.injected: Counter[str] = Counter()
        self.refused: list[float] = []
        """Times of refusals by the rate limit, in seconds since the first request."""
        self._rations, self._began = rations or Rations(), 0.0
        self.shape = shape
        self.said: Callable[[dict[str, Any], str], str] = said
        """The answer to a request body, by the body and its hash."""
        self.thought: Callable[[dict[str, Any], str], str] = lambda body, key: f"Could it be yes? Or {key[:4]}?"
        """The reasoning before the answer, in shapes with reasoning."""
        self._embedder = HashingEmbedder(64)
        self.batches = Batches(self._batched, batches or BatchQuirks())
        self._quirky = None if quirks is None else QuirkyServer(quirks, said)

    async def handle(self, request: Any) -> Any:
        """Handle one POST: the reply is sent `latency` seconds after the request arrived, however long computing it took."""
        clock = time.perf_counter  # the loop's own clock counts whole milliseconds
        due = clock() + self.latency - TIMER
        body = await request.read()
        key = hashlib.sha256(body).hexdigest()
        self._began = self._began or clock()
        self.arrivals[key] += 1
        if (refusal := self._rations.refusal(len(body) // BYTES_A_TOKEN)) is not None:
            self.refused.append(round(clock() - self._began, 3))
            value, headers = refusal
            return web.json_response(value, status=429, headers=headers)
        fault = self._fault(key)
        if fault:
            await asyncio.sleep(due - clock())
            self.injected[fault] += 1
            return await self._misbehave(request, fault, key)
        asked = json.loads(body)
        status, value = await self._replied(request, asked, key)
        reply = json.dumps(value).encode()
        await asyncio.sleep(due - clock())
        self.answered[key] += 1
        if asked.get("stream") and status == 200:
            return web.Response(body=streamed(value), content_type="text/event-stream")
        return web.Response(status=status, body=reply, content_type="application/json", headers=self._rations.headers())

    async def _replied(self, request: Any, body: dict[str, Any], key: str) -> tuple[int, dict[str, Any]]:
        if self._quirky is not None:
            return await self._quirky.reply(request.path, body, request.headers.get("Authorization", ""))
        shape = str(body["model"]).partition("@")[2] or self.shape
        if shape in OVERFLOWS:
            return 400, OVERFLOWS[shape]
        return 200, self._reply(request.path, body, key, shape)

    def _batched(self, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """Status and reply for a call of a batch."""
        key = hashlib.sha256(body).hexdigest()
        self.arrivals[key] += 1
        self.answered[key] += 1
        return 200, self._reply(path, json.loads(body), key, self.shape)

    async def stats(self, request: Any) -> Any:
        repeats = {key: count for key, count in self.answered.items() if count > 1}
        return web.json_response(
            {
                "arrivals": sum(self.arrivals.values()),
                "answered": sum(self.answered.values()),
                "distinct": len(self.answered),
                "repeated": sum(count - 1 for count in repeats.values()),
                "injected": dict(self.injected),
                "refused": self.refused,
            }
        )

    async def models(self, request: Any) -> Any:
        """The list of models: any name is accepted."""
        model = {"id": "mock", "object": "model", "created": 0, "owned_by": "mock"}
        return web.json_response({"object": "list", "data": [model]})

    def _fault(self, key: str) -> str:
        draw = hashlib.sha256(f"{self.seed}:{key}:{self.arrivals[key]}".encode()).digest()
        if int.from_bytes(draw[:4]) / 2**32 >= self.faults:
            return ""
        return FAULTS[draw[4] % len(FAULTS)]

    async def _misbehave(self, request: Any, fault: str, key: str) -> Any:
        if fault == "429":
            return web.Response(status=429, headers={"Retry-After": "0.05"}, text="slow down")
        if fault == "500":
            return web.Response(status=500, text="oops")
        if fault == "garbage":
            return web.Response(text="<html>not the API</html>", content_type="text/html")
        if fault == "timeout":
            await asyncio.sleep(self.hang)
            return web.Response(status=504, text="too late")
        response = web.StreamResponse(headers={"Content-Length": "4096"})
        await response.prepare(request)
        await response.write(b'{"choices": [{"mess')
        request.transport.close()
        return response

    def _reply(self, path: str, body: dict[str, Any], key: str, shape: str) -> dict[str, Any]:
        if path.endswith("/embeddings"):
            return self._embedded(body)
        sent = sum(count_tokens(text_of(message.get("content"))) for message in body["messages"])
        choices = [self._choice(body, key, index) for index in range(body.get("n") or 1)]
        words = sum(len(text_of(choice["message"]["content"]).split()) for choice in choices)
        words += sum(len(choice["message"].get("tool_calls", ())) for choice in choices)
        usage = {"prompt_tokens": sent, "completion_tokens": words, "total_tokens": sent + words}
        reply = {
            "id": key[:12], "object": "chat.completion", "created": 0, "model": body["model"], "choices": choices, "usage": usage,
        }  # fmt: skip
        return SHAPES[shape](reply, self.thought(body, key))

    def _choice(self, body: dict[str, Any], key: str, index: int) -> dict[str, Any]:
        own = hashlib.sha256(f"{key} {index}".encode()).hexdigest() if index else key
        if (tool := _called(body)) is not None:
            arguments = json.dumps(fitting(tool.get("parameters") or {"type": "object"}, own))
            function = {"name": tool["name"], "arguments": arguments}
            call = {"id": f"call_{own[:12]}", "type": "function", "function": function}
            message: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": [call]}
            return {"index": index, "finish_reason": "tool_calls", "message": message}
        text = self.said(body, own)
        message = {"role": "assistant", "content": text}
        choice: dict[str, Any] = {"index": index, "finish_reason": "stop", "message": message}
        if body.get("logprobs"):
            certain: dict[str, Any] = {"logprob": -0.25, "bytes": None, "top_logprobs": []}
            choice["logprobs"] = {"content": [{"token": word, **certain} for word in text.split()]}
        return choice

    def _embedded(self, body: dict[str, Any]) -> dict[str, Any]:
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        embedder = HashingEmbedder(body["dimensions"]) if body.get("dimensions") else self._embedder
        vectors = embedder.embed(texts)
        vectors[~vectors.any(axis=1), 0] = 1.0  # no model returns a zero vector
        data = [
            {"object": "embedding", "index": index, "embedding": [round(float(x), 6) for x in row]}
            for index, row in enumerate(vectors)
        ]
        tokens = sum(len(text.split()) for text in texts)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "data": data, "model": body["model"], "usage": usage}


def said(body: dict[str, Any], key: str) -> str:
    """The text of a reply: a value that fits the requested JSON schema, else a few words from the request's hash."""
    form = body.get("response_format") or {}
    schema = {"type": "object"} if form.get("type") == "json_object" else (form.get("json_schema") or {}).get("schema")
    return json.dumps(fitting(schema, key)) if schema else f"mock answer {key[:8]}"


def streamed(reply: Mapping[str, Any]) -> bytes:
    """A reply as the events of a stream: each choice's message, then its end, and at last the usage.

    Not the gateway's own code, which would then be tested against itself.
    """
    chunks: list[dict[str, Any]] = []
    for choice in reply["choices"]:
        calls = [{**call, "index": place} for place, call in enumerate(choice["message"].get("tool_calls") or ())]
        delta = {**choice["message"], **({"tool_calls": calls} if calls else {})}
        end = {name: value for name, value in choice.items() if name != "message"}
        chunks.append({"choices": [{"index": choice.get("index", 0), "delta": delta, "finish_reason": None}]})
        chunks.append({"choices": [{**end, "delta": {}}]})
    chunks.append({"choices": [], "usage": reply.get("usage") or {}})
    head = {"id": reply.get("id"), "object": "chat.completion.chunk", "created": 0, "model": reply.get("model")}
    return b"".join(b"data: %s\n\n" % encoded({**head, **chunk}) for chunk in chunks) + b"data: [DONE]\n\n"


def _called(body: dict[str, Any]) -> Mapping[str, Any] | None:
    """The function that a reply calls: the one that the client names, else the first; none where the client wants none, and none after a
    tool's output, unless the client insists on a call."""
    choice = body.get("tool_choice")
    named = choice["function"]["name"] if isinstance(choice, dict) and "function" in choice else None
    functions: list[dict[str, Any]] = [tool["function"] for tool in body.get("tools") or () if "function" in tool]
    answered = body["messages"][-1].get("role") == "tool" and choice != "required" and named is None
    if not functions or choice == "none" or answered:
        return None
    return next((function for function in functions if function["name"] == named), functions[0])


def fitting(whole: Mapping[str, Any], key: str) -> Any:
    """A value that fits a JSON schema. Its references are followed; one to itself gives an empty object."""

    def value(schema: Mapping[str, Any], above: tuple[str, ...]) -> Any:
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return schema["enum"][int(key[:4], 16) % len(schema["enum"])]
        if (place := schema.get("$ref")) is not None:
            target: Any = whole
            for part in place.removeprefix("#/").split("/"):
                target = target[part]
            return {} if place in above else value(target, (*above, place))
        for several in ("anyOf", "oneOf", "allOf"):
            if schema.get(several):
                return value(schema[several][0], above)
        kind = schema.get("type", "object" if "properties" in schema else "string")
        if isinstance(kind, list):
            kind = kind[0]
        if kind == "object":
            return {name: value(part, above) for name, part in schema.get("properties", {}).items()}
        if kind == "array":
            return [value(schema.get("items", {}), above)] * max(1, schema.get("minItems", 1))
        if kind in ("integer", "number"):
            low = schema.get("minimum", 0)
            high = max(low, schema.get("maximum", 3))
            return low + int(key[:4], 16) % (high - low + 1)
        if kind == "null":
            return None
        return bool(int(key[0], 16) % 2) if kind == "boolean" else f"mock {key[:8]}"

    return value(whole, ())


def application(mock: Mock) -> Any:
    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/v1/chat/completions", mock.handle)
    app.router.add_post("/v1/embeddings", mock.handle)
    app.router.add_get("/v1/models", mock.models)
    app.router.add_get("/stats", mock.stats)
    mock.batches.routes(app.router)
    return app


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """Serve an application in a thread of this process; yields its base URL.

    Raises:
        TimeoutError: the server did not start within ten seconds.
    """
    loop = new_event_loop()
    threading.Thread(target=loop.run_forever, name="mock", daemon=True).start()
    runner = web.AppRunner(app, shutdown_timeout=0.1)

    async def start() -> int:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return int(runner.addresses[0][1])

    try:
        yield f"http://127.0.0.1:{asyncio.run_coroutine_threadsafe(start(), loop).result(10)}/v1"
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)


def serve(app: Any, port: int, path: str = "") -> None:
    """Serve an application on this machine until a signal comes, and print its address.

    Args:
        port: 0 takes any free one.
        path: what follows the address where it is printed.

    Raises:
        OSError: the port is in use.
    """
    with socket.create_server(("127.0.0.1", port)) as bound:
        address = f"http://127.0.0.1:{bound.getsockname()[1]}{path}"
        web.run_app(
            app,
            sock=bound,
            print=lambda _: print(f"serving {address}", flush=True),
            access_log=None,
            loop=new_event_loop(),
        )
