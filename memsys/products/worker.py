"""The worker: runs one product for one case. `python worker.py ADAPTER` reads steps from stdin and answers on stdout, a JSON line each.

The first step is `open`; then `write`, `end_session`, `consolidate`, `read`, `nodes`, `close`. A reply is `{"n": …, "value": …}` or
`{"n": …, "error": …, "type": …}`, with the CPU seconds of the process so far and the connections that were refused.

Only the main thread touches the product. Stdout belongs to the protocol: whatever the product prints goes to stderr.
"""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any, TextIO


def loaded(path: Path) -> Any:
    """A module from its file; the folder is not put on the path, so that its names hide none of the product's."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Worker:
    """Takes steps from the harness and passes them to the product."""

    def __init__(self, adapter: Path) -> None:
        self._adapter = adapter
        self._product: Any = None
        self._clock: Any = None
        self._guard: Any = None

    def open(self, given: dict[str, Any]) -> dict[str, Any]:
        """Set up the surroundings, then import and build the product; says what was built."""
        around = loaded(Path(__file__).with_name("surroundings.py"))
        around.keep_watch(given["parent"], given["memory_mb"])
        self._guard = around.Guard(given["host"], given["port"])
        self._guard.install()
        around.seed_ids(given["seed"])
        self._clock = around.Clock(follow=given["clock"] == "dialogue")
        adapter = loaded(self._adapter)
        os.environ.update(adapter.ENVIRONMENT)
        self._product = adapter.Product(given)
        around.seed_numpy(given["seed"])
        return {"clock": self._clock.kind, "python": platform.python_version(), **adapter.ABILITIES}

    def step(self, name: str, given: dict[str, Any]) -> Any:
        """One step of the product.

        Raises:
            ValueError: the product does not know the step.
        """
        if name == "open":
            return self.open(given)
        if name not in ("write", "end_session", "consolidate", "read", "nodes", "close"):
            raise ValueError(f"no step is called {name!r}")
        self._clock.set(given.get("stamp"), passing=name in ("read", "nodes"))
        method = getattr(self._product, name, None)
        return None if method is None else method(given)

    def spent(self) -> dict[str, Any]:
        """CPU seconds of this process, and the connections refused so far."""
        return {"cpu": time.process_time(), "refused": dict(self._guard.refused) if self._guard else {}}


def answer(worker: Worker, line: str) -> dict[str, Any]:
    """The reply to one line of the protocol."""
    message = json.loads(line)
    try:
        value = worker.step(message["step"], message["given"])
        reply = {"n": message["n"], "value": value}
    except Exception as error:  # whatever a product raises is an outcome of this step
        import traceback

        traceback.print_exc()
        reply = {"n": message["n"], "error": str(error)[:2000], "type": type(error).__name__}
    return {**reply, **worker.spent()}


def main() -> None:
    replies: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)  # also what native code prints
    sys.stdout = sys.stderr
    worker = Worker(Path(sys.argv[1]))
    for line in sys.stdin:
        reply = answer(worker, line)
        replies.write(json.dumps(reply, default=str) + "\n")
        replies.flush()
        if json.loads(line)["step"] == "close":
            break
    # Threads that a product leaves behind (telemetry, pools) must not keep the process.
    os._exit(0)


if __name__ == "__main__":
    main()
