"""How every command ends: with its exit code, with a line that says what the user can mend, or with the stop that was asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from memsys.llm import stopping
from memsys.llm.secrets import redact, scrub


def guarded(work: Callable[[], int | None]) -> int:
    """Run an entry point; what a user can mend is printed as one line, a bug keeps its traceback.

    Ctrl-C, SIGTERM and SIGHUP stop it in an orderly way (`memsys.llm.stopping`); the exit code is then 128 + the signal's number.
    """
    with stopping.heeded():
        try:
            code = work() or 0
            sys.stdout.flush()
            return code
        except BrokenPipeError:  # whoever read our output, such as `head`, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        except KeyboardInterrupt:
            return _stopped()
        except Exception as error:
            if stopping.requested():
                return _stopped()
            scrub(error)
            if not isinstance(error, _mendable()):
                raise
            print(f"error: {redact(str(error))}", file=sys.stderr)
            return 2


def _mendable() -> tuple[type[Exception], ...]:
    """Imported only now: a command that is asked for its `--help` loads none of them."""
    from data_loaders.schema import DataError
    from eval.store import RunError
    from memsys.llm.protocol import ModelError
    from memsys.prompts import PromptError

    return DataError, RunError, ModelError, PromptError


def _stopped() -> int:
    """The exit code of a stop, once what was under way is in or given up."""
    stopping.request()  # where a KeyboardInterrupt came from elsewhere, such as a notebook
    given_up = stopping.await_end()
    if given_up:
        print(f"{given_up} calls under way were given up; they are made again", file=sys.stderr)
    return stopping.exit_code()
