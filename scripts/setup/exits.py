"""The end of every command: an exit code, one line for an error that the user can fix, and an orderly stop on a signal."""

from __future__ import annotations

import errno
import os
import re
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator

from memsys.inert import inert_output
from memsys.llm import stopping
from memsys.llm.secrets import redact, register_environment, scrub


def guarded(work: Callable[[], int | None], *, traceback: bool = False) -> int:
    """Run an entry point. An error that the user can fix is printed as one line (exit code 2); a bug keeps its traceback.

    Values of environment variables that look like secrets are never written, and control characters are never printed.

    Ctrl-C, SIGTERM and SIGHUP stop it in order (`memsys.llm.stopping`); the exit code is then 128 plus the signal's number. An error ends
    the calls in flight in the same way, so that no call is paid for twice. If the reader of the output has gone, such as `head`, the exit
    code is 141, as of programs that SIGPIPE ends. Caches that the command opened are closed at its end.

    Args:
        work: returns the exit code; None means 0.
        traceback: raise every error, for developers.
    """
    if stopping.wound_down():  # an earlier command in this process ended with an error
        stopping.forget()
    before = set(stopping.keepers)
    register_environment()
    with stopping.handling_signals(), inert_output():
        try:
            try:
                code = work() or 0
                sys.stdout.flush()
                return code
            except KeyboardInterrupt:
                return _stopped()
            except BrokenPipeError:  # the reader of our output, such as `head`, has closed it
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                stopping.wind_down()
                return 128 + signal.SIGPIPE
            except Exception as error:
                # An inner error that was already handled is no signal.
                if stopping.requested() and not stopping.wound_down():
                    return _stopped()
                scrub(error)
                message = _message(error)
                _report(stopping.wind_down())
                if traceback or not message:
                    raise
                from scripts.setup.arguments import as_called

                print(f"error: {as_called(redact(message))}", file=sys.stderr)
                return 2
            finally:
                for keeper in set(stopping.keepers) - before:  # the cache is one file when the command has ended
                    keeper.close()
        except KeyboardInterrupt:  # a signal while closing or handling an error: the process's end closes the rest
            return _stopped()


def _message(error: Exception) -> str:
    """The line for an error that the user can fix; empty for a bug. Imports stay in here to keep `--help` fast."""
    from data_loaders.schema import DataError
    from eval.files.store import RunError
    from memsys.llm.protocol import ModelError
    from memsys.prompts import PromptError

    if isinstance(error, ImportError) and "pip install" in str(error):  # the message names the missing package
        return re.sub(r"pip install (\S+\[\w+\])", r"pip install '\1'", str(error))  # zsh reads brackets as a pattern
    if isinstance(error, DataError):  # its ids and texts come from a file, and must not look like further lines
        return str(error).replace("\n", "\\n")[:2000]
    return str(error) if isinstance(error, RunError | ModelError | PromptError) else remedy(error)


def _stopped() -> int:
    """The exit code of a stop, after the calls in flight have returned or been abandoned."""
    stopping.request()  # a KeyboardInterrupt may come from elsewhere, such as a notebook
    _report(stopping.await_end())
    if (progress := sys.modules.get("scripts.setup.progress")) is not None:  # not if no work was started
        print(progress.stopped_at(), file=sys.stderr)
    return stopping.exit_code()


def _report(abandoned: int) -> None:
    if abandoned:
        calls, them = ("1 call", "it") if abandoned == 1 else (f"{abandoned} calls", "them")
        waited = f"took longer than {stopping.GRACE:.0f} s and {'was' if abandoned == 1 else 'were'} abandoned"
        print(f"{calls} in flight {waited}; the same command makes {them} again", file=sys.stderr)


AGAIN = "run the same command again to resume"
REMEDIES = {
    errno.ENOSPC: f"the disk is full; free some space (python -m scripts runs gc) and {AGAIN}",
    errno.EDQUOT: f"the disk quota is used up; free some space (python -m scripts runs gc) and {AGAIN}",
    errno.EFBIG: f"the file is larger than this process or the file system allows; raise the limit (ulimit -f unlimited) and {AGAIN}",
    errno.EROFS: "the folder is read-only; name another (results=; --out of a report; for data --data or MEMSYS_DATA)",
    errno.EACCES: "permission denied; name a folder of your own (results=; --out of a report; for data --data or MEMSYS_DATA)",
    errno.EPERM: "permission denied; name a folder of your own with results=",
    errno.EMFILE: f"too many open files; raise the limit (ulimit -n 4096) or lower threads=, and {AGAIN}",
    errno.ENFILE: f"too many open files on this machine; close some programs and {AGAIN}",
    errno.ENOENT: "it is not there, and cannot be made there; name another (results=; for data --data or MEMSYS_DATA), or copy it whole",
    errno.ENOTDIR: "a part of this path is a file where a folder is needed; name another folder with results=",
    errno.EEXIST: "this is a file or a broken link where a folder is needed; name another folder with results=",
    errno.EISDIR: "this is a folder where a file is needed; move it away",
    errno.ENAMETOOLONG: "a name in this path is too long; shorten it (results=, cache=, or the name in the memory's file)",
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
"""Words of SQLite's messages, with remedies."""


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

    if any(isinstance(each, UnicodeDecodeError) for each in _chain(error)):
        from scripts.setup.options import not_utf8

        return not_utf8()
    if isinstance(error, HydraException):
        from scripts.settings.checking import composition_error

        return composition_error(error)
    if isinstance(error, ValueError) and str(error).startswith("Config group override must be"):  # no HydraException
        return "a memory, a data set or another file of conf is chosen by its name, not by a number, a switch or null"
    return ""


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and its causes: Hydra wraps errors of files of `conf`."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
