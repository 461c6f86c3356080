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
"""What a memory may raise besides an `Exception`, such as by `sys.exit`: no more than an error of its case or question. Where a memory is
called, `BaseException` is caught, as a panic of code in Rust is none of these, either; only Ctrl-C is never an error of the memory."""


def fatal_error(error: BaseException) -> BaseException | None:
    """The error itself, or the first one in its group, that ends the run because every other question would fail, too; else None.

    Fatal are: no model call can be made, the disk refuses to write, a memory uses a prompt that it does not declare, and Ctrl-C.
    """
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(fatal_error, error.exceptions)), None)
    if isinstance(error, sqlite3.Error):
        fatal = isinstance(error, sqlite3.OperationalError) and ("full" in str(error) or "readonly" in str(error))
    elif isinstance(error, OSError):
        fatal = error.errno in FATAL_ERRNOS
    else:
        fatal = isinstance(error, EndOfRun | UndeclaredPrompt | KeyboardInterrupt)
    return error if fatal else None


def described(error: BaseException) -> str:
    """The error's type and message in at most 500 characters, without secrets; of a group also its first error."""
    try:
        message = str(error)
    except Exception as failure:  # foreign errors may have no text
        message = f"no text ({type(failure).__name__})"
    if isinstance(error, BaseExceptionGroup):
        message += f", the first: {described(error.exceptions[0])}"
    return redact(f"{type(error).__name__}: {message}")[:500]  # redacted before it is cut: no part of a key may remain


def raise_fatal(error: BaseException) -> None:
    """Raise the fatal error, if this is one or holds one."""
    if fatal := fatal_error(error):
        raise fatal


def raise_if_stopped(error: BaseException) -> None:
    """Raise a fatal error, and `Stopped` when the user has requested a stop: the stop caused the error, and the question stays open."""
    raise_fatal(error)
    if stopping.requested():
        raise stopping.Stopped() from error
