"""Classify failures: those that end a whole run, and those that are recorded for one question."""

from __future__ import annotations

import errno
import sqlite3
from asyncio import CancelledError

from memsys.llm import stopping
from memsys.llm.protocol import EndOfRun
from memsys.llm.secrets import redact
from memsys.prompts import UndeclaredPrompt

FATAL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.EIO, errno.ESTALE)
"""Errors of the file system that would also affect the next file: no space, read-only, too many open files, broken disk, lost server."""


EXITS = (SystemExit, GeneratorExit, CancelledError, BaseExceptionGroup)
"""What a memory may raise besides an `Exception`, such as by `sys.exit`: no more than an error of its case or question."""
RAISED = (Exception, *EXITS)


def stops(error: BaseException) -> bool:
    """Whether an error, or one in its group, ends the run because every other question would fail, too.

    True when no model call can be made, when the disk refuses to write, and when a memory uses a prompt that it does not declare.
    """
    if isinstance(error, BaseExceptionGroup):
        return any(map(stops, error.exceptions))
    if isinstance(error, sqlite3.Error):
        return isinstance(error, sqlite3.OperationalError) and ("full" in str(error) or "readonly" in str(error))
    if isinstance(error, OSError):
        return error.errno in FATAL_ERRNOS
    return isinstance(error, EndOfRun | UndeclaredPrompt)


def described(error: BaseException) -> str:
    """The error's type and message in at most 500 characters, without secrets."""
    try:
        message = str(error)
    except Exception as failure:  # foreign errors may have no text
        message = f"no text ({type(failure).__name__})"
    return redact(f"{type(error).__name__}: {message}")[:500]  # redacted before it is cut: no part of a key may remain


def raise_if_stopped(error: BaseException) -> None:
    """Raise an error that ends the run (`stops`; of a group the one that does), and `Stopped` when the user has requested a stop: then the
    stop caused the error, and the question stays open.
    """
    if stops(error):
        while isinstance(error, BaseExceptionGroup):
            error = next(filter(stops, error.exceptions))
        raise error
    if stopping.requested():
        raise stopping.Stopped() from error
