"""Print a table in the form that is asked for; by default what fits on a screen."""

from __future__ import annotations

import shutil
import sys

from eval.report.rendering import markdown
from eval.report.tables import Table

LEAST, MOST, PIPED = 80, 160, 100
"""Columns: what a narrow table needs, the widest that it spreads, and its width where no terminal says one."""
SPREAD = 1000
"""Columns of a wide table, which is never cut: a terminal scrolls or wraps."""
PAGE = 25
"""Lines. Nothing is paged, but without a height Rich takes no width where TERM is `dumb`."""


def print_table(table: Table, choice: str | None) -> None:
    """Print a table on standard output; a pipe gets the same text as a terminal, 100 columns wide.

    Args:
        choice: `paper` (rows and columns that the paper prints), `narrow` (every row and metric), `wide` or `plain` (the whole Markdown);
            None is `paper` where there are published numbers, else `narrow`.
    """
    if choice == "plain":
        print(markdown(table))
        return
    from rich.console import Console

    from eval.report.paper_grid import paper_grid, printed_places
    from eval.report.terminal import terminal

    width = max(LEAST, min(MOST, shutil.get_terminal_size().columns)) if sys.stdout.isatty() else PIPED
    wide = choice == "wide"
    console = Console(file=sys.stdout, width=SPREAD if wide else width, height=PAGE, highlight=False, soft_wrap=wide)
    if choice in (None, "paper") and printed_places(table):
        console.print(paper_grid(table, width, "Everything, with differences and costs: print=narrow."))
    else:
        console.print(terminal(table, width, wide=wide))
