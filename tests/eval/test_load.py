"""Load: counts that add up, planted leaks that are all found, failures that are counted. No test looks at how long anything took."""

from __future__ import annotations

import csv
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from data_loaders.schema import Case, Question, Session, Turn, Unit
from data_loaders.units import make_units
from eval.analysis import load
from eval.analysis.load import VALUE, Level, LoadCounts, Plan, as_csv, measure, value_of, writes
from eval.files.store import RunError
from eval.running.run import Run
from memsys.interface import Item, MemorySystem, Recall, unit_item
from memsys.llm.protocol import EndOfRun

AT_ONCE = Plan((3,), writes=4, reads=6, write_rate=1e6, read_rate=1e6, patience=0.0, seconds=600.0)
"""As fast as it goes, and each value is asked for once."""
CASES = [
    Case(name, ("Ines",), (Session("s1", tuple(Turn(f"t{n}", "Ines", f"{name} {n}.") for n in range(6))),), ())
    for name in ("a", "b")
]


class Store:
    """What the memories of all users share: counts of the calls that reached them, and everything that was told."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.told: list[tuple[object, Unit]] = []
        self.closed = 0
        self._lock = threading.Lock()

    def called(self, step: str) -> int:
        """Count a call; its number among all users', from 1."""
        with self._lock:
            self.calls[step] += 1
            return self.calls[step]


class Own(MemorySystem):
    """Recalls everything that its own user wrote."""

    def __init__(self, store: Store) -> None:
        self.store, self.units = store, list[Unit]()

    def write(self, unit: Unit) -> None:
        self.store.called("write")
        self.units.append(unit)
        self.store.told.append((self, unit))

    def consolidate(self) -> None:
        self.store.called("consolidate")

    def read(self, question: Question) -> Recall:
        return self.recalled(self.store.called("read"))

    def recalled(self, number: int) -> Recall:
        return Recall(tuple(map(unit_item, self.units)))

    def close(self) -> None:
        self.store.called("close")


class Leaky(Own):
    """Every thousandth read of all users recalls a unit of another user as well."""

    def recalled(self, number: int) -> Recall:
        own = super().recalled(number)
        if number % 1000:
            return own
        return Recall((*own.items, unit_item(next(unit for owner, unit in self.store.told if owner is not self))))


class Failing(Own):
    """Every third write and every fifth read of all users fails; so does the end of each user."""

    def write(self, unit: Unit) -> None:
        if self.store.called("tried") % 3 == 0:
            sys.exit("the disk is shy")
        super().write(unit)

    def recalled(self, number: int) -> Recall:
        return Recall((), aborted="too deep") if number % 5 == 0 else super().recalled(number)

    def close(self) -> None:
        raise OSError("still busy")


@pytest.fixture
def levels(make_run: Callable[..., Run]) -> Callable[..., tuple[list[Level], Store]]:
    def measured(memory: Callable[[Store], MemorySystem], plan: Plan = AT_ONCE) -> tuple[list[Level], Store]:
        store = Store()
        run = make_run(CASES, build=lambda: memory(store))
        return list(measure(replace(run, unit={"rule": "utterance"}, rehearse=lambda: None), plan, salt="test")), store

    return measured


def returned(tally: LoadCounts, phase: str) -> int:
    return len(tally.seconds[phase])


def test_counts_are_those_of_the_calls_that_arrived(levels: Any) -> None:
    measured, store = levels(Own, replace(AT_ONCE, users=(1, 3)))
    assert [level.users for level in measured] == [1, 3]
    for level in measured:
        tally = level.tally
        assert tally.sent["first"] == returned(tally, "first") == level.users
        assert tally.sent["write"] == returned(tally, "write") == level.users * 3
        assert level.done == level.users * (3 + 3 + 6), "what came before the rates is in no rate"
        assert tally.sent["read"] == returned(tally, "read") == level.users * (4 + 6), "one after each write, six more"
        assert tally.sent["consolidate"] == level.users * 4, "before the first read after a write"
        assert returned(tally, "lag") == level.users * 3
        assert tally.recalled == level.users * 4
        assert (tally.leaks, tally.lost, tally.errors.total(), tally.unsent.total()) == (0, 0, 0, 0)
    for step in ("write", "consolidate", "read"):
        sent = [writes(level.tally.sent) if step == "write" else level.tally.sent[step] for level in measured]
        assert store.calls[step] == sum(sent)
    assert store.calls["close"] == 4


