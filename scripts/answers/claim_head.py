"""The head of the claims (`memsys-bench claims --head`): eight rows, 80 columns wide, with what a reader of README should know of them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from eval.report.rendering import number
from memsys.inert import visible
from scripts.answers.claim_tables import Row, inert

NAMES = (
    "full-context-run-by-mirix-authors",
    "trpc-agent-go-long-context",
    "memorylake",
    "mem0-platform-top-200",
    "mem0-run-by-mirix-authors",
    "mem0-answers-with-human-failure-labels",
    "total-agent-memory-v11",
    "gpt-5-nano-evidence-judge-without-key",
)
"""Full context with long and with short answers; a memory; one name from three harnesses, once with people as judges; a mean that questions
without an answer raise; a score of 100 %."""
WIDTH = 80
COLUMNS = ("product · who published", "printed", "file", "judge", "F1", "words")
WIDTHS = (33, 7, 6, 5, 5, 5)
"""Characters of the columns; with rules and spaces they make a line of `WIDTH`."""


def head(rows: Sequence[Row]) -> str:
    """The table in the order of `NAMES`, and below it a line for each row with a remark; no line is wider than 80 characters."""
    by_name = {row.scored.claim.name: row for row in rows}
    own = [by_name[name] for name in NAMES if name in by_name]
    rule = [f"{'-' * (WIDTHS[0] + 2)}", *(f"{'-' * (width + 1)}:" for width in WIDTHS[1:])]
    lines = [_line(COLUMNS), f"|{'|'.join(rule)}|"]
    lines += [_line(_cells(row)) for row in own]
    for row in own:
        if remarks := _remarks(row):
            lines += ["", *_wrapped(remarks)] if lines[-1].startswith("|") else _wrapped(remarks)
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    numbers = (cell.rjust(width) for cell, width in zip(cells[1:], WIDTHS[1:], strict=True))
    return f"| {cells[0].ljust(WIDTHS[0])} | {' | '.join(numbers)} |"


def _label(row: Row) -> str:
    claim = row.scored.claim
    return " ".join(visible(f"{claim.product} · {claim.by}").split()).replace("|", "/")[: WIDTHS[0]]


def _cells(row: Row) -> list[str]:
    first, f1 = row.findings[0] if row.findings else None, row.measures["f1"]
    digits = first.printed.digits if first else 3
    file = first.file if first and first.file is not None else row.file_mean
    return [
        _label(row),
        "–" if first is None else f"{first.printed.score:.{digits}f}",
        number(file, digits),
        number(None if row.answerable is None else row.answerable.mean),
        number(None if f1 is None else f1.mean),
        f"{row.words:.0f}",
    ]


def _remarks(row: Row) -> str:
    """Statuses that are not `supported`, flags and the manifest's note."""
    told = [
        f"{each.printed.score:.{each.printed.digits}f} is {each.status}"
        if each.status == "not supported by this file"
        else f"{each.printed.score:.{each.printed.digits}f}: {each.status}"
        for each in row.findings
        if each.status != "supported"
    ]
    told += [*row.flags, *([row.scored.claim.note] if row.scored.claim.note else [])]
    return f"- {inert(_label(row))}: {inert('; '.join(told))}" if told else ""


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_long_words=True, break_on_hyphens=False)
