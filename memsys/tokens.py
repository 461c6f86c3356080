"""Token counts with OpenAI's o200k and cl100k vocabularies, which come inside a package; loaded when first used."""

from __future__ import annotations

from functools import lru_cache
from typing import Any


@lru_cache(maxsize=2)
def _encoding(name: str) -> Any:
    import bpe_openai

    return bpe_openai.get_encoding(name)


@lru_cache(maxsize=1 << 14)
def count_tokens(text: str, encoding: str = "o200k_base") -> int:
    """Number of tokens of a text."""
    return len(_encoding(encoding).encode_ordinary(text)) if text else 0


def truncate(text: str, limit: int, encoding: str = "o200k_base") -> str:
    """The text cut after its first `limit` tokens; a character that the cut would halve is left out."""
    if len(text.encode(errors="replace")) <= limit:  # a token is at least one byte
        return text
    starts = _starts(text, encoding)
    return text if len(starts) <= limit else text[: starts[limit]]


def split_tokens(text: str, size: int, overlap: int = 0, encoding: str = "o200k_base") -> list[str]:
    """Windows of `size` tokens, each starting `size - overlap` tokens after the last; stops once the text is covered.

    A character made of several tokens belongs to one window whole, so that windows without overlap join to the text.

    Raises:
        ValueError: `overlap` is not smaller than `size`.
    """
    if not 0 <= overlap < size:
        raise ValueError(f"overlap {overlap} must be at least 0 and smaller than the window {size}")
    starts = _starts(text, encoding)
    edges = [*starts, len(text)]
    firsts = range(0, max(1, len(starts) - overlap), size - overlap)
    windows = [text[edges[first] : edges[min(first + size, len(starts))]] for first in firsts]
    return [window for window in windows if window]


def _starts(text: str, encoding: str) -> list[int]:
    """For every token the index of the character in which it starts."""
    vocabulary = _encoding(encoding)
    starts: list[int] = vocabulary.decode_with_offsets(vocabulary.encode_ordinary(text))[1]
    return starts
