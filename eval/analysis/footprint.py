"""How many bytes a memory holds: of its Python objects, and of the text and vectors of its nodes.

The resident size of the process includes the harness, the model clients and what the allocator keeps, and differs between two equal
runs. Therefore the objects that a memory refers to are added up. Each counts once, with the size that Python or NumPy gives it; memory
that other C libraries allocate is not seen. The services that the run hands over, and code, are left out.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Collection
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np

from memsys.interface import MemorySystem
from memsys.prompts import Prompts

SHARED = (ModuleType, type, FunctionType, BuiltinFunctionType, CodeType, FrameType, threading.Thread, Prompts)
"""Types of objects that belong to the program and lead to all of it."""


def object_bytes(memory: MemorySystem, services: Collection[object]) -> int | None:
    """Bytes of all objects that the memory refers to; None for a memory that keeps what it is told outside this process.

    Args:
        services: objects that the memory uses and does not own (model clients, the embedder).
    """
    if not memory.REHEARSED:
        return None
    seen = {id(service) for service in services}
    left: list[Any] = [memory]
    total = 0
    while left:
        thing = left.pop()
        if id(thing) in seen or isinstance(thing, SHARED):
            continue
        seen.add(id(thing))
        total += sys.getsizeof(thing)
        left += gc.get_referents(thing)
        if isinstance(thing, np.ndarray):  # does not tell the garbage collector what it refers to
            # A list of all elements is made here, and is not counted.
            left += [thing.base, *(thing.ravel().tolist() if thing.dtype.hasobject else ())]
    return total


def node_bytes(memory: MemorySystem) -> int | None:
    """Bytes of the nodes' texts (UTF-8) and vectors, without ids and links; None for a memory without nodes."""
    total = None
    for node in memory.nodes():
        vector = 0 if node.vector is None else node.vector.nbytes
        total = (total or 0) + len(node.text.encode(errors="replace")) + vector
    return total
