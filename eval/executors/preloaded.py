"""Loaded once by the fork server and shared by workers: a worker's modules, the stemmer, the vocabulary of token counts (60 MB)."""

from __future__ import annotations

import threadpoolctl  # noqa: F401  # each worker limits matrix products to one core

import eval.executors.worker  # noqa: F401
from memsys.tokens import count_tokens, stem

count_tokens(stem("words"))
