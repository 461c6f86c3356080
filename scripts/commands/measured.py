"""What the benchmarks share: a figure beside its bound, and the mock endpoint in a process of its own."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Measured:
    """One figure beside its bound."""

    what: str
    value: str
    bound: str
    holds: bool


@contextmanager
def mock(*arguments: str) -> Iterator[str]:
    """The mock endpoint in a process of its own; gives its base URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "scripts.mock_endpoint", "--port", str(port), *arguments]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        _wait_for(port)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int) -> None:
    for _ in range(200):
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("the mock endpoint did not start")


def stats(url: str) -> dict[str, Any]:
    """The mock's own counter."""
    with urllib.request.urlopen(url.removesuffix("/v1") + "/stats", timeout=10) as reply:
        found: dict[str, Any] = json.loads(reply.read())
        return found
