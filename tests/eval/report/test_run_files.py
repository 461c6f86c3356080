"""The files of a run as the report reads them: the growth of a memory's costs, unit by unit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from small_history import history

from eval.files.run_folder import RunRecord
from eval.files.store import read_lines, write_lines
from eval.report.html import run_files
from eval.report.html.run_files import POINTS, _curve, _read_run
from eval.report.html.sources import ReportedRun
from eval.running.loop import run_all
from eval.running.run import Run

Make = Callable[..., Run]


def effort(phase: str, tokens: int) -> dict[str, Any]:
    seconds = {"own_cpu_seconds": tokens / 4, "provider_seconds": tokens / 4}
    return {"phase": phase, "tokens_in": tokens, "tokens_out": 1, "calls": {"a": 1, "b": 2}, **seconds}


def test_a_curve_adds_what_building_cost_up_to_each_unit_and_the_last_consolidation() -> None:
    phases = [("embed", 90), ("write", 10), ("consolidate", 4), ("write", 20), ("read", 90), ("consolidate", 2)]
    # The second unit has what was consolidated before it; embedding in advance is part of the writes, and reading is no building.
    assert _curve([effort(*each) for each in phases]) == [[1, 11, 3, 5.0], [2, 40, 12, 18.0]]
    assert _curve([effort("read", 1)]) == []


def test_a_long_curve_keeps_every_so_many_points_and_its_last() -> None:
    units = [round(point[0]) for point in _curve([effort("write", 1)] * (2 * POINTS + 1))]
    assert units == [*range(1, 2 * POINTS, 3), 2 * POINTS + 1]


def test_the_longest_histories_are_drawn_first_and_equal_ones_in_the_order_of_the_data(
    make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run([history(name) for name in ("c", "a", "d", "b")])
    run_all([run])
    path = run.case_folder("d") / "effort.jsonl"
    write = next(line for line in read_lines(path) if line["phase"] == "write")
    write_lines(path, [*read_lines(path), write])
    monkeypatch.setattr(run_files, "GROWN", 3)
    reported = ReportedRun("locomo/run", run.folder, RunRecord(), "Run")
    assert [curve["case"] for curve in _read_run(reported, ["c", "a", "d", "b"]).growth] == ["d", "c", "a"]
    assert [curve["case"] for curve in _read_run(reported, []).growth] == ["d", "a", "b"]
