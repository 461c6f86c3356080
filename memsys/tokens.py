"""Token counts with OpenAI's o200k and cl100k vocabularies, which come inside a package; loaded when first used."""

from __future__ import annotations

import importlib.util
import threading
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, FileFinder
from typing import Any


def count_tokens(text: str, encoding: str = "o200k_base") -> int:
    """Number of tokens of a text."""
    # Turns and facts are counted over and over; whole prompts are counted once, and thousands of them would fill the memory.
    return _known_count(text, encoding) if len(text) <= 2000 else _count(text, encoding)


def _count(text: str, encoding: str) -> int:
    return int(_vocabulary(encoding).count(_whole(text))) if text else 0


_known_count = lru_cache(maxsize=1 << 14)(_count)


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
    """For every token the index of the character in which it starts; tokens that only together make whole characters count as one place."""
    vocabulary, starts, at, pending = _vocabulary(encoding), [], 0, []
    for token in vocabulary.encode(_whole(text)):
        starts.append(at)
        pending.append(token)
        try:
            at += len(vocabulary.decode(pending))
        except ValueError:  # not yet whole characters
            continue
        pending = []
    return starts


def _whole(text: str) -> str:
    """The text with lone surrogates, which have no UTF-8, replaced by question marks."""
    return text.encode(errors="replace").decode()


def _vocabulary(encoding: str) -> Any:
    with _lock:  # lru_cache alone would let several first callers each load 60 MB
        return _loaded(encoding)


_lock = threading.Lock()


@lru_cache(maxsize=2)
def _loaded(encoding: str) -> Any:
    # The extension alone: the package's own __init__ unpacks every vocabulary a second time, in Python (60 MB and half a second).
    package = importlib.util.find_spec("bpe_openai")
    if package is None or not package.submodule_search_locations:
        raise ImportError("token counts need the package bpe-openai: pip install bpe-openai")
    finder = FileFinder(package.submodule_search_locations[0], (ExtensionFileLoader, EXTENSION_SUFFIXES))
    spec = finder.find_spec("bpe_openai._bindings")
    if spec is None or spec.loader is None:
        raise ImportError("bpe-openai is installed without its extension module; reinstall it")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.tokenizer_for_encoding(encoding)
