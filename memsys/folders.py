"""Folders on this machine: the user's cache, and folders that a living process holds, which others can tell from those of a killed one."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

HELD = ".held"
"""The file whose lock says that a folder's process lives. The system drops the lock when the process ends, however it ends."""


def cache_folder() -> Path:
    """Our folder in the user's cache; it may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "memsys-bench"


@contextmanager
def alone(folder: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Lock a folder against other processes; while another process holds it, wait.

    Args:
        on_wait: called before the wait.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True, slots=True)
class Held:
    """A folder of this process, held while this object lives."""

    path: Path
    handle: IO[str]


def hold(root: Path) -> Held:
    """A new folder below `root`, held by this process. `root` must be locked."""
    path = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=root))
    handle = (path / HELD).open("w")
    fcntl.flock(handle, fcntl.LOCK_EX)
    return Held(path, handle)


def abandoned(root: Path) -> list[Path]:
    """Folders below `root` whose process has ended. `root` must be locked, and stay so while they are emptied."""
    return [folder for folder in sorted(root.iterdir()) if folder.is_dir() and not _is_held(folder)]


def _is_held(folder: Path) -> bool:
    """Whether a living process holds a folder; where that cannot be known, it does."""
    try:
        with (folder / HELD).open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    return False
