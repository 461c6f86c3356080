"""The mock endpoint's own replies."""

from __future__ import annotations

import hashlib
import json
from urllib.request import Request, urlopen

from scripts.mock.endpoint import Mock, application, serving


def test_a_stream_of_the_mock_holds_the_text_and_the_usage_of_its_plain_reply() -> None:
    asked = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "stream": True}
    with serving(application(Mock())) as url:
        sent = Request(f"{url}/chat/completions", json.dumps(asked).encode(), {"Content-Type": "application/json"})
        with urlopen(sent) as reply:
            lines = [line.removeprefix("data: ") for line in reply.read().decode().split("\n\n") if line]
    *chunks, end = lines
    parts = [json.loads(chunk) for chunk in chunks]
    deltas = [choice["delta"] for part in parts for choice in part["choices"]]
    key = hashlib.sha256(json.dumps(asked).encode()).hexdigest()
    assert "".join(delta.get("content") or "" for delta in deltas) == f"mock answer {key[:8]}"
    assert (parts[-1]["usage"]["completion_tokens"], end) == (3, "[DONE]")
