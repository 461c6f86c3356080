"""What a command that writes a table or a figure returns: its exit code and the file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Outcome:
    """Exit code of a command, and the main file it wrote."""

    code: int
    """0 done, 1 too much is not scored, 3 nobody agreed to the cost."""
    file: Path | None = None
    """None when nothing was written."""
