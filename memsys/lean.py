"""Importing a package without the optional parts that cost more memory and time than everything else together."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

LOCK = threading.RLock()
"""Held while modules are hidden; whoever imports one of them lazily in a thread takes it too."""


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
