"""Every table and figure by one command: nothing left out, what fails is in the list and stops nothing."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from eval.files.store import RunError
from memsys.llm import stopping
from memsys.llm.pricing import next_purse
from scripts.command import verb
from scripts.tables import figures, table
from scripts.tables.everything import Attempt, _pooled, _processes, everything, make
from scripts.tables.table import Outcome

pytestmark = pytest.mark.slow

CONF = Path(__file__).resolve().parents[2] / "conf"


def test_every_table_and_figure_of_a_paper_is_made_and_nothing_else() -> None:
    names = list(everything())
    assert len(set(names)) == len(names)
    assert set(names) == {
        path.stem
        for group in ("table", "figure")
        for path in (CONF / group).glob("*.yaml")
        if path.stem
        not in (
            "change",
            "equal_budgets",
            "gatemem",
            "growth",
            "local",
            "next",
            "next_beam",
            "regression",
            "released",
            "third_party",
        )  # of no paper of the four
    }
    assert names.index("timem_t9") < names.index("timem_t10") < names.index("timem_f3")


def index_of(tmp_path: Path, names: tuple[str, ...], processes: int) -> list[list[str]]:
    """The rows of the list of what was made."""
    only = [f"only={name}" for name in names]
    assert verb("reproduce-all", [*only, f"processes={processes}", "profile=smoke", f"results={tmp_path}"]) == 0
    index = (tmp_path / "tables" / "index-smoke.md").read_text(encoding="utf-8")
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in index.splitlines()[2:]]


@pytest.mark.integration
def test_the_list_says_what_was_made_by_which_command_and_where(tmp_path: Path, capsys: Any) -> None:
    rows = index_of(tmp_path, ("memtree_t5", "memtree_fa1"), 1)
    assert "STAND-IN" not in capsys.readouterr().out  # the tables themselves are in their files
    assert [row[0] for row in rows] == ["memtree_t5", "memtree_fa1"]
    assert all(Path(row[3]).is_file() and row[4] == "made" for row in rows)
    assert rows[0][1].startswith("`python -m scripts reproduce table=memtree_t5 profile=smoke")


@pytest.mark.integration
def test_two_processes_make_the_same_list_in_the_same_order(tmp_path: Path) -> None:
    names = ("memtree_a3", "memtree_a4", "timem_t7")
    for processes in (1, 2):
        rows = index_of(tmp_path / str(processes), names, processes)
        assert [(row[0], row[4]) for row in rows] == [(name, "made") for name in names]
    same = [
        [(path.name, path.read_bytes()) for path in sorted((tmp_path / each / "tables").glob("*.tex"))]
        for each in ("1", "2")
    ]
    assert same[0] == same[1]


def test_what_fails_is_in_the_list_and_the_others_are_made(
    tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(_: Any) -> Outcome:
        return Outcome(0, tmp_path / "table.md")

    def broken(_: Any) -> int:
        raise RunError("no such thing")

    monkeypatch.setattr(table, "make_table", made)
    monkeypatch.setattr(figures, "make_figure", broken)
    arguments = ["only=memtree_t5", "only=memtree_fa1", "processes=1", "profile=smoke", f"results={tmp_path}"]
    assert verb("reproduce-all", arguments) == 1
    said = capsys.readouterr().out
    assert "error: no such thing" in said
    assert "1 made" in said
    assert "1 failed" in said


def test_the_file_in_the_list_is_the_one_that_was_returned_whatever_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def talkative(_: Any) -> Outcome:
        print("written: somewhere-else.md (as a caption says)")
        return Outcome(0, tmp_path / "table.md")

    monkeypatch.setattr(table, "make_table", talkative)
    attempt = make("memtree_t5", ["profile=smoke", f"results={tmp_path}"])
    assert (attempt.file, attempt.failure) == (tmp_path / "table.md", "")


@pytest.mark.parametrize(
    ("end", "error", "failure", "stopped"),
    [
        (stopping.wind_down, RunError("no such thing"), "error: no such thing", False),
        (stopping.wind_down, KeyError("name"), "KeyError: 'name'", False),
        (stopping.request, RunError("interrupted"), "stopped; the same command resumes", True),
    ],
)
def test_calls_that_an_error_has_ended_do_not_stop_the_next_table_and_a_signal_does(
    end: Callable[[], Any], error: Exception, failure: str, stopped: bool, tmp_path: Path, monkeypatch: Any
) -> None:
    def broken(_: Any) -> Outcome:
        print("began")
        end()
        raise error

    monkeypatch.setattr(stopping, "_wind_down", lambda: stopping._stop.ended.set())
    monkeypatch.setattr(table, "make_table", broken)
    try:
        attempt = make("memtree_t5", ["profile=smoke", f"results={tmp_path}"])
        assert stopping.requested() is stopped
    finally:
        stopping.forget()
    assert failure in attempt.failure


@pytest.mark.parametrize(
    ("killed", "order", "rest"),
    [(False, ["timem_t1", "xmemory_t1", "timem_t2"], []), (True, ["timem_t1"], ["timem_t2", "xmemory_t1"])],
)
def test_papers_are_made_side_by_side_and_a_killed_process_leaves_the_rest_to_the_next_pool(
    killed: bool, order: list[str], rest: list[str]
) -> None:
    started: list[str] = []

    class Pool:
        def submit(self, work: Any, name: str, overrides: Any) -> Future[Attempt]:
            if killed and started:
                raise BrokenProcessPool
            started.append(name)
            future = Future[Attempt]()
            if killed:
                future.set_exception(BrokenProcessPool())
            else:
                future.set_result(Attempt(name, "", 0.0, None, ""))
            return future

    left: Any = ["timem_t1", "timem_t2", "xmemory_t1"]
    attempts = list(_pooled(cast(Any, Pool()), left, [], 2))
    assert (started, left) == (order, rest)
    assert {attempt.name for attempt in attempts} == set(order)
    assert all(("a process was killed" in attempt.failure) is killed for attempt in attempts)


@pytest.mark.parametrize(
    ("network", "max_usd", "given", "count"),
    [(True, None, [], 1), (False, 1.0, [], 1), (False, None, [], 3), (True, None, ["processes=2"], 2)],
)
def test_as_many_processes_as_cores_work_offline_and_one_where_a_server_or_a_cap_is_shared(
    network: bool, max_usd: float | None, given: list[str], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    cfg: Any = SimpleNamespace(network=network, max_usd=max_usd)
    assert _processes(given, cfg) == count
    for wrong in ("0", "-1", "two"):
        with pytest.raises(RunError, match=f"at least 1, found '{wrong}'"):
            _processes([f"processes={wrong}"], cfg)


def test_a_spending_cap_is_never_shared_out_among_processes(tmp_path: Path, capsys: Any) -> None:
    chosen = ["only=memtree_t5", "processes=2", "profile=smoke", "max_usd=1", f"results={tmp_path}"]
    assert verb("reproduce-all", chosen) == 2
    assert "max_usd holds for one process" in capsys.readouterr().err


def test_all_tables_together_spend_no_more_than_the_cap(tmp_path: Path, monkeypatch: Any) -> None:
    left = []

    def spend(cfg: Any) -> Outcome:
        purse = next_purse(cfg.max_usd)
        left.append(round(cfg.max_usd - purse.spent, 2))
        purse.settle(purse.reserve(0.25), 0.25)
        return Outcome(0, tmp_path)

    monkeypatch.setattr(table, "make_table", spend)
    chosen = ["only=memtree_t4", "only=memtree_t5", "profile=smoke", "max_usd=1", f"results={tmp_path}"]
    assert verb("reproduce-all", chosen) == 0
    assert left == [1.0, 0.75]
    assert next_purse(1.0).spent == 0.0


@pytest.mark.integration
def test_a_killed_process_costs_what_it_was_making_and_no_more(tmp_path: Path, capsys: Any) -> None:
    def kill_one() -> None:
        while len(found := multiprocessing.active_children()) < 2:
            time.sleep(0.01)
        time.sleep(1.0)  # a pool that loses a process while it starts another waits for ever (CPython 3.11)
        found[0].kill()

    killer = threading.Thread(target=kill_one)
    killer.start()
    names = ("memtree_a3", "memtree_a4", "timem_t7", "timem_t8")
    only = [f"only={name}" for name in names]
    assert verb("reproduce-all", [*only, "processes=2", "profile=smoke", f"results={tmp_path}"]) == 1
    killer.join()
    outcomes = [line.split(" | ")[-1] for line in (tmp_path / "tables" / "index-smoke.md").read_text().splitlines()[2:]]
    assert len(outcomes) == 4
    assert sum("a process was killed" in outcome for outcome in outcomes) in (1, 2)
    assert "made" in capsys.readouterr().out
    assert any(outcome == "made |" for outcome in outcomes)
