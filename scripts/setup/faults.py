"""Errors of the operating system, SQLite and Hydra as one sentence with the file and the remedy."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator

AGAIN = "run the same command again to resume"
REMEDIES = {
    errno.ENOSPC: f"the disk is full; free some space (python -m scripts runs gc) and {AGAIN}",
    errno.EDQUOT: f"the disk quota is used up; free some space (python -m scripts runs gc) and {AGAIN}",
    errno.EROFS: "the folder is read-only; name another (results=; for data --data or MEMSYS_DATA)",
    errno.EACCES: "permission denied; name a folder of your own (results=; for data --data or MEMSYS_DATA)",
    errno.EPERM: "permission denied; name a folder of your own with results=",
    errno.EMFILE: f"too many open files; raise the limit (ulimit -n 4096) or lower threads=, and {AGAIN}",
    errno.ENFILE: f"too many open files on this machine; close some programs and {AGAIN}",
    errno.ENOTDIR: "a part of this path is a file where a folder is needed; name another folder with results=",
    errno.EEXIST: "this is a file where a folder is needed; name another folder with results=",
    errno.EISDIR: "this is a folder where a file is needed; move it away",
    errno.ENAMETOOLONG: "the name is too long; name a shorter folder with results=",
    errno.EADDRINUSE: "this port is in use; --port names another, --port 0 takes any free one",
    errno.EIO: f"the disk reports an error; check it, and {AGAIN}",
    errno.ESTALE: f"the network file system has lost this file; mount it again, and {AGAIN}",
    errno.ELOOP: "this is a link or no plain file, where the program keeps a file of its own; remove it",
}
SQLITE = (
    ("full", REMEDIES[errno.ENOSPC]),
    ("readonly", "the cache cannot be written; name another file with cache="),
    ("unable to open", "the cache cannot be opened; name another file with cache="),
    ("locked", f"the cache is held by another process; wait for it and {AGAIN}"),
    ("disk i/o", REMEDIES[errno.EIO]),
    ("not a database", "the cache file is damaged; move it away: the run folders keep their answers"),
    ("malformed", "the cache file is damaged; move it away: the run folders keep their answers"),
)
"""Words of SQLite's message, and the remedy."""


def remedy(error: BaseException) -> str:
    """One sentence for an error that the user can fix; empty for any other error, which is a bug."""
    if isinstance(error, sqlite3.Error):
        text = str(error)
        return next((f"cache: {text}: {cure}" for words, cure in SQLITE if words in text.lower()), "")
    if isinstance(error, OSError) and error.errno in REMEDIES:
        file = f"{error.filename}: " if error.filename else ""
        return file + REMEDIES[error.errno]
    from hydra.errors import HydraException
    from yaml import MarkedYAMLError

    broken = next((each for each in _chain(error) if isinstance(each, MarkedYAMLError)), None)
    if broken is not None and (mark := broken.problem_mark or broken.context_mark) is not None:
        return f"{mark.name}, line {mark.line + 1}: broken YAML: {broken.problem or broken.context}"

    if isinstance(error, HydraException):
        from scripts.settings.checking import composition_error

        return composition_error(error)
    return ""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and those behind it: Hydra wraps what a file of `conf` raises."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
