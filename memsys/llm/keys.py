"""The name of a call: a hash of everything that can change its reply."""

from __future__ import annotations

import hashlib

from memsys.jsons import canonical
from memsys.llm.pricing import ModelSettings
from memsys.llm.protocol import Request


def request_key(settings: ModelSettings, endpoint: str, request: Request) -> bytes:
    """The sha256 of everything that can change the completion: 32 bytes."""
    parts = {
        "model": settings.model,
        "endpoint": endpoint,
        "reasoning_effort": settings.reasoning_effort,
        "extra_body": dict(settings.extra_body),
        "json_output": settings.json_output,
        "temperature": request.temperature if settings.send_temperature else None,
        "messages": request.messages,
        "max_tokens": settings.output_limit(request.max_tokens),
        "schema": request.schema,
        "logprobs": request.logprobs,
        "sample": request.sample,
        "retry": request.retry,
    }
    return hashlib.sha256(canonical(parts)).digest()
