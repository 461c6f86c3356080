"""Sentence-transformers models on this machine; needs the extra `local`."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from memsys.llm.client import Embedded
from memsys.tokens import count_tokens


class LocalEmbedder:
    """An embedding model run here.

    Args:
        model: a name that sentence-transformers knows, or a folder.

    Raises:
        ImportError: the package is not installed; the message says how to get it.
    """

    def __init__(self, model: str) -> None:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise ImportError("this embedder needs sentence-transformers: pip install 'memsys-bench[local]'") from error
        self._model = SentenceTransformer(model)

    def fetch(self, texts: Sequence[str], *, query: bool = False) -> list[Embedded]:
        """Unit vectors of the texts, with their tokens and their share of the time."""
        started = time.perf_counter()
        vectors = np.asarray(self._model.encode(list(texts), normalize_embeddings=True), dtype=np.float32)
        seconds = (time.perf_counter() - started) / max(1, len(texts))
        return [Embedded(vector, count_tokens(text), seconds) for vector, text in zip(vectors, texts, strict=True)]
