"""What every measurement uses: a figure with its bound, the mock endpoint in a process of its own, commands with time and memory."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]


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
    command = [sys.executable, "-m", "scripts", "mock-endpoint", "--port", str(port), *arguments]
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
        counts: dict[str, Any] = json.loads(reply.read())
        return counts


def timed(command: Sequence[str]) -> tuple[float, int]:
    """Wall seconds and peak memory (KiB) of a command that must succeed."""
    # Byte code is kept, as on a user's machine, also where the environment forbids it: it would be compiled again each time.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    started = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = _wait(process)
    if status:
        raise RuntimeError(f"{' '.join(command)} failed:\n{output.decode()[-2000:]}")
    return time.perf_counter() - started, usage.ru_maxrss


def _wait(process: subprocess.Popen[bytes]) -> tuple[int, int, resource.struct_rusage]:
    pid, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return pid, process.returncode, usage
