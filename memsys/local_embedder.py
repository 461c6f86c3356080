"""Embedding models that run on this machine with sentence-transformers; needs the extra `embeddings`."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from memsys.llm.client import Embedded, Keep
from memsys.tokens import count_tokens


class LocalEmbedder:
    """An embedding model run with sentence-transformers.

    Args:
        model: the name of a sentence-transformers model, or a folder that holds one.

    Raises:
        ImportError: sentence-transformers is not installed; the message names the command that installs it.
    """

    def __init__(self, model: str) -> None:
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise ImportError(
                "this embedder needs sentence-transformers: pip install 'memsys-bench[embeddings]'"
            ) from error
        self._model = SentenceTransformer(model)

    def fetch(
        self, texts: Sequence[str], *, query: bool = False, keep: Keep = lambda start, outcomes: None
    ) -> list[Embedded]:
        """The unit vector of each text with its number of tokens and its share of the seconds."""
        started = time.perf_counter()
        vectors = np.asarray(self._model.encode(list(texts), normalize_embeddings=True), dtype=np.float32)
        seconds = (time.perf_counter() - started) / max(1, len(texts))
        embedded = [Embedded(vector, count_tokens(text), seconds) for vector, text in zip(vectors, texts, strict=True)]
        keep(0, embedded)
        return embedded
