"""An offline embedder based on feature hashing. The embedders for servers and for sentence-transformers are in `memsys.llm.client`."""

from __future__ import annotations

import itertools
import re
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from memsys.llm import meter
from memsys.tokens import count_tokens, stem
from memsys.vectors import normalised

_WORD = re.compile(r"\w+(?:'\w+)?", re.UNICODE)
# English function words; their weight is a tenth of that of other words.
_LIGHT = frozenset(
    """
    a about after all also am an and any are as at be been before but by can could did do does for from get go got
    had has have he her hers him his how i if in into is it its just like me more my no not now of on one or our
    out over really she should so some than that the their them then there these they this those to too up us very
    was we well were what when where which while who whom whose why will with would yes you your yeah oh wow hey
    thanks
    """.split()
)


@dataclass(frozen=True, eq=False)
class HashingEmbedder:
    """Signed feature hashing of stemmed words and word pairs: a deterministic substitute for a model, without vocabulary or download."""

    dimension: int = 1024
    """Length of the vectors."""

    def embed(self, texts: Sequence[str], *, query: bool = False) -> np.ndarray:
        """Unit vectors, float32 [n, dimension]; the vector of a text without words is zero."""
        started = time.thread_time()
        with meter.service_time(), meter.embedding("hashing") as told:
            vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
            for row, text in enumerate(texts):
                vectors[row] = _hashed(text, self.dimension)
            ledger = meter.current()
            # Metered as a model would be, so that an offline run can predict a real one's cost.
            if ledger is not None and texts:
                tokens = sum(map(count_tokens, texts))
                ledger.add_embedding(tokens, time.thread_time() - started)
                told(tokens)
        return vectors


@lru_cache(maxsize=1 << 15)
def _hashed(text: str, dimension: int) -> np.ndarray:
    weights: dict[str, float] = {}
    stems = [(stem(word), word not in _LIGHT) for word in _WORD.findall(text.lower())]
    for word, heavy in stems:
        weights[word] = weights.get(word, 0.0) + (1.0 if heavy else 0.1)
    for (first, heavy_first), (second, heavy_second) in itertools.pairwise(stems):
        if heavy_first and heavy_second:
            weights[f"{first} {second}"] = weights.get(f"{first} {second}", 0.0) + 0.5
    vector = np.zeros(dimension, dtype=np.float32)
    for feature, weight in weights.items():
        code = zlib.crc32(feature.encode())
        # The square root makes the tenth mention of a word weigh less than the second, as sublinear tf-idf does.
        vector[code % dimension] += (1 if code & 0x80000000 else -1) * weight**0.5
    unit = normalised(vector)
    unit.flags.writeable = False
    return unit