@pytest.mark.slow
def test_a_leak_of_one_read_in_a_thousand_is_caught_each_time(levels: Any) -> None:
    plan = replace(AT_ONCE, reads=996)
    ((level,), store) = levels(Leaky, plan)
    assert store.calls["read"] == level.tally.sent["read"] == 3000
    assert level.tally.leaks == 3
    assert level.tally.leaked
    assert all(VALUE.search(line) for line in level.tally.leaked)
    ((level,), _) = levels(Own, plan)
    assert level.tally.leaks == 0


def test_a_leak_from_users_measured_before_in_an_answer_and_in_capitals_is_caught(levels: Any) -> None:
    class Loud(Own):
        def recalled(self, number: int) -> Recall:
            return Recall((), answer=self.store.told[0][1].text.upper())

    (first, second), _ = levels(Loud, replace(AT_ONCE, users=(1, 1)))
    assert first.tally.leaks == 0, "its only user told it"
    assert second.tally.leaks == 0, "the same user at the same number of users"
    (first, second), _ = levels(Loud, replace(AT_ONCE, users=(1, 2)))
    assert (first.tally.leaks, second.tally.leaks) == (0, second.tally.sent["read"])


def test_failures_are_counted_and_everything_adds_up(levels: Any) -> None:
    ((level,), store) = levels(Failing)
    tally = level.tally
    assert (writes(tally.sent), writes(tally.errors)) == (12, 4)
    assert store.calls["tried"] == 12
    assert tally.sent["read"] == store.calls["read"] == 8 + 18 - tally.unsent["read"], (
        "nobody asks for what was not written"
    )
    assert tally.unsent["read"], "nothing is written at the first read of the user whose first write failed"
    assert tally.errors["read"] == tally.sent["read"] // 5
    assert tally.errors["close"] == 3
    for phase in ("first", "write", "consolidate", "read"):
        assert tally.sent[phase] == returned(tally, phase) + tally.errors[phase]
    assert writes(tally.sent) == tally.recalled + tally.lost + writes(tally.errors)
    assert tally.causes["write: SystemExit: the disk is shy"] == 4
    assert tally.causes["read: RunError: the search was aborted: too deep"] == tally.errors["read"]
    assert tally.causes["close: OSError: still busy"] == 3


def test_where_nothing_was_written_no_read_is_sent_and_no_operation_is_counted(levels: Any) -> None:
    class Refusing(Own):
        def write(self, unit: Unit) -> None:
            raise ValueError("no key")

    ((level,), store) = levels(Refusing)
    tally = level.tally
    assert (writes(tally.errors), tally.sent["read"], tally.unsent["read"], store.calls["read"]) == (12, 0, 18, 0)
    assert (level.done, level.rate, level.percentile("read", 50)) == (0, 0.0, None)


def test_a_user_without_a_memory_sends_nothing_and_the_others_go_on(levels: Any) -> None:
    def second_fails(store: Store) -> MemorySystem:
        if store.called("build") == 2:
            raise ValueError("no room")
        return Own(store)

    ((level,), store) = levels(second_fails)
    tally = level.tally
    assert (writes(tally.sent), writes(tally.unsent), tally.errors["build"]) == (8, 4, 1)
    assert (tally.sent["read"], tally.unsent["read"]) == (20, 6)
    assert store.calls["close"] == 2


