"""Escapes text from outside before it is shown: servers, products, data sets and received files may contain anything.

HTML, LaTeX and Markdown have escapes of their own (`eval.report`).
"""

from __future__ import annotations

import codecs
import csv
import io
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

_ACTIVE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""C0 except tab and newline, DEL, C1, other line ends, marks that change the direction of a text, lone surrogates."""
_FORMULA = tuple("=+-@\t\n＝＋－＠")
"""Characters that make a spreadsheet read a cell as a formula, or skip to one."""


def visible(text: str) -> str:
    """The text with control characters, marks of direction and lone surrogates escaped: they could change the text on a terminal."""
    return _ACTIVE.sub(lambda found: ascii(found[0])[1:-1], text)


def plain_cell(value: Any) -> Any:
    """A cell of a CSV file; a text that a spreadsheet would take for a formula gets a leading apostrophe. Numbers stay numbers.

    Carriage returns become line feeds: the module `csv` does not quote them, so the text after one would begin a new line.
    """
    if not isinstance(value, str):
        return value
    text = value.replace("\r\n", "\n").replace("\r", "\n")
    if not text.startswith(_FORMULA):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """Rows as CSV, each cell as `plain_cell` returns it. This function writes all tables for other programs."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([plain_cell(cell) for cell in row] for row in rows)
    return out.getvalue()


@dataclass(eq=False)
class Inert:
    """A text stream that passes everything through `visible`; the underlying stream is `terminal`."""

    terminal: Any

    def write(self, text: str) -> int:
        """Write the text with its active characters escaped; return the number of characters given."""
        self.terminal.write(visible(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write each line."""
        for line in lines:
            self.write(line)

    def close(self) -> None:
        """Flush alone: code of a memory must not end what the command prints."""
        self.terminal.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.terminal, name)


def terminal_of(stream: Any) -> Any:
    """The stream below an `Inert` stream, for code that prints its own escape sequences and has cleaned its texts."""
    return stream.terminal if isinstance(stream, Inert) else stream


@contextmanager
def inert_output() -> Iterator[None]:
    """Make standard output and error `Inert` in the block, so that no printed text can act on a terminal.

    After an exception they stay inert, because Python prints the traceback once the block has been left.
    """
    before = sys.stdout, sys.stderr
    terminals = [terminal_of(stream) for stream in before]
    for terminal in terminals:
        if hasattr(terminal, "reconfigure") and codecs.lookup(terminal.encoding).name != "utf-8":
            terminal.reconfigure(errors="backslashreplace")  # for characters that its encoding lacks
    sys.stdout, sys.stderr = map(Inert, terminals)
    yield
    sys.stdout, sys.stderr = before
