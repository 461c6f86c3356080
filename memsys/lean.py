"""Heavy libraries, lightly: imported without the parts that cost most, and run so that they give the same numbers everywhere."""

from __future__ import annotations

import gc
import importlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

LOCK = threading.RLock()
"""Held while modules are hidden; whoever imports one of them lazily in a thread takes it too."""

_ALONE = threading.Lock()


def collect_rarely() -> None:
    """Let Python look for reference cycles less often; what it finds is the same.

    Thousands of calls under way are objects that live a while and form few cycles: looking at them every 700th allocation, which
    is Python's default, takes a sixth of a call's CPU.
    """
    gc.set_threshold(20_000, 20, 20)


@contextmanager
def one_core(*modules: str) -> Iterator[None]:
    """What runs inside runs on one core, and nowhere else at the same time: sums, and so clusters, do not depend on the machine.

    The modules are imported first, because the limit holds only for libraries that are loaded when it is set. numba's default
    threading layer aborts a process in which two threads use it at once, and the many tiny matrix products of a mixture are ten
    times slower when cores wait for each other.
    """
    from threadpoolctl import threadpool_limits

    with _ALONE:
        with LOCK:  # they may import what another thread is hiding at this moment
            for module in modules:
                importlib.import_module(module)
        with threadpool_limits(1):
            yield


@contextmanager
def without(*modules: str) -> Iterator[None]:
    """Imports inside do not find these modules, unless they are loaded already: packages that can do without them then do.

    nltk would load scikit-learn, SciPy's statistics and pandas (150 MB, seconds), bm25s numba (40 MB): none is used here.
    """
    with LOCK:
        hidden = [name for name in modules if name not in sys.modules]
        sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None makes an import fail
        try:
            yield
        finally:
            for name in hidden:
                del sys.modules[name]
