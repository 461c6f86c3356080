"""A server that can no longer be connected to: the run pauses, and a cheap probe tells when it is back."""

from __future__ import annotations

import asyncio
import sys
import time
from urllib.parse import urlsplit

from memsys.llm.protocol import EndOfRun

FIRST, LONGEST = 2.0, 30.0
"""Seconds between two probes: at first, and at most."""
CONNECTING = 5.0
"""Seconds that a probe may take."""


class Unreachable(EndOfRun):
    """A server cannot be connected to, and waiting for it has come to its end."""


async def until_back(url: str, why: str, patience: float) -> None:
    """Wait until the server of a URL accepts connections again; say so on standard error, at the beginning and at the end.

    Raises:
        Unreachable: it did not within `patience` seconds.
    """
    started, pause = time.monotonic(), FIRST
    _say(f"paused since {time.strftime('%H:%M:%S')}: {why}; waiting for the server, for up to {patience:g} s")
    while (left := patience - (time.monotonic() - started)) > 0:
        await asyncio.sleep(min(pause, left))
        if await accepts(url):
            _say(f"resumed after {time.monotonic() - started:.0f} s: {urlsplit(url).netloc} accepts connections again")
            return
        pause = min(LONGEST, 2 * pause)
    raise Unreachable(f"{why}; waited {patience:g} s for it; start it and run the same command again to resume")


async def accepts(url: str) -> bool:
    """Whether the server of a URL accepts a connection; nothing is sent."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        async with asyncio.timeout(CONNECTING):
            _, writer = await asyncio.open_connection(parts.hostname, port)
    except OSError:  # a TimeoutError is one
        return False
    writer.close()
    return True


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
