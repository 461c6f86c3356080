"""Entry points only; run each as `python -m scripts.<name>`."""

from __future__ import annotations

import os

# Cells are what runs in parallel; linear algebra that starts threads of its own would only get in their way.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")
