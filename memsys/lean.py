"""Imports heavy libraries without their costly parts, and runs them so that they give the same numbers on every machine."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

_ONE_AT_A_TIME = threading.Lock()
_left_out: ContextVar[frozenset[str]] = ContextVar("left_out", default=frozenset())
"""Modules that imports of the current thread do not find."""


def cores() -> int:
    """Number of cores that this process may use; on macOS, which does not report it, all of them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def prepare_for_many_calls() -> None:
    """Set this process's collector and thread switching for thousands of calls in flight; results stay the same.

    Calls in flight are objects that live for a while and form few cycles. Looking for cycles every 700 allocations, Python's
    default, takes a sixth of a call's CPU time.

    A call passes through three threads (the cell's, the event loop's, the cache's). Each takes over from a thread that computes
    after 5 ms by Python's default. After 2 ms tables take 2 % less time; after 0.5 ms a call takes a third more CPU.
    """
    gc.set_threshold(20_000, 20, 20)
    sys.setswitchinterval(0.002)


@contextmanager
def one_core(*modules: str) -> Iterator[None]:
    """Run the block on one core, one block at a time, so that sums (and therefore clusters) do not depend on the machine.

    The modules are imported first, because the limit holds only for libraries that are loaded when it is set. numba's default
    threading layer aborts a process in which two threads use it at once, and the many tiny matrix products of a Gaussian
    mixture are ten times slower when cores wait for each other.
    """
    from threadpoolctl import threadpool_limits

    with _ONE_AT_A_TIME:
        for module in modules:
            importlib.import_module(module)
        with threadpool_limits(1):
            yield


@cache
def umap() -> Any:
    """Import UMAP so that only the first process of an environment compiles it, which takes 15 s; returns the module.

    By default numba keeps on disk only the functions whose authors ask for it. The others go into a folder next to them. It is named
    after the versions of both packages, because numba does not see a change in a function of another file. Where nothing can be
    written, each process compiles, as without this function.

    Raises:
        ImportError: umap-learn is not installed.
    """
    import numba
    import umap
    from numba.core.dispatcher import Dispatcher

    packages = {"umap": "umap-learn", "pynndescent": "pynndescent"}
    compiled = Path(umap.__file__).parent / "__pycache__" / "-".join(version(name) for name in packages.values())
    config: Any = numba.config
    default, config.CACHE_DIR = config.CACHE_DIR, config.CACHE_DIR or str(compiled)
    try:
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] in packages:
                for value in vars(module).values():
                    if isinstance(value, Dispatcher) and not value.signatures and not value.stats.cache_path:
                        value.enable_caching()
    except RuntimeError:  # numba finds no folder in which it may write
        pass
    finally:
        config.CACHE_DIR = default
    return umap


@contextmanager
def hide_modules(*modules: str) -> Iterator[None]:
    """Hide modules from the imports of this block, so that packages for which they are optional do without them.

    Only the current thread is affected, and a module that is already loaded stays importable. nltk would load scikit-learn, SciPy and
    pandas (140 MB, 3 s of CPU), and bm25s numba (60 MB, 0.6 s); none of them is used here.
    """
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)  # it stays: removing it could make another thread's search skip a finder
    token = _left_out.set(_left_out.get() | set(modules))
    try:
        yield
    finally:
        _left_out.reset(token)


class _LeftOutFinder(MetaPathFinder):
    """Refuses the modules that the current thread leaves out, and passes every other on to the next finder."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname in _left_out.get():
            raise ModuleNotFoundError(f"No module named {fullname!r}: it is left out of this import", name=fullname)


_FINDER = _LeftOutFinder()
