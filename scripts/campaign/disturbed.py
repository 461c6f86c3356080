"""`scripts.run` in a process whose disk fills up or whose clock jumps: `python -m scripts.campaign.disturbed --disk-full 5000 -- memory=…`.

`--disk-full N`: no byte more is written below `results=` once N were, and the cache takes no page more; as on a full disk, reads go on.
`--file-limit N`: the operating system refuses to let any file grow beyond N bytes.
`--clock SEED`: every look at the wall clock is up to ten days off, in either direction.
"""

from __future__ import annotations

import argparse
import builtins
import errno
import io
import os
import random
import resource
import runpy
import signal
import sqlite3
import sys
import time
from typing import Any

PAGE = 4096
DAYS = 864_000.0


class Disk:
    """Bytes that may still be written."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, count: int) -> None:
        if count > self.left:
            self.left = 0
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.left -= count


def fill(folder: str, size: int) -> None:
    """Let no more than `size` bytes be written to files below a folder, whoever opens them."""
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
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # writing beyond it is then an error, not the end
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def jump(seed: int) -> None:
    dice, true = random.Random(seed), time.time

    def off() -> float:
        return true() + dice.uniform(-DAYS, DAYS)

    time.time = off
    time.time_ns = lambda: int(off() * 1e9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--disk-full", type=int)
    parser.add_argument("--file-limit", type=int)
    parser.add_argument("--clock", type=int)
    parser.add_argument("overrides", nargs="*")
    given = parser.parse_args()
    (folder,) = [one.partition("=")[2].strip("'") for one in given.overrides if one.startswith("results=")]
    if given.disk_full is not None:
        fill(folder, given.disk_full)
    if given.file_limit is not None:
        limit_files(given.file_limit)
    if given.clock is not None:
        jump(given.clock)
    sys.argv = ["scripts.run", *given.overrides]
    runpy.run_module("scripts.run", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
