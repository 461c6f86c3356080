"""Live numbers in W&B: what is in flight, written, spent and failed reaches the log while the command still works."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eval.running.run import Progress
from scripts.setup import live_log, progress
from scripts.setup.launch import composed
from scripts.setup.live_log import PAUSE, LiveLog
from scripts.setup.progress import Expected, ProgressLine
from scripts.tables.table import make_table
from tests.scripts.commands import run_single
from tests.scripts.test_progress import Clock, Traffic


def line(label: str = "answering") -> ProgressLine:
    """A phase with a history of 8 units, 3 of them written, two questions done, one of these failed."""
    phase = ProgressLine(label, 5, traffic=lambda: [TRAFFIC], clock=Clock(), expected=[Expected("mine", "a", 8.0, 5.0)])
    for outcome, units in (("begun", 8), *[("written", 0)] * 3):
        phase.on_progress(Progress("mine", "a", "", outcome, units=units))
    for outcome in ("answered", "error"):
        phase.on_progress(Progress("mine", "a", f"q {outcome}", outcome))
    return phase


TRAFFIC = Traffic(in_flight=4, tokens_in=0, dollars=0.25)


def test_an_entry_has_units_calls_in_flight_dollars_and_failures_of_each_phase(tmp_path: Path) -> None:
    entries: list[dict[str, float]] = []
    LiveLog(entries.append, tmp_path, Clock()).follow(line().state(), last=False)
    shown = {name.removeprefix("live/answering/"): value for name, value in entries[0].items()}
    assert (shown["written"], shown["units"], shown["done"], shown["total"], shown["errors"]) == (3, 8, 2, 5, 1)
    assert (shown["in_flight"], shown["dollars"]) == (4, 0.25)


def test_an_entry_comes_every_fifteen_seconds_and_at_the_end_of_a_phase(tmp_path: Path) -> None:
    entries: list[dict[str, float]] = []
    clock, state = Clock(), line().state()
    log = LiveLog(entries.append, tmp_path, clock)
    for now, last, expected in ((0.0, False, 1), (PAUSE - 1, False, 1), (PAUSE, False, 2), (PAUSE + 1, True, 3)):
        clock.now = now
        log.follow(state, last)
        assert len(entries) == expected


def test_runs_of_earlier_commands_are_left_out_and_those_of_this_one_counted_as_they_grow(tmp_path: Path) -> None:
    clock, entries, runs = Clock(), list[dict[str, float]](), tmp_path / "runs" / "toy"
    log = LiveLog(entries.append, tmp_path, clock)
    log._began = 0.0
    (runs / "mine-01" / "cases" / "c").mkdir(parents=True)
    (runs / "mine-01" / "run.json").write_text(json.dumps({"name": "mine", "cases": 1}))
    answers = runs / "mine-01" / "cases" / "c" / "predictions.jsonl"
    for number, outcome in enumerate(("answered", "error", "answered")):
        with answers.open("a") as handle:
            handle.write(json.dumps({"question_id": f"q{number}", "outcome": outcome}) + "\n")
        log.follow(line().state(), last=True)
    name = "live/runs/toy/mine-01/"
    assert [(entry[f"{name}answered"], entry[f"{name}errors"]) for entry in entries] == [(1, 0), (1, 1), (2, 1)]
    log._began = 1e12
    assert not [key for key in log.entry() if key.startswith(name)]


def test_a_logger_that_fails_is_noted_once_and_does_not_end_the_command(tmp_path: Path, capsys: Any) -> None:
    def full(entry: dict[str, float]) -> None:
        raise OSError("no space left")

    log = LiveLog(full, tmp_path, Clock())
    log.follow(line().state(), last=True)
    log.follow(line().state(), last=True)
    assert capsys.readouterr().err == "note: W&B gets no more live numbers: no space left\n"


@pytest.mark.slow
def test_without_the_logger_wandb_is_not_imported_and_nothing_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    cut = ["profile=smoke", "data.size=2", f"results={tmp_path}"]
    assert run_single(composed("config", [*cut, "memory=bm25"])) == 0
    column = "table.columns=[{dataset: locomo, reader: segtree, metrics: [{metric: locomo_f1}]}]"
    assert make_table(composed("reproduce", [*cut, "table=segtreemem_t4", "only=[bm25]", column])).file is not None
    assert not (tmp_path / "wandb").exists()


@pytest.mark.integration
def test_an_offline_run_of_wandb_holds_the_numbers_in_the_order_in_which_they_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    wandb = pytest.importorskip("wandb", reason="W&B is not installed: pip install 'memsys-bench[wandb]'")
    monkeypatch.setattr(live_log, "PAUSE", 0.0)
    monkeypatch.setattr(progress, "TERMINAL_PAUSE", 0.02)
    settings = ["profile=smoke", "memory=segtree_td", "data.size=8", f"results={tmp_path}", "logger=wandb"]
    assert run_single(composed("config", settings)) == 0
    assert progress.FOLLOWERS == []
    wandb.teardown()  # its service has now written all
    (file,) = (tmp_path / "wandb").rglob("*.wandb")  # one run: live numbers and the final ones
    assert f"W&B: {file.parent}" in capsys.readouterr().out
    entries = history(file)
    units = [entry["live/answering/written"] for entry in entries if "live/answering/written" in entry]
    assert units == sorted(units)
    assert units[-1] > 8
    assert entries[-1]["live/answering/done"] == 8
    assert any(name.startswith("live/judging") for name in entries[-1])
    answered = [value for name, value in entries[-1].items() if name.endswith("/answered")]
    assert answered == [8]


def history(file: Path) -> list[dict[str, Any]]:
    """The entries of a run's file, in their order, those without live numbers left out."""
    from wandb.proto import wandb_internal_pb2

    entries = []
    for data in records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        items = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        entries.append({name: value for name, value in items.items() if name.startswith("live/")})
    return [entry for entry in entries if entry]


def records(content: bytes) -> Iterator[bytes]:
    """The records of a file in LevelDB's log format: blocks of 32 KiB, of pieces with checksum, length and kind."""
    whole, at = b"", 7  # W&B's own header
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        length, kind = struct.unpack_from("<HB", content, at + 4)
        whole += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or its last piece
            yield whole
            whole = b""
