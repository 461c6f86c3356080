"""A full disk or a jumping clock for the rest of this process: a command that was forked to be disturbed.

`disk-full` N: after N bytes below the results no further byte is written, and the cache takes no further page; reads still work.
`file-limit` N: the operating system refuses to let any file grow beyond N bytes.
`clock` N: every reading of the wall clock is up to ten days off, in either direction; N is the seed.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import random
import resource
import signal
import sqlite3
import time
from typing import Any

PAGE = 4096
DAYS = 864_000.0


class Disk:
    """Counter of the bytes that may still be written."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, count: int) -> None:
        if count > self.left:
            self.left = 0
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.left -= count


def fill(folder: str, size: int) -> None:
    """Let at most `size` bytes be written to files below a folder, whatever code opens them."""
    disk, plain, connect = Disk(size), io.open, sqlite3.connect

    class File(io.FileIO):
        def write(self, data: Any) -> int:
            try:
                disk.take(len(data))
            except OSError as error:
                error.filename = self.name
                raise
            return super().write(data)

    def opened(file: Any, mode: str = "r", *more: Any, **options: Any) -> Any:
        inside = isinstance(file, str | os.PathLike) and os.path.abspath(file).startswith(folder)
        if not inside or not set(mode) & set("wax+"):
            return plain(file, mode, *more, **options)
        raw = File(os.fspath(file), mode.replace("b", "").replace("t", ""))
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding="utf-8")

    def connected(*given: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*given, **options)
        connection.execute(f"PRAGMA max_page_count = {max(2, size // PAGE)}")
        return connection

    io.open = builtins.open = opened
    sqlite3.connect = connected  # type: ignore[assignment]


def limit_files(size: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing beyond it is then an error and does not kill the process
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def jump(seed: int) -> None:
    dice, true = random.Random(seed), time.time

    def off() -> float:
        return true() + dice.uniform(-DAYS, DAYS)

    time.time = off
    time.time_ns = lambda: int(off() * 1e9)


def disturb(way: str, amount: int, folder: str) -> None:
    """Disturb this process: `way` and `amount` as above, `folder` is its results folder."""
    if way == "disk-full":
        fill(folder, amount)
    elif way == "file-limit":
        limit_files(amount)
    elif way == "clock":
        jump(amount)
    else:
        raise ValueError(f"expected disk-full, file-limit or clock, found {way!r}")
