"""How every command ends: with its exit code, or with a line that says what the user can mend."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from data_loaders.schema import DataError
from eval.store import RunError
from memsys.llm.protocol import ModelError
from memsys.prompts import PromptError
from scripts.faults import remedy

if TYPE_CHECKING:
    from omegaconf import DictConfig


def guarded(work: Callable[[], int], *, traceback: bool = False) -> int:
    """Run an entry point; what a user can mend is printed as one line, a bug keeps its traceback.

    Args:
        work: returns the exit code.
        traceback: raise what would be one line, for developers.
    """
    try:
        code = work()
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read our output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        said = str(error) if isinstance(error, DataError | RunError | ModelError | PromptError) else remedy(error)
        if traceback or not said:
            raise
        print(f"error: {said}", file=sys.stderr)
        return 2


def configured(cfg: DictConfig, command: str, work: Callable[[DictConfig], int]) -> int:
    """`guarded` for a command with a configuration: every setting is checked before anything else happens.

    Args:
        cfg: as Hydra composed it.
        command: the primary file of `conf`.
        work: takes the configuration with every value in its type.
    """
    from scripts.checking import checked

    return guarded(lambda: work(checked(cfg, command)), traceback=str(cfg.get("traceback")).lower() == "true")
