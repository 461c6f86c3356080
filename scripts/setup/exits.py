"""How every command ends: an exit code, one line for what the user can fix, and an orderly stop on a signal."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable

from memsys.inert import inert_output
from memsys.llm import stopping
from memsys.llm.secrets import redact, register_environment, scrub


def guarded(work: Callable[[], int | None], *, traceback: bool = False) -> int:
    """Run an entry point. An error that the user can fix is printed as one line (exit code 2); a bug keeps its traceback.

    No file holds the value of an environment variable that looks like a secret, and nothing printed acts on the terminal.

    Ctrl-C, SIGTERM and SIGHUP stop it in order (`memsys.llm.stopping`); the exit code is then 128 plus the signal's number. An error ends
    the calls in flight in the same way, so that none is paid for twice. Caches that the command opened are closed at its end.

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
                return 1
            except Exception as error:
                if (
                    stopping.requested() and not stopping.wound_down()
                ):  # an error inside, already handled, is not a signal
                    return _stopped()
                scrub(error)
                message = _message(error)
                _report(stopping.wind_down())
                if traceback or not message:
                    raise
                from scripts.settings.arguments import as_called

                print(f"error: {as_called(redact(message))}", file=sys.stderr)
                return 2
            finally:
                for keeper in set(stopping.keepers) - before:  # the cache is one file when the command has ended
                    keeper.close()
        except KeyboardInterrupt:  # in the middle of closing or of an error, which the end of the process makes up for
            return _stopped()


def _message(error: Exception) -> str:
    """The line for an error that the user can fix; empty for a bug. Imports stay in here to keep `--help` fast."""
    from data_loaders.schema import DataError
    from eval.files.store import RunError
    from memsys.llm.protocol import ModelError
    from memsys.prompts import PromptError
    from scripts.setup.faults import remedy

    if isinstance(error, ImportError) and "pip install" in str(error):  # it names what is optional and not installed
        return re.sub(r"pip install (\S+\[\w+\])", r"pip install '\1'", str(error))  # zsh reads brackets as a pattern
    return str(error) if isinstance(error, DataError | RunError | ModelError | PromptError) else remedy(error)


def _stopped() -> int:
    """The exit code of a stop, after the calls in flight have returned or been abandoned."""
    stopping.request()  # a KeyboardInterrupt may come from elsewhere, such as a notebook
    _report(stopping.await_end())
    if (progress := sys.modules.get("scripts.terminal.progress")) is not None:  # not where nothing was run
        print(progress.stopped_at(), file=sys.stderr)
    return stopping.exit_code()


def _report(abandoned: int) -> None:
    if abandoned:
        calls, them = ("1 call", "it") if abandoned == 1 else (f"{abandoned} calls", "them")
        waited = f"took longer than {stopping.GRACE:.0f} s and {'was' if abandoned == 1 else 'were'} abandoned"
        print(f"{calls} in flight {waited}; the same command makes {them} again", file=sys.stderr)
