"""Parsers of verbs, number types for argparse with a range, and command names in the form in which the user called them."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from pathlib import Path


def verb_parser(verb: str, manual: str | None) -> argparse.ArgumentParser:
    """The parser of a verb, with the name by which it was called; its help shows the manual."""
    name, text = as_called(f"python -m scripts {verb}"), as_called(manual or "")
    return argparse.ArgumentParser(prog=name, description=text, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_data_folder(parser: argparse.ArgumentParser) -> None:
    """Add the option for the folder of the raw data."""
    text = "folder of the raw files (default: MEMSYS_DATA, else the download folder)"
    parser.add_argument("--data", type=Path, help=text)


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """An argparse type: a whole number from `least` to `most`."""
    span = f"a whole number of at least {least}" + ("" if most is None else f" and at most {most}")

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"must be {span}, found {text!r}")
        return value

    return read


def amount(least: float, most: float = math.inf) -> Callable[[str], float]:
    """An argparse type: a finite number from `least` to `most`."""
    span = f"a number of at least {least:g}" + ("" if math.isinf(most) else f" and at most {most:g}")

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be {span}, found {text!r}")
        return value

    return read


COMMAND = "memsys-bench"
called: set[str] = set()
"""Holds `COMMAND` in a process that this command started (`scripts.command`)."""


def as_called(text: str) -> str:
    """The text, with `python -m scripts fetch` replaced by `memsys-bench fetch` if the user has called `memsys-bench`."""
    if COMMAND not in called:
        return text
    text = re.sub(r"python -m scripts[. ]([a-z_-]+)", lambda match: f"memsys-bench {match[1].replace('_', '-')}", text)
    return text.replace("make doctor BASE_URL=… MODEL=…", "memsys-bench doctor --base-url … --model …")
