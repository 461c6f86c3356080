"""The mock endpoint's batch API: files and batches with a delay, expiry, cancellation, partial failure, torn files and a limited queue.

The same code answers batched and live calls, so their replies are the same. `/stats` counts both.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from memsys.jsons import encoded

BYTES_A_TOKEN = 4


@dataclass(frozen=True, slots=True)
class BatchQuirks:
    """Faults of the batch API."""

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
        """Add the five requests."""
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
        return web.json_response(
            {
                "id": name,
                "object": "file",
                "bytes": len(content),
                "created_at": 0,
                "filename": form["file"].filename,
                "purpose": "batch",
                "status": "processed",
            }
        )

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
