"""Names cut to a width of the terminal, still different from each other."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

DOTS = "…"


def shortened(names: Sequence[str], width: int) -> list[str]:
    """The names, none wider than `width` cells; names that differ stay different.

    A long name is cut at its end. Names that would then be equal are cut in their middle, and where that is not enough they are numbered.

    Args:
        width: at least 8.
    """
    results = list(names)
    for cut in (_end, _middle):
        for name in _alike(names, results) if cut is _middle else names:
            results = [cut(name, width) if each == name else short for each, short in zip(names, results, strict=True)]
    for name in _alike(names, results):
        mark = f"{DOTS}{list(dict.fromkeys(names)).index(name) + 1}"
        short = _head(name, width - cell_len(mark)) + mark
        results = [short if each == name else old for each, old in zip(names, results, strict=True)]
    return results


def fitting(text: str, width: int) -> str:
    """The text, cut at its end to `width` cells."""
    return _end(text, width)


def _alike(names: Sequence[str], results: Sequence[str]) -> list[str]:
    """Names that share their short form with another name."""
    owners: dict[str, set[str]] = {}
    for name, short in zip(names, results, strict=True):
        owners.setdefault(short, set()).add(name)
    return [name for name in dict.fromkeys(names) if len(owners[results[names.index(name)]]) > 1]


def _end(name: str, width: int) -> str:
    return name if cell_len(name) <= width else _head(name, width - 1) + DOTS


def _middle(name: str, width: int) -> str:
    if cell_len(name) <= width:
        return name
    tail = _head(name[::-1], (width - 1) // 2)[::-1]
    return _head(name, width - 1 - cell_len(tail)) + DOTS + tail


def _head(name: str, width: int) -> str:
    while cell_len(name) > width:
        name = name[:-1]
    return name
