"""A worker on a Ray cluster: an actor that takes packed messages and returns its own on request.

Messages are packed as for a worker process, not by Ray: arrays that Ray unpacks cannot be written to.
"""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from queue import Empty, SimpleQueue
from typing import Any

from eval.executors.environment import this_home
from eval.executors.worker import Cells, Ready, prepare


def packed(messages: Any) -> bytes:
    """Messages as bytes."""
    return bytes(ForkingPickler.dumps(messages))


def unpacked(content: bytes) -> Any:
    """Messages from the bytes of a process of this run."""
    return ForkingPickler.loads(content)


def drained(queue: SimpleQueue[Any]) -> list[Any]:
    """The messages of a queue; waits until there is one."""
    messages = [queue.get()]
    try:
        while True:
            messages.append(queue.get_nowait())
    except Empty:
        return messages


class ClusterWorker:
    """The actor. It has two threads; the driver has at most one open call of `take` and one of `hear`, so neither waits for the other."""

    def __init__(self, slots: int, files: int, network_forbidden: bool) -> None:
        import ray

        import eval.executors.preloaded  # noqa: F401

        prepare(files, network_forbidden)
        self._outgoing: SimpleQueue[Any] = SimpleQueue()
        self._cells = Cells(self._outgoing.put, slots)
        self._outgoing.put(Ready(this_home(ray.util.get_node_ip_address())))

    def take(self, messages: bytes, *templates: bytes) -> None:
        """Handle messages of the driver, templates first."""
        for content in templates:
            self._cells.take(unpacked(content))
        for message in unpacked(messages):
            self._cells.take(message)

    def hear(self) -> bytes:
        """The messages for the driver since the last call; waits until there are some."""
        return packed(drained(self._outgoing))
