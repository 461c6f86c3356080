"""What the fork server loads once, so that workers share it: the modules of a worker, the stemmer, and the vocabulary (60 MB) of token counts."""

from __future__ import annotations

import threadpoolctl  # noqa: F401  # each worker limits matrix products to one core

import eval.executors.worker  # noqa: F401
from memsys.embed import stem
from memsys.tokens import count_tokens

count_tokens(stem("words"))
