"""`memsys-bench load` as a user meets it: a service with many users, one that mixes them up, and one that is not there."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from eval.analysis import load as measuring
from eval.analysis.load import Level, LoadCounts, Plan
from eval.running.run import Run
from memsys.llm.protocol import EndOfRun
from scripts.commands.load import lines
from scripts.commands.mock_memory import Service
from scripts.mock.endpoint import serving
from scripts.mock.memory_store import Store
from scripts.setup.options import CONF
from tests.scripts.commands import load, typed
from tests.scripts.test_released_runs import TOY

pytestmark = pytest.mark.slow

FAST = ["write_rate=1000", "read_rate=1000", "writes=3", "reads=2", "patience=0"]


def of_load(results: Path, *settings: str, memory: dict[str, Any] | None = None) -> tuple[int, list[Mapping[str, str]]]:
    """The exit code, and the lines of the CSV."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("load", [f"results={results}", *FAST, *settings])
    code = load(cfg if memory is None else typed(cfg, "load").changed(memory=memory))
    rows: list[Mapping[str, str]] = []
    for path in (results / "load").glob("*.csv"):
        rows += csv.DictReader(path.open(encoding="utf-8"))
    return code, rows


def test_a_service_gets_what_is_counted_and_its_namespaces_are_deleted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service = Service(Store())
    with serving(service.application()) as url:
        named = ["memory=reference_http", f"memory.build.base_url={url}", "users=[1,4]"]
        code, rows = of_load(tmp_path, *named)
    asked = [line.rpartition("/")[2] for line in service.asked if line.startswith("POST")]
    assert code == 0
    assert [row["users"] for row in rows] == ["1", "4"]
    assert asked.count("memories") == sum(int(row["writes"]) for row in rows) == 5 * 3
    assert asked.count("search") == sum(int(row["reads"]) for row in rows) == 5 * (3 + 2)
    assert [(row["leaks"], row["recalled"], row["never_recalled"]) for row in rows] == [
        ("0", "3", "0"),
        ("0", "12", "0"),
    ]
    assert not any(service.store.spaces.values())
    said = capsys.readouterr().out
    assert "| 4 | 12 | 20 | 0 | 0 | 0 | 12 | 0 |" in said
    assert "LEAK" not in said


def test_a_level_that_ended_is_in_the_file_when_a_later_one_is_cut(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = measuring._level

    def cut(run: Run, plan: measuring.Plan, count: int, *more: Any) -> measuring.Level:
        if count == 3:
            raise EndOfRun("the spending cap was reached")
        return whole(run, plan, count, *more)

    monkeypatch.setattr(measuring, "_level", cut)
    code, rows = of_load(tmp_path, "memory=bm25", "users=[1,3]")
    assert (code, [row["users"] for row in rows]) == (2, ["1"])
    assert "nothing was kept of users=3" in capsys.readouterr().err


def test_a_service_that_mixes_users_up_is_named_and_fails_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(Service(Store("tenants leak")).application()) as url:
        code, rows = of_load(tmp_path, "memory=reference_http", f"memory.build.base_url={url}", "users=[1,3]")
    assert code == 1
    assert rows[0]["leaks"] == "0"
    assert int(rows[1]["leaks"]) > 0
    assert "- LEAK at 3 users: load-3-" in capsys.readouterr().out


def test_users_of_a_released_product_have_a_process_each(tmp_path: Path) -> None:
    code, (row,) = of_load(tmp_path, "users=[3]", memory=TOY)
    assert code == 0
    assert (row["writes"], row["reads"], row["recalled"], row["leaks"]) == ("9", "15", "9", "0")


@pytest.mark.integration
def test_users_of_an_mcp_server_have_a_process_each(tmp_path: Path) -> None:
    pytest.importorskip("mcp")
    code, (row,) = of_load(tmp_path, "memory=reference_mcp", "users=[3]")
    assert code == 0
    assert (row["writes"], row["reads"], row["recalled"], row["leaks"]) == ("9", "15", "9", "0")


def test_failed_operations_are_printed_and_fail_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    service = Service(Store(), key="not sent")
    with serving(service.application()) as url:
        code, rows = of_load(tmp_path, "memory=reference_http", f"memory.build.base_url={url}", "users=[2]")
    assert code == 1
    assert (rows[0]["write_errors"], rows[0]["recalled"], rows[0]["never_recalled"]) == ("6", "0", "0")
    assert "- 2 users: 6 × write: ModelError: http://127.0.0.1:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("replay=true", "load measures the memory itself, not the cache"),
        ("memory=gold_evidence", "is made of the answer key"),
        ("writes=9999", "no user has that many units to write"),
        ("users=[]", "users"),
        ("users=[0]", "users"),
        ("read_rate=0", "read_rate"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    setting: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert of_load(tmp_path, setting) == (2, [])
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert said in error


def test_percentiles_of_few_operations_and_lags_without_the_lost_values_are_named() -> None:
    plan = Plan((1, 2), writes=10, reads=0, write_rate=1.0, read_rate=1.0, patience=0.0, seconds=60.0)
    few, many = LoadCounts(lost=1), LoadCounts()
    few.seconds["lag"] += [float(number) for number in range(99)]
    many.seconds["write"] += [float(number) for number in range(100)]
    levels = [Level(users, tally, 1.0, 1, 0.0, 0) for users, tally in ((1, few), (2, many))]
    assert levels[0].percentile("lag", 99) == max(few.seconds["lag"])
    assert levels[1].percentile("write", 99) != max(many.seconds["write"])
    said = "\n".join(lines("BM25", plan, levels))
    assert "p95 of fewer than 20, is the slowest one: somewhere in lag." in said
    assert "never recalled have no lag" in said
    assert "slowest" not in "".join(lines("BM25", plan, levels[1:]))
