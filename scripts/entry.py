"""How every command ends: with its exit code, or with a line that says what the user can mend."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from data_loaders.schema import DataError
from eval.store import RunError
from memsys.llm.protocol import ModelError
from memsys.prompts import PromptError


def guarded(work: Callable[[], int]) -> int:
    """Run an entry point; what a user can mend is printed as one line, a bug keeps its traceback."""
    try:
        code = work()
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read our output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (DataError, RunError, ModelError, PromptError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
