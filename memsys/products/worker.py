"""The worker: runs one product for one case. `python worker.py ADAPTER` reads steps from stdin and answers on stdout, a JSON line each.

In a network of its own it is started with `PORT LINE` as well: it listens on the gateway's port there, and hands the listener to the
harness through the socket LINE. The gateway then serves both networks, and nothing else crosses from one to the other.

The first step is `open`; then `write`, `end_session`, `consolidate`, `read`, `nodes`, `close`. A reply is `{"n": …, "value": …}` or
`{"n": …, "error": …, "type": …}`, with the CPU seconds of the process so far and the connections that were refused.

A unit has the turns that say something, each with `id`, `speaker`, `role`, `text`, and `spoken`: speaker and text in one line; `text`,
these lines; `document`, the lines with the time above them; and `turn_ids`, of all its turns. A write returns the numbers `stored`,
`changed` and `deleted` where they are not 0, and `held`. A hit without a `score` gets its rank.

An adapter takes a step with a method of its name, plain or `async def`; it may leave out any but `write` and `read`. Its `open`, if it
has one, is called right after `Product` was built. What a method returns is awaited where it can be, all on one event loop and in one
context that last as long as the worker: a context variable that one step sets is seen by the next. Plain methods are called while the
loop stands still, so that they may run a loop of their own. An adapter whose product has to start programs says `CHILDREN = True`.

Only the main thread touches the product. Stdout belongs to the protocol: whatever the product prints goes to stderr.
"""

from __future__ import annotations

import asyncio
import contextvars
import importlib.util
import inspect
import json
import os
import platform
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TextIO

PARENT = os.getppid()
"""The process that ends this one; looked at first, for it may end meanwhile."""


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
        self._runner = asyncio.Runner()
        self._context = contextvars.copy_context()

    def open(self, given: dict[str, Any]) -> dict[str, Any]:
        """Set up the surroundings, then import and build the product; says what was built."""
        around = loaded(Path(__file__).with_name("surroundings.py"))
        around.keep_watch(PARENT, given["memory_mb"])
        self._guard = around.Guard(given["host"], given["port"], given["scratch"])
        self._guard.install()
        around.seed_ids(given["seed"])
        self._clock = around.Clock(follow=given["clock"] == "dialogue")
        adapter = loaded(self._adapter)
        self._guard.children = bool(getattr(adapter, "CHILDREN", False))
        os.environ.update(adapter.ENVIRONMENT)
        self._runner.get_loop()  # the current one for a product that asks for it while it is built
        self._product = self._taken(adapter.Product, given)
        self._pass("open", given)
        around.seed_numpy(given["seed"])
        return {"clock": self._clock.kind, "python": platform.python_version(), **adapter.ABILITIES}

    def step(self, name: str, given: dict[str, Any]) -> Any:
        """One step of the product; `close` closes the event loop too.

        Raises:
            ValueError: the product does not know the step.
        """
        if name == "open":
            return self.open(given)
        if name not in ("write", "end_session", "consolidate", "read", "nodes", "close"):
            raise ValueError(f"no step is called {name!r}")
        self._clock.set(given.get("stamp"), passing=name in ("read", "nodes"))
        try:
            return self._pass(name, given)
        finally:
            if name == "close":
                self._runner.close()

    def _pass(self, name: str, given: dict[str, Any]) -> Any:
        """Result of the product's method of this name; None if it has no such method."""
        method = getattr(self._product, name, None)
        return None if method is None else self._taken(method, given)

    def _taken(self, method: Callable[[dict[str, Any]], Any], given: dict[str, Any]) -> Any:
        """Result of a method, awaited if it can be."""
        value = self._context.run(method, given)
        return self._runner.run(_awaited(value), context=self._context) if inspect.isawaitable(value) else value

    def spent(self) -> dict[str, Any]:
        """CPU seconds of this process, and the connections refused so far."""
        return {"cpu": time.process_time(), "refused": dict(self._guard.refused) if self._guard else {}}


async def _awaited(value: Awaitable[Any]) -> Any:
    """A coroutine of whatever can be awaited, which is what a runner takes."""
    return await value


def answer(worker: Worker, line: str) -> dict[str, Any]:
    """The reply to one line of the protocol."""
    message = json.loads(line)
    try:
        value = worker.step(message["step"], message["given"])
        reply = {"n": message["n"], "value": value}
    except (Exception, asyncio.CancelledError) as error:  # whatever a product raises is an outcome of this step
        import traceback

        traceback.print_exc()
        reply = {"n": message["n"], "error": str(error)[:2000], "type": type(error).__name__}
    return {**reply, **worker.spent()}


def open_door(port: int, line: int) -> None:
    """Listen on a port of this network, and hand the listener to whoever is at the other end of a socket; nothing of it stays here."""
    with socket.socket(fileno=line) as harness, socket.socket() as listener:
        listener.bind(("127.0.0.1", port))
        listener.listen(512)
        socket.send_fds(harness, [b"listening"], [listener.fileno()])


def main() -> None:
    if len(sys.argv) > 2:
        open_door(int(sys.argv[2]), int(sys.argv[3]))
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
