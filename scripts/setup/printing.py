"""Print a table in the requested form; by default in a form that fits on a screen."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from eval.report.rendering import markdown
from eval.report.tables import Table, correction_lines
from memsys.inert import terminal_of, visible

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console
    from rich.segment import Segment

LEAST, MOST, PIPED = 80, 160, 100
"""Widths in columns: minimum and maximum of a narrow table, and its width without a terminal."""
SPREAD = 1000
"""Width of a wide table in columns; it is never cut: a terminal scrolls or wraps."""
PAGE = 25
"""Height in lines. Nothing is paged, but without a height Rich ignores the width if TERM is `dumb`."""


def agrees(question: str) -> bool:
    """Whether the user at the terminal answers yes; the end of the input (Ctrl-D) is a no."""
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False


def columns() -> int:
    """Width of a narrow table: that of the terminal or of the variable COLUMNS, within limits; without both, `PIPED`."""
    return max(LEAST, min(MOST, shutil.get_terminal_size((PIPED, PAGE)).columns))


def print_table(table: Table, choice: str | None) -> None:
    """Print a table on standard output; a pipe gets the same text as a terminal, 100 columns wide without the variable COLUMNS.

    Args:
        choice: `paper` (the paper's rows and columns), `narrow` (every row and metric), `wide` or `plain` (the whole Markdown);
            None is `paper` if there are published numbers, else `narrow`.
    """
    if choice == "plain":
        print(markdown(table))
        return
    from eval.report.terminal import paper_grid, printed_places, terminal

    width, wide = columns(), choice == "wide"
    drawn = console(sys.stdout, width=SPREAD if wide else width, height=PAGE, highlight=False, soft_wrap=wide)
    if choice in (None, "paper") and printed_places(table):
        more = "corrected scores, " if correction_lines(table) else ""
        drawn.print(paper_grid(table, width, f"Everything, with {more}differences and costs: print=narrow."))
    else:
        drawn.print(terminal(table, width, wide=wide))


def console(stream: TextIO, **options: Any) -> Console:
    """A console of Rich with `visible` texts: only its own colours and movements reach the terminal as escape sequences."""
    from rich.console import Console
    from rich.segment import Segment

    class Inert(Console):
        def on_broken_pipe(self) -> NoReturn:  # Rich would end the process with exit code 1
            raise BrokenPipeError

        def _render_buffer(self, buffer: Iterable[Segment]) -> str:
            return super()._render_buffer(
                part if part.control else Segment(visible(part.text), part.style) for part in buffer
            )

    return Inert(file=terminal_of(stream), **options)


def duration(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def cut(text: str, width: int) -> str:
    """The text on one line, at most `width` characters long."""
    plain = " ".join(text.split())
    return plain if len(plain) <= width else plain[: width - 1] + "…"
