"""`from memsys_bench.inspect_tasks import TASKS, locomo`: our data sets and memories in Inspect (docs/inspect.md; extra `inspect`).

Not called `inspect`: the package's folder is on the path of the installed command, where it would hide the standard module.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

# The package is memsys_bench where it is installed, scripts.command in a checkout.
_command = import_module(__name__.rpartition(".")[0])
_command.import_from_home()

try:
    from scripts.lab import inspect_tasks as _tasks
except ModuleNotFoundError as error:
    if error.name != "inspect_ai":
        raise
    raise ImportError("memsys_bench.inspect_tasks needs inspect_ai: pip install 'memsys-bench[inspect]'") from error

remember, TASKS = _tasks.remember, _tasks.TASKS
globals().update(TASKS)  # Inspect lists the names that a module defines


def __getattr__(name: str) -> Any:
    return getattr(_tasks, name)
