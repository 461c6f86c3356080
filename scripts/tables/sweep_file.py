"""The CSV of a sweep: one line for each setting, data set and metric, kept in order whichever job wrote it."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from memsys.inert import csv_text, plain_cell

MEASURED = (
    "dataset",
    "metric",
    "category",
    "mean",
    "question_low",
    "question_high",
    "case_low",
    "case_high",
    "n",
    "questions",
    "errors",
    "unscored",
    "not_reached",
    "empty",
    "recalled_tokens",
    "build_calls",
    "engine",
    "prompts",
    "run",
    "protocol",
)
"""Columns of the CSV after those of the settings."""


@dataclass(frozen=True, slots=True)
class SweepLine:
    """One setting on one data set in one metric."""

    setting: Mapping[str, Any]
    values: Mapping[str, Any]
    """By the names of `MEASURED`."""
    missing_share: float
    """Share of the questions without a score."""


def merged(text: str, new_lines: Sequence[SweepLine]) -> str:
    """The CSV with new lines added or replaced, in order of their settings.

    Old lines of another protocol, or with other columns, are left out.

    Args:
        text: the CSV so far; empty for none.
        new_lines: at least one.
    """
    names = list(dict.fromkeys(name for line in new_lines for name in line.setting))
    header = [*names, *MEASURED]
    reader = csv.DictReader(io.StringIO(text))
    keys = [*names, "dataset", "metric", "category"]
    new = [
        {
            name: plain_cell(printed(value))
            for name, value in ({**dict.fromkeys(names), **line.setting, **line.values}).items()
        }
        for line in new_lines
    ]
    old = list(reader) if reader.fieldnames == header else []
    kept = [line for line in old if line["protocol"] == new[0]["protocol"]]
    lines = {tuple(line[key] for key in keys): line for line in [*kept, *new]}
    ordered = sorted(lines.items(), key=lambda entry: [_order(part) for part in entry[0]])
    return csv_text([header, *([line[name] for name in header] for _, line in ordered)])


def printed(value: Any) -> str:
    """A value as the CSV holds it: six significant digits, empty for None."""
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _order(text: str) -> tuple[int, float, str]:
    """Sort key: empty first, then numbers by size, then words."""
    try:
        return (1, float(text), "")
    except ValueError:
        return (2 if text else 0, 0.0, text)
