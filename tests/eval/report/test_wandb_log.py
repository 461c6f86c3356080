"""W&B: nothing unless asked for, offline unless asked for, and in a run folder what a reader would look for."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from eval.files.store import RunError
from eval.report import wandb_log
from eval.report.cell import Column
from eval.report.figures import draw, save
from eval.report.panels import Sheet
from eval.report.points import Point
from eval.report.tables import Measure, Row, Table
from eval.report.wandb_log import log_files, log_table, means
from eval.statistics.stats import Estimate
from memsys.inert import csv_text
from memsys.llm import secrets

pytestmark = pytest.mark.slow

COLUMN = Column("locomo", "LoCoMo", "tokens", ())
TABLE = Table(
    "toy",
    "Toy",
    (),
    (COLUMN, COLUMN),
    (Row("bm25", "BM25", (Measure(Estimate(12.5, 3, None, None, 0)), "pending")),),
)


def config(tmp_path: Path, **logger: Any) -> dict[str, Any]:
    chosen = {"name": "wandb", "project": "toy", "entity": None, "mode": "offline"} | logger
    return {"results": str(tmp_path), "network": False, "endpoint": {"key_env": "OPENAI_API_KEY"}, "logger": chosen}


@pytest.fixture
def doorbell(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Where W&B would call, a server on this machine that notes whoever comes, whatever process they are."""
    visits: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def listen() -> None:
            while True:
                try:
                    caller, _ = server.accept()
                except OSError:
                    return
                visits.append("called")
                caller.close()

        threading.Thread(target=listen, daemon=True).start()
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("WANDB_API_KEY", "0123456789" * 4)
        yield visits
        server.shutdown(socket.SHUT_RDWR)


def written(tmp_path: Path) -> list[Path]:
    return sorted(path for path in (tmp_path / "wandb").rglob("*") if path.is_file())


def test_the_configuration_is_handed_to_wandb_without_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets.register("key-of-the-gateway-9", "GATEWAY")
    handed: dict[str, Any] = {}

    class Wandb:
        Settings = dict

        @staticmethod
        def init(**arguments: Any) -> Any:
            handed.update(arguments)
            raise RunError("enough is seen")

    monkeypatch.setitem(sys.modules, "wandb", Wandb)
    own = {**config(tmp_path), "endpoint": {"label": "at key-of-the-gateway-9", "headers": ["key-of-the-gateway-9"]}}
    with pytest.raises(RunError, match="enough"):
        log_table(own, TABLE)
    assert handed["config"]["endpoint"] == {"label": "at <GATEWAY>", "headers": ["<GATEWAY>"]}


def test_nothing_is_logged_without_the_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # an import would fail
    log_table(config(tmp_path, name="none"), TABLE)
    log_files(config(tmp_path, name="otel"), "sweep", "sweep", [])
    with pytest.raises(RunError, match="needs wandb"):
        log_table(config(tmp_path), TABLE)


@pytest.mark.integration
def test_an_offline_run_holds_numbers_table_and_figure_and_calls_nobody(tmp_path: Path, doorbell: list[str]) -> None:
    files = save(draw(Sheet("Title", (), "lines"), [Point("p", "s", 1.0, 2.0)]), tmp_path / "figure", "about")
    points = tmp_path / "figure.csv"
    points.write_text("x,y\n1,2\n", encoding="utf-8")
    log_table(config(tmp_path), TABLE)
    log_files(config(tmp_path), "sweep", "sweep", [points])
    log_files(config(tmp_path), "figure", "figure", [*files, points])
    import wandb

    wandb.teardown()  # its service has now written all
    found = written(tmp_path)
    assert len([path for path in found if path.suffix == ".wandb"]) == 3
    tables = [path.name for path in found if path.name.endswith(".table.json")]
    assert [len([name for name in tables if name.startswith(one)]) for one in ("toy_", "sweep_", "figure_points_")] == [
        1,
        1,
        1,
    ]
    assert [path.parent.name for path in found if path.suffix == ".png"] == ["images"]
    records = [path.read_bytes() for path in found if path.suffix == ".wandb"]
    assert [b"bm25/locomo/tokens" in record for record in records].count(True) == 1
    assert all(b"OPENAI_API_KEY" in record for record in records)  # the name of the variable
    assert not any(b"0123456789" * 4 in path.read_bytes() for path in found)
    assert doorbell == []


def test_a_title_with_other_line_ends_stays_one_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = SimpleNamespace(Table=lambda columns, data: (columns, data), log=lambda value: logged.update(value))
    logged: dict[str, object] = {}
    monkeypatch.setitem(sys.modules, "wandb", kept)
    wandb_log._log_csv(kept, "table", csv_text([["memory", "score"], ["a\u2028b\nc\x85d", 0.5]]))
    assert logged == {"table": (["memory", "score"], [["a\u2028b\nc\x85d", "0.5"]])}


def test_only_cells_with_a_number_are_summed_up() -> None:
    assert means(TABLE) == {"bm25/locomo/tokens": 12.5}


@pytest.mark.parametrize(
    ("logger", "said"),
    [
        ({"mode": "shared"}, "must be one of offline, online"),
        ({"mode": "online"}, "needs a profile with a network"),
    ],
)
def test_what_cannot_be_logged_is_refused_before_anything_is_written(
    logger: dict[str, str], said: str, tmp_path: Path
) -> None:
    with pytest.raises(RunError, match=said):
        log_table(config(tmp_path, **logger), TABLE)
    assert list(tmp_path.iterdir()) == []
