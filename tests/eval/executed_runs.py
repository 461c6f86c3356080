"""Histories and run folders for tests of executors."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from small_history import history

from data_loaders.schema import Case
from eval.files.store import read_lines
from eval.running.run import Run

CPU = ("own_cpu_seconds", "provider_seconds", "provider_seconds_sum")


def named_history(case_id: str) -> Case:
    """A history whose first turn says its id, so that a memory can tell it from others."""
    case = history(case_id)
    first = case.sessions[0]
    turns = (replace(first.turns[0], text=f"This is {case_id}."), *first.turns[1:])
    return replace(case, sessions=(replace(first, turns=turns), *case.sessions[1:]))


CASES = [named_history(f"case-{number}") for number in range(5)]


def contents(run: Run) -> dict[str, Any]:
    """Every file of a run folder; of costs all but the measured seconds."""
    files: dict[str, Any] = {}
    for path in sorted(path for path in run.folder.rglob("*") if path.is_file()):
        name = str(path.relative_to(run.folder))
        if path.name == "effort.jsonl":
            lines = [{key: line[key] for key in line if key not in CPU} for line in read_lines(path)]
            files[name] = sorted(json.dumps(line, sort_keys=True) for line in lines)
        else:
            files[name] = path.read_bytes()
    return files
