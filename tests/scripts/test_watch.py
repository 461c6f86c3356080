"""`watch`: the numbers of a run from its files, while lines are appended, cut and replaced."""

from __future__ import annotations

import io
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from eval.analysis.costs import BATCH_EMBEDDED, DISCOUNT, NEEDED, ROLES, dollars, phases
from eval.analysis.watching import Seen, Watcher
from eval.files.run_folder import RunRecord
from eval.files.store import locked
from eval.report.tables import Row, Table
from eval.report.wandb_log import progress_of
from memsys.llm.pricing import ModelSettings
from scripts.command import verb
from scripts.commands import watch
from scripts.commands.watch import HEADER, PriceList, row, state_of
from scripts.lab.lab import Lab
from scripts.setup.launch import composed
from tests.scripts.commands import run_single

EFFORT = {
    **dict.fromkeys(NEEDED, 0),
    **{"case_id": "c", "subject": "q", "phase": "answer", "failures": {"answer": 1}, "parse_failures": {}},
    **{
        "tokens_in": 1_000_000,
        "tokens_out": 500_000,
        "tokens_cached": 0,
        "roles": {},
        "calls": {"answer": 3},
        "notes": {},
    },
}
MODEL = {"model": "my-model", "endpoint": "https://example.org/v1"}


