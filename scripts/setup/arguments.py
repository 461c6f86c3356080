"""Parsers of verbs, number types for argparse with a range, and command names in the form in which the user called them."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

Number = TypeVar("Number", int, float)


class _Parser(argparse.ArgumentParser):
    def print_help(self, file: Any = None) -> None:
        """Print it like all other output: argparse's own method ignores that its reader has gone."""
        print(self.format_help(), end="", file=file)


def verb_parser(verb: str, manual: str | None) -> argparse.ArgumentParser:
    """The parser of a verb, with the name by which it was called; its help shows the manual."""
    name, text = as_called(f"python -m scripts {verb}"), as_called(manual or "")
    return _Parser(prog=name, description=text, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_data_folder(parser: argparse.ArgumentParser) -> None:
    text = "folder of the raw files (default: MEMSYS_DATA, else the download folder)"
    parser.add_argument("--data", type=Path, help=text)


def whole(least: int, most: float = math.inf) -> Callable[[str], int]:
    """An argparse type: a whole number from `least` to `most`."""
    return _number("a whole number", int, least, most)


def amount(least: float, most: float = math.inf) -> Callable[[str], float]:
    """An argparse type: a finite number from `least` to `most`."""
    return _number("a number", float, least, most)


def _number(what: str, read: Callable[[str], Number], least: float, most: float) -> Callable[[str], Number]:
    span = f"{what} of at least {least:g}" + ("" if math.isinf(most) else f" and at most {most:g}")

    def checked(text: str) -> Number:
        try:
            value = read(text)
        except ValueError:
            value = None
        if value is None or value == math.inf or not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be {span}, found {text!r}")
        return value

    return checked


COMMAND = "memsys-bench"
called: set[str] = set()
"""Holds `COMMAND` in a process that this command started (`scripts.command`)."""


def as_called(text: str) -> str:
    """The text, with `python -m scripts fetch` replaced by `memsys-bench fetch` if the user has called `memsys-bench`."""
    if COMMAND not in called:
        return text
    text = re.sub(r"python -m scripts[. ]([a-z_-]+)", lambda match: f"memsys-bench {match[1].replace('_', '-')}", text)
    return text.replace("make doctor BASE_URL=… MODEL=…", "memsys-bench doctor --base-url … --model …")
