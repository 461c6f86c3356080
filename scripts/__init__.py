"""Entry points only: `python -m scripts VERB`, which is `memsys-bench VERB`."""

from __future__ import annotations

import os
import sys

if sys.platform == "win32":
    sys.exit(
        "error: memsys-bench runs on Linux and macOS; on Windows run it in WSL (wsl --install), where every command works"
    )

# Cells run in parallel; linear algebra with threads of its own would only compete with them.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