def answer(question: str, outcome: str = "answered") -> str:
    return json.dumps({"case_id": "c", "question_id": question, "outcome": outcome}) + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of two cases, one of them begun."""
    run = tmp_path / "runs" / "toy" / "mine-0123"
    (run / "cases" / "c").mkdir(parents=True)
    (run / "run.json").write_text(json.dumps({"name": "mine", "cases": 2, "models": {"reader": MODEL}}))
    (run / "cases" / "c" / "predictions.jsonl").write_text(answer("q1") + answer("q2", "error"))
    (run / "cases" / "c" / "effort.jsonl").write_text(json.dumps(EFFORT) + "\n")
    return run


def look(watcher: Watcher, folder: Path) -> Any:
    seen = watcher.run(folder)
    assert seen is not None
    return seen


def test_appended_lines_count_at_the_next_look_and_half_a_line_only_when_it_is_whole(folder: Path) -> None:
    watcher, file = Watcher(), folder / "cases" / "c" / "predictions.jsonl"
    first = look(watcher, folder)
    assert (first.cases, first.answered, first.errors, first.tokens, first.failed_calls) == (0, 1, 1, 1_500_000, 1)
    line = answer("q3")
    with file.open("a") as handle:
        handle.write(line[:20])
    assert look(watcher, folder).answered == 1
    with file.open("a") as handle:
        handle.write(line[20:])
    (folder / "cases" / "c" / "case.json").write_text("{}")
    again = look(watcher, folder)
    assert (again.cases, again.answered, again.damaged) == (1, 2, 0)


def test_a_question_that_failed_and_was_asked_again_counts_once(folder: Path) -> None:
    watcher, file = Watcher(), folder / "cases" / "c" / "predictions.jsonl"
    look(watcher, folder)
    with file.open("a") as handle:
        handle.write(answer("q2"))
    seen = look(watcher, folder)
    assert (seen.answered, seen.errors) == (2, 0)


def test_a_file_that_a_new_start_replaced_is_read_anew(folder: Path) -> None:
    watcher, file = Watcher(), folder / "cases" / "c" / "predictions.jsonl"
    look(watcher, folder)
    draft = file.with_suffix(".draft")
    draft.write_text(answer("q1") + answer("q8") + answer("q9"))
    os.replace(draft, file)
    seen = look(watcher, folder)
    assert (seen.answered, seen.errors) == (3, 0)


def test_a_damaged_line_is_counted_and_shown(folder: Path) -> None:
    with (folder / "cases" / "c" / "predictions.jsonl").open("a") as handle:
        handle.write("no json\n" + answer("q3") + '[1]\n{"question_id": "q4", "outcome": ["answered"]}\n')
    with (folder / "cases" / "c" / "effort.jsonl").open("a") as handle:
        handle.write('{"phase": "write", "roles": null}\n{"phase": "write", "roles": {"probe": 5}}\n')
        handle.write(json.dumps({name: value for name, value in EFFORT.items() if name != "held"}) + "\n")
    seen = look(Watcher(), folder)
    assert (seen.answered, seen.damaged, seen.tokens) == (2, 6, 1_500_000)
    assert "1 (6 damaged lines)" in row(seen, PriceList(None), 0.0)


def test_dollars_are_known_for_priced_models_unknown_for_others_and_none_for_engines(
    folder: Path, tmp_path: Path
) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("my-model: {in: 2.0, out: 4.0}\n")
    seen = look(Watcher(), folder)
    assert PriceList(str(prices)).dollars(seen) == [4.0]
    assert row(seen, PriceList(str(prices)), 0.0)[7] == "4.0000"
    assert row(seen, PriceList(None), 0.0)[7] == "unknown"
    (folder / "run.json").write_text(json.dumps({"name": "mine", "models": {"reader": {"engine": "extractive"}}}))
    assert row(look(Watcher(), folder), PriceList(None), 0.0)[7] == "–"


def test_what_came_in_batches_costs_half_as_in_the_tables_or_the_share_of_the_run(folder: Path, tmp_path: Path) -> None:
    prices = tmp_path / "prices.yaml"
    prices.write_text("my-model: {in: 2.0, out: 4.0}\n")
    notes = {"batch": 1, BATCH_EMBEDDED: 0}  # one of the two calls that did not fail
    line = {**EFFORT, "notes": notes}
    (folder / "cases" / "c" / "effort.jsonl").write_text(json.dumps(line) + "\n")
    (cost,) = phases(folder)
    price = ModelSettings("my-model", usd_per_million_in=2.0, usd_per_million_out=4.0).cost
    expected = dollars(cost, {"reader": price})
    assert PriceList(str(prices)).dollars(look(Watcher(), folder)) == expected == [4.0, -1.0]
    record = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**record, "made_with": {DISCOUNT: 0.25}}))
    (cost,) = phases(folder)
    assert PriceList(str(prices)).dollars(look(Watcher(), folder)) == dollars(cost, {"reader": price}) == [4.0, -1.5]


def test_a_run_with_another_discount_than_the_usual_one_records_it(tmp_path: Path) -> None:
    usual, other = (
        lab.run(lab.memory("bm25"), lab.load("locomo"))
        for lab in (Lab(f"results={tmp_path}", *own) for own in ((), ("endpoint.batch.discount=0.25",)))
    )
    assert DISCOUNT not in usual.record.made_with
    assert other.record.made_with[DISCOUNT] == 0.25
    assert other.folder == usual.folder


def test_a_run_is_running_while_a_process_holds_it(folder: Path) -> None:
    seen = look(Watcher(), folder)
    with locked(folder):
        assert state_of(seen) == "running"
    assert state_of(seen) == "stopped"


def test_old_runs_are_left_out_unless_all_are_asked_for(folder: Path, tmp_path: Path, capsys: Any) -> None:
    assert verb("watch", [str(tmp_path), "--once"]) == 0
    assert "toy/mine-0123  stopped    0/2         1       1" in capsys.readouterr().out
    old = time.time() - 7200
    for path in folder.rglob("*"):
        os.utime(path, (old, old))
    assert verb("watch", [str(tmp_path), "--once"]) == 0
    assert "mine" not in capsys.readouterr().out
    assert verb("watch", [str(tmp_path), "--once", "--all"]) == 0
    assert re.search(r"mine-0123 .* 2:00:0\d ago", capsys.readouterr().out)


def test_a_folder_without_runs_is_one_line(tmp_path: Path, capsys: Any) -> None:
    assert verb("watch", [str(tmp_path), "--once"]) == 2
    assert "holds no runs" in capsys.readouterr().err


@pytest.mark.slow
def test_it_counts_what_the_tables_count(tmp_path: Path, capsys: Any) -> None:
    cfg = composed("config", ["profile=smoke", "memory=segtree_td", "data.size=8", f"results={tmp_path}"])
    assert run_single(cfg) == 0
    (folder,) = (tmp_path / "runs" / "locomo").iterdir()
    seen, sums = look(Watcher(), folder), phases(folder)
    assert seen.tokens == sum(cost.tokens_in + cost.tokens_out + cost.embedding_tokens for cost in sums)
    paid = [[(cost.phase, *cost.by_role.items()) for cost in own if cost.phase in ROLES] for own in (seen.costs, sums)]
    assert paid[0] == paid[1]
    assert (seen.cases, seen.answered, seen.errors, seen.judged) == (seen.record.cases, 8, 0, 8)
    capsys.readouterr()
    assert verb("watch", [str(tmp_path), "--once"]) == 0
    assert f"{seen.tokens:,}" in capsys.readouterr().out


def test_wandb_gets_the_same_counts(folder: Path) -> None:
    seen = look(Watcher(), folder)
    table = Table("t", "T", (), (), (Row("mine", "Mine", (), {"toy": folder, "gone": folder.parent / "gone"}),))
    numbers = progress_of(table)
    assert numbers["runs/mine/toy/tokens"] == seen.tokens == 1_500_000
    assert (numbers["runs/mine/toy/answered"], numbers["runs/mine/toy/errors"]) == (1, 1)
    assert not [name for name in numbers if "gone" in name]


def test_the_tokens_of_the_probe_are_its_own_and_count_once(folder: Path) -> None:
    probe = {"calls": 1, "tokens_in": 400_000, "tokens_out": 0, "tokens_cached": 0}
    line = {**EFFORT, "phase": "read", "roles": {"probe": probe}}
    (folder / "cases" / "c" / "effort.jsonl").write_text(json.dumps(line) + "\n")
    seen = look(Watcher(), folder)
    (cost,) = seen.costs
    assert {role: usage.tokens_in for role, usage in cost.by_role.items()} == {"memory": 600_000, "probe": 400_000}
    assert seen.tokens == 1_500_000


def test_running_rows_stand_on_top_and_heads_are_whole_at_80_columns(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(watch, "held", lambda folder: folder.name == "slow-0123456789ab")
    runs = [
        Seen(tmp_path / "locomo" / name, RunRecord(cases=10), 1, 20, 0, 3, (), 0, 0, last)
        for name, last in (("done-0123456789ab", 90.0), ("slow-0123456789ab", 10.0), ("older-0123456789ab", 50.0))
    ]
    shown = watch.recent(runs, 100.0, all_runs=False)
    assert [seen.folder.name.partition("-")[0] for seen in shown] == ["slow", "done", "older"]
    console = Console(file=io.StringIO(), width=80, color_system=None)
    console.print(watch.drawing(shown, PriceList(None), 100.0))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.splitlines()[0].split() == list(HEADER)


@pytest.mark.parametrize("width", [40, 60])
def test_a_narrow_terminal_shows_the_beginning_of_a_name(tmp_path: Path, width: int) -> None:
    seen = Seen(tmp_path / "locomo" / "segtree-0123456789ab", RunRecord(cases=10), 1, 20, 0, 3, (), 0, 0, 90.0)
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(watch.drawing([seen], PriceList(None), 100.0, width))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.splitlines()[1].startswith("locomo/segt")
