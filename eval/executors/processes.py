"""Run cells in worker processes of this machine: one interpreter uses one core, so an offline run needs one process for each core.

Workers are forked from Python's fork server, which has a single thread: a fork of this process could copy a lock that the cache's or the
event loop's thread holds. On macOS they are spawned as new processes: a library that numpy loads there does not work after a fork.
`eval.executors.driver` decides which worker gets which cell.
"""

from __future__ import annotations

import multiprocessing
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import connection as connections
from queue import SimpleQueue
from typing import Any

from eval.executors.driver import Died, Worker, work_on
from eval.executors.worker import work
from eval.running.work import Executor
from memsys.llm import network
from memsys.processes import quiet_tracker


def in_processes(workers: int, threads: int) -> Executor:
    """Return an executor with this number of worker processes.

    Args:
        threads: cells that are open at once over all workers where services are online; offline, each worker has one.
    """
    return partial(work_on, transport=_Processes(workers), threads=threads)


_END = object()
"""Ends the thread that sends messages to a worker."""


class _Process(Worker):
    """A worker process."""

    def __init__(self, slots: int, files: int) -> None:
        super().__init__(slots)
        quiet_tracker()
        get = multiprocessing.get_context
        context = get("spawn") if sys.platform == "darwin" else get("forkserver")
        context.set_forkserver_preload(["eval.executors.preloaded"])
        self.connection, theirs = context.Pipe()
        arguments = (theirs, slots, files, network.forbidden())
        self.process = context.Process(target=work, args=arguments, name="cells", daemon=True)
        self.process.start()
        theirs.close()
        self._outgoing: SimpleQueue[Any] = SimpleQueue()
        threading.Thread(target=self._send_all, name="to worker", daemon=True).start()

    def send(self, message: Any) -> None:
        self._outgoing.put(message)

    def wait(self, seconds: float) -> None:
        self.process.join(seconds)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self._outgoing.put(_END)
        self.connection.close()

    def _send_all(self) -> None:
        with suppress(OSError, ValueError):  # the worker, or our end of its connection, is gone
            for message in iter(self._outgoing.get, _END):
                self.connection.send(message)


class _Processes:
    """The transport: a pipe to each worker."""

    shares_disk = True
    tries = 2
    patience = 0.0

    def __init__(self, workers: int) -> None:
        self._workers = workers

    def wanted(self) -> int:
        return self._workers

    def start(self, slots: int, files: int) -> _Process:
        return _Process(slots, files)

    def hear(self, workers: Sequence[_Process], seconds: float) -> Iterator[tuple[_Process, Any]]:
        by_source: dict[Any, _Process] = {worker.connection: worker for worker in workers}
        for source in connections.wait(list(by_source), seconds):
            worker = by_source[source]
            try:
                message = worker.connection.recv()
            except (EOFError, OSError):
                worker.kill()
                message = Died(_how_it_ended(worker.process.exitcode))
            yield worker, message


def _how_it_ended(code: int | None) -> str:
    if code is not None and code < 0:
        memory = " (was the machine out of memory?)" if code == -9 else ""
        return f"was ended by signal {-code}{memory}"
    return f"ended with exit code {code}"
