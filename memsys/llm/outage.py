"""A server that stopped accepting connections: the run pauses, and a probe checks regularly whether the server is back."""

from __future__ import annotations

import asyncio
import sys
import time
from urllib.parse import urlsplit

from memsys.llm.protocol import EndOfRun

FIRST, LONGEST = 2.0, 30.0
"""Seconds between two probes: the first pause, which doubles each time, and the longest."""
CONNECTING = 5.0
"""Time limit of a probe in seconds."""


class Unreachable(EndOfRun):
    """The server does not accept connections, and the run no longer waits for it."""


async def until_back(url: str, why: str, patience: float) -> None:
    """Wait until the server of a URL accepts connections again. Prints to standard error when the pause begins and ends.

    Raises:
        Unreachable: the server did not accept connections within `patience` seconds.
    """
    started, pause = time.monotonic(), FIRST
    _print(f"paused since {time.strftime('%H:%M:%S')}: {why}; waiting for the server, for up to {patience:g} s")
    while (left := patience - (time.monotonic() - started)) > 0:
        await asyncio.sleep(min(pause, left))
        if await accepts(url):
            _print(
                f"resumed after {time.monotonic() - started:.0f} s: {urlsplit(url).netloc} accepts connections again"
            )
            return
        pause = min(LONGEST, 2 * pause)
    raise Unreachable(f"{why}; waited {patience:g} s for the server; start it and run the same command again to resume")


async def accepts(url: str) -> bool:
    """Whether the server of a URL accepts a connection. Sends nothing."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(CONNECTING):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except OSError:  # a TimeoutError is one
        return False
    writer.close()
    return True


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
