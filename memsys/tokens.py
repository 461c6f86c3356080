"""Stems of words, and token counts with the vocabularies o200k and cl100k of an installed package, loaded on first use."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, FileFinder
from typing import Any, TypeVar

import Stemmer

Entry = TypeVar("Entry")

CL100K_TOKENS = 100_256
"""Number of tokens of cl100k_base, without special tokens."""


def count_tokens(text: str, encoding: str = "o200k_base") -> int:
    """The number of tokens of a text."""
    # Short texts (turns, facts) are counted many times and are cached; long ones (prompts) are counted once and would fill the memory.
    return _cached_count(text, encoding) if len(text) <= 2000 else _count(text, encoding)


def _count(text: str, encoding: str) -> int:
    return int(_vocabulary(encoding).count(_without_surrogates(text))) if text else 0


_cached_count = lru_cache(maxsize=1 << 14)(_count)


def truncate(text: str, limit: int, encoding: str = "o200k_base") -> str:
    """The text cut after its first `limit` tokens; a character that the cut would split is left out."""
    if len(text.encode(errors="replace")) <= limit:  # a token is at least one byte
        return text
    starts = _starts(text, encoding)
    return text if len(starts) <= limit else text[: starts[limit]]


def split_tokens(text: str, size: int, overlap: int = 0, encoding: str = "o200k_base") -> list[str]:
    """The text as windows of `size` tokens, each starting `size - overlap` tokens after the window before.

    A character that consists of several tokens is never split, so windows without overlap join to the original text.

    Raises:
        ValueError: `overlap` is negative or not smaller than `size`.
    """
    if not 0 <= overlap < size:
        raise ValueError(f"overlap {overlap} must be at least 0 and smaller than the window {size}")
    starts = _starts(text, encoding)
    edges = [*starts, len(text)]
    firsts = range(0, max(1, len(starts) - overlap), size - overlap)
    windows = [text[edges[first] : edges[min(first + size, len(starts))]] for first in firsts]
    return [window for window in windows if window]


def first_within(entries: Iterable[Entry], budget: float, size: Callable[[Entry], int]) -> list[Entry]:
    """The entries before the first with which their sizes together would exceed a budget."""
    kept: list[Entry] = []
    for entry in entries:
        budget -= size(entry)
        if budget < 0:
            break
        kept.append(entry)
    return kept


def decode_tokens(tokens: Sequence[int]) -> str:
    """The text of token ids as OpenAI's embedding models take them (cl100k_base).

    Raises:
        ValueError: the ids do not form a text in this vocabulary.
    """
    # The extension does not check the range: an id beyond it ends the process.
    if any(not 0 <= token < CL100K_TOKENS for token in tokens):
        raise ValueError(f"expected token ids from 0 to {CL100K_TOKENS - 1}, as cl100k_base has them")
    text = _vocabulary("cl100k_base").decode(list(tokens))
    if not isinstance(text, str):
        raise ValueError("the token ids are no text in the vocabulary cl100k_base")
    return text


def _starts(text: str, encoding: str) -> list[int]:
    """For every token the index of the character at which it starts. Tokens that form a character only together share its index."""
    vocabulary, starts, at, pending = _vocabulary(encoding), [], 0, []
    for token in vocabulary.encode(_without_surrogates(text)):
        starts.append(at)
        pending.append(token)
        try:
            at += len(vocabulary.decode(pending))
        except ValueError:  # the tokens so far do not form complete characters
            continue
        pending = []
    return starts


def _without_surrogates(text: str) -> str:
    """The text with lone surrogates, which UTF-8 cannot encode, replaced by question marks."""
    return text.encode(errors="replace").decode()


_vocabularies: dict[str, Any] = {}
_loading = threading.Lock()
"""Held while a vocabulary is looked up, so that no two threads load the same 60 MB."""


def _vocabulary(encoding: str) -> Any:
    with _loading:
        if encoding not in _vocabularies:
            # Loads only the extension: the package's own __init__ unpacks every vocabulary a second time (60 MB and half a second).
            package = importlib.util.find_spec("bpe_openai")
            if package is None or not package.submodule_search_locations:
                raise ImportError("token counts need the package bpe-openai: pip install bpe-openai")
            finder = FileFinder(package.submodule_search_locations[0], (ExtensionFileLoader, EXTENSION_SUFFIXES))
            spec = finder.find_spec("bpe_openai._bindings")
            if spec is None or spec.loader is None:
                raise ImportError("bpe-openai is installed without its extension module; reinstall it")
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            _vocabularies[encoding] = module.tokenizer_for_encoding(encoding)
        return _vocabularies[encoding]


_stemmer = Stemmer.Stemmer("porter")
_stemming = threading.Lock()


@lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """The Porter stem of a lower-case word."""
    with _stemming:
        return str(_stemmer.stemWord(word))
