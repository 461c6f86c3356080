"""Runs whose answers were imported from a file of other authors: the content of their folder, and the values that were not recorded.

Such a folder has `imported` in its `run.json`. It holds no recall and no effort lines. Latencies and recalled tokens of the file, if any,
are in `recorded.jsonl` of each case. Every other cost is `NOT_RECORDED`, never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eval.files.run_folder import RECORDED, RUN, RunFolder
from eval.files.store import read_lines

NOT_RECORDED = "not recorded"
RECORDABLE = ("recalled_tokens", "recall_seconds")
THEIRS = "theirs_"
"""Beginning of the names of score files that hold the authors' own grades."""


def recorded(run_folder: Path, name: str) -> list[float]:
    """The values of a field of `RECORDABLE` that the imported file has, over all questions."""
    lines = (line for path in RunFolder(run_folder).written(RECORDED) for line in read_lines(path))
    return [float(line[name]) for line in lines if line.get(name) is not None]


def described(facts: Mapping[str, Any]) -> str:
    """One line about an imported file, for captions and pages: system, file, sha256, format, licence, joined questions."""
    parts = [f"by {facts['by']}" if facts.get("by") else "by an author who is not named"]
    parts += [f"{facts['file']} (sha256 {facts['sha256'][:12]}, format {facts['format']})"]
    parts += [f"licence {facts['licence'] or NOT_RECORDED}"]
    parts += [f"from {facts['source']}"] if facts.get("source") else []
    count = f"{facts['joined']} of {facts['answers']} answers joined"
    if mismatches := facts.get("mismatches"):
        count += f", {len(mismatches)} not: {'; '.join(mismatches[:2])}"
        count += f"; and {len(mismatches) - 2} more ({RUN})" if len(mismatches) > 2 else ""
    return "; ".join([*parts, count])
