"""How every command ends: with its exit code, with a line that says what the user can mend, or with the stop that was asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from memsys.llm import stopping
from memsys.llm.secrets import redact, scrub

if TYPE_CHECKING:
    from omegaconf import DictConfig


def guarded(work: Callable[[], int | None], *, traceback: bool = False) -> int:
    """Run an entry point; what a user can mend is printed as one line, a bug keeps its traceback.

    Ctrl-C, SIGTERM and SIGHUP stop it in an orderly way (`memsys.llm.stopping`); the exit code is then 128 + the signal's number.

    Args:
        work: returns the exit code; None is 0.
        traceback: raise what would be one line, for developers.
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
            said = _said(error)
            if traceback or not said:
                raise
            print(f"error: {redact(said)}", file=sys.stderr)
            return 2


def configured(cfg: DictConfig, command: str, work: Callable[[DictConfig], int]) -> int:
    """`guarded` for a command with a configuration: every setting is checked before anything else happens.

    Args:
        cfg: as Hydra composed it.
        command: the primary file of `conf`.
        work: takes the configuration with every value in its type.
    """
    from scripts.settings.checking import checked

    return guarded(lambda: work(checked(cfg, command)), traceback=str(cfg.get("traceback")).lower() == "true")


def _said(error: Exception) -> str:
    """The line for an error that a user can mend, else nothing. Imported only now: `--help` loads none of it."""
    from data_loaders.schema import DataError
    from eval.store import RunError
    from memsys.llm.protocol import ModelError
    from memsys.prompts import PromptError
    from scripts.experiment.faults import remedy

    extra = isinstance(error, ImportError) and "pip install" in str(
        error
    )  # it names what is optional and not installed
    return str(error) if extra or isinstance(error, DataError | RunError | ModelError | PromptError) else remedy(error)


def _stopped() -> int:
    """The exit code of a stop, once what was under way is in or given up."""
    stopping.request()  # where a KeyboardInterrupt came from elsewhere, such as a notebook
    given_up = stopping.await_end()
    if given_up:
        print(f"{given_up} calls under way were given up; they are made again", file=sys.stderr)
    return stopping.exit_code()