def test_a_user_wakes_when_its_next_step_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    now, waited = [0.0], list[float]()

    class Over(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout or 0.0)
            now[0] += waited[-1]
            return self.is_set()

    monkeypatch.setattr(load, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    user = load.User("u", [], AT_ONCE, {}, Over())
    assert user._slept_until(0.5)
    assert waited == pytest.approx([0.2, 0.2, 0.1])


def test_what_time_leaves_no_room_for_is_counted_as_not_sent(levels: Any) -> None:
    ((level,), _) = levels(Own, replace(AT_ONCE, seconds=1e-9))
    tally = level.tally
    assert (writes(tally.sent), writes(tally.unsent), tally.unsent["read"]) == (3, 9, 18)


def test_what_is_found_late_is_asked_for_again_and_what_is_never_found_is_counted(levels: Any) -> None:
    class Late(Own):
        def __init__(self, store: Store) -> None:
            super().__init__(store)
            self.asked: Counter[str] = Counter()

        def read(self, question: Question) -> Recall:
            self.store.called("read")
            self.asked[question.id] += 1
            return super().recalled(0) if self.asked[question.id] > 3 else Recall(())

    ((level,), _) = levels(Late, replace(AT_ONCE, reads=0, patience=600.0))
    assert (level.tally.recalled, returned(level.tally, "lag"), level.tally.lost) == (12, 9, 0)
    assert level.tally.sent["read"] == 12 * 4
    ((level,), _) = levels(Late, replace(AT_ONCE, reads=0))
    assert (level.tally.recalled, level.tally.lost, level.tally.sent["read"]) == (0, 12, 12)


def test_the_end_of_the_run_ends_all_users_and_closes_their_memories(levels: Any) -> None:
    stores: list[Store] = []

    class Spent(Own):
        def __init__(self, store: Store) -> None:
            super().__init__(store)
            stores.append(store)

        def recalled(self, number: int) -> Recall:
            raise EndOfRun("the spending cap was reached")

    with pytest.raises(RunError, match="the spending cap was reached; nothing was kept of users=3"):
        levels(Spent)
    assert stores[0].calls["close"] == 3
    unit = make_units(CASES[0].sessions, "utterance").units[0]
    user = load.User("u", [(unit, Question("q", "What?"), "v")], AT_ONCE, {}, over := threading.Event())
    user.memory = Spent(Store())
    with pytest.raises(EndOfRun):
        user.begin()
    assert over.is_set(), "the others hear of it before this user is waited for"


def test_more_writes_than_the_data_set_has_units_are_refused(levels: Any) -> None:
    with pytest.raises(RunError, match="writes=13: no user has that many units to write"):
        levels(Own, replace(AT_ONCE, writes=13))


def test_values_are_told_apart_and_have_the_form_that_reads_are_searched_for() -> None:
    values = [value_of(salt, name, place) for salt in "ab" for name in ("u1", "u2") for place in range(50)]
    assert len(set(values)) == 200
    assert all(VALUE.fullmatch(value) for value in values)


def told(seconds: Sequence[float]) -> Level:
    tally = LoadCounts(sent=Counter(write=len(seconds) + 1), errors=Counter(write=1), leaks=2)
    tally.seconds["write"] += seconds
    return Level(7, tally, 2.0, tally.done, 0.5, 4096)


def test_percentiles_are_by_nearest_rank_and_the_csv_says_what_is_missing() -> None:
    level = told([number / 100 for number in range(100, 0, -1)])
    assert [level.percentile("write", percent) for percent in (50, 95, 99)] == [0.5, 0.95, 0.99]
    (row,) = csv.DictReader(as_csv("=m", "d", [level]).splitlines())
    assert (row["users"], row["writes"], row["write_errors"], row["leaks"]) == ("7", "101", "1", "2")
    assert (row["write_p50"], row["read_p50"], row["operations_per_second"]) == ("0.500000", "", "50.000000")
    assert (row["memory"], row["bytes"]) == ("'=m", "4096")
    assert (row["first_writes"], row["first_errors"]) == (
        str(level.tally.sent["first"]),
        str(level.tally.errors["first"]),
    )


def test_memory_is_that_of_this_process_and_of_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "resident_bytes", lambda: 5 * 2**20)
    monkeypatch.setattr(load, "megabytes", lambda _: 1.5)
    assert load._size() == 6.5 * 2**20


def test_items_of_a_recall_are_searched_one_by_one(levels: Any) -> None:
    class Halved(Own):
        def recalled(self, number: int) -> Recall:
            halves = VALUE.findall(self.store.told[0][1].text)[0]
            return Recall((Item("1", halves[:9], 0.0, ()), Item("2", halves[9:], 0.0, ())))

    ((level,), _) = levels(Halved)
    assert (level.tally.leaks, level.tally.lost) == (0, 12)
