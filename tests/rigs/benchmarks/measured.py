"""Tools of all measurements: a figure with its bound, the mock endpoint in a separate process, commands with time and memory."""

from __future__ import annotations

import asyncio
import json
import os
import resource
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
IN_FLIGHT = 64
"""Maximum number of requests that are under way at once."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One figure with its bound."""

    what: str
    value: str
    bound: str
    holds: bool


@contextmanager
def mock(*arguments: str, verb: str = "mock-endpoint") -> Iterator[str]:
    """Start a mock server in a separate process; yields its base URL."""
    command = [sys.executable, "-m", "scripts", verb, "--port", "0", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        if not said.startswith("serving "):
            raise RuntimeError(f"{verb} did not start: {said}")
        yield said.split()[1]
    finally:
        process.kill()
        process.communicate()


def stats(url: str) -> dict[str, Any]:
    """The mock's own counters."""
    with urllib.request.urlopen(url.removesuffix("/v1") + "/stats", timeout=10) as reply:
        counts: dict[str, Any] = json.loads(reply.read())
        return counts


def post_all(url: str, bodies: Sequence[bytes]) -> tuple[float, float]:
    """CPU seconds of this process and wall seconds for posting chat requests, `IN_FLIGHT` at once, and reading the replies."""
    import aiohttp

    from memsys.llm.transport import new_event_loop

    async def posted() -> None:
        gate, connector = asyncio.Semaphore(IN_FLIGHT), aiohttp.TCPConnector(limit=IN_FLIGHT)
        headers = {"Content-Type": "application/json"}
        async with aiohttp.ClientSession(connector=connector, headers=headers) as session:

            async def post(body: bytes) -> None:
                async with gate, session.post(f"{url}/chat/completions", data=body) as reply:
                    assert json.loads(await reply.read())["choices"]

            await asyncio.gather(*map(post, bodies))

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        cpu, wall = time.process_time(), time.perf_counter()
        runner.run(posted())
        return time.process_time() - cpu, time.perf_counter() - wall


def timed(command: Sequence[str]) -> tuple[float, int]:
    """Wall seconds and peak memory (KiB) of a command that must succeed."""
    # Byte code is kept, as on a user's machine, even if the environment forbids it: else it would be compiled each time.
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
