"""Scores of TiMem's segments: cosine and BM25 with the question's keywords, and their fusion (TiMem Eq. 7)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from memsys.vectors import best

_K1, _B = 1.5, 0.75


def words(text: str) -> list[str]:
    """Split a text into lower-case words for the lexical channel."""
    return re.findall(r"\w+", text.lower())


def lexical(documents: Sequence[Mapping[str, int]], query: Sequence[str]) -> np.ndarray:
    """BM25 scores of documents (word -> count), float64 [n], with the idf ln(N/df) without smoothing: a word in all documents adds 0.

    `memsys.systems.bm25` cannot be used here, because the searched documents depend on settings of the read.
    """
    lengths = np.array([sum(document.values()) for document in documents], dtype=np.float64)
    penalty = _K1 * (1 - _B + _B * lengths / max(1.0, float(lengths.mean())))
    scores = np.zeros(len(documents))
    for word in query:
        counts = np.array([document.get(word, 0) for document in documents], dtype=np.float64)
        if holding := np.count_nonzero(counts):
            scores += math.log(len(documents) / holding) * counts * (_K1 + 1) / (counts + penalty)
    return scores


def fused(semantic: np.ndarray, keywords: np.ndarray, weight: float, top: int | None) -> np.ndarray:
    """Weighted sum of both channels, each divided by its maximum (TiMem Eq. 7), float64 [n].

    Args:
        semantic: cosines, [n].
        keywords: BM25 scores, [n].
        weight: weight of the cosines; the BM25 scores have the rest.
        top: if given, a channel counts only for its best `top` segments, and segments in neither list score minus infinity (as
            released). None scores all segments by both channels.
    """
    top = len(semantic) if top is None else top
    scores = np.full(len(semantic), -math.inf)
    lists = [
        (weight, semantic, best(semantic, top)),
        (1 - weight, keywords, [index for index in best(keywords, top) if keywords[index] > 0]),
    ]
    for _, _, listed in lists:
        scores[listed] = 0.0
    for share, channel, listed in lists:
        if listed:
            peak = channel[listed[0]]
            scores[listed] += share * (channel[listed] / peak if peak > 0 else channel[listed])
    return scores
