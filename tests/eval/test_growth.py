"""Cost by size: cases joined into one history, the order of the steps, and the arithmetic by hand."""

from __future__ import annotations

import csv

import pytest

from data_loaders.schema import Case, Question, Session, Turn, Unit
from eval.analysis.growth import FIELDS, as_csv, build, costs_at, long_history
from eval.files.records import Effort
from eval.files.store import RunError
from memsys.interface import MemorySystem, Recall

UTTERANCE = {"rule": "utterance"}


def case(name: str, turns: int) -> Case:
    found = tuple(Turn(f"t{number}", "ann", f"{name} says {number}") for number in range(turns))
    return Case(name, ("ann", "bob"), (Session("s1", found),), ())


def effort(phase: str, calls: int = 0, tokens: int = 0, held: int = 0) -> Effort:
    said = {"summary": calls} if calls else {}
    return Effort("growth", "", phase, held, said, said, {}, {}, {}, calls, tokens, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0)


def value(values: tuple[float, ...], name: str) -> float:
    return values[FIELDS.index(name)]


class Written(MemorySystem):
    """Notes what is called, in order."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def write(self, unit: Unit) -> None:
        self.told.append(unit.turns[0].text)

    def end_session(self, session_id: str) -> None:
        self.told.append(f"end {session_id}")

    def consolidate(self) -> None:
        self.told.append("consolidate")

    def read(self, question: Question) -> Recall:
        return Recall(())

    @property
    def held(self) -> int:
        return len(self.told)


def test_cases_stand_one_behind_the_other_with_ids_of_their_own() -> None:
    history, names, units = long_history([case("a", 3), case("b", 3), case("c", 3)], UTTERANCE, 5)
    assert names == [], "no question, no name"
    assert [unit.turns[0].text for unit in units] == [f"{name} says {n}" for name, n in ("a0", "a1", "a2", "b0", "b1")]
    assert len({unit.id for unit in units}) == 5
    assert [session.id for session in history.sessions] == ["a/s1", "b/s1"]
    assert len({turn.id for turn in history.turns}) == 6


def test_a_data_set_that_is_too_short_is_refused() -> None:
    with pytest.raises(RunError, match="holds 6 units, 7 are asked for"):
        long_history([case("a", 3), case("b", 3)], UTTERANCE, 7)


def test_a_build_writes_once_closes_sessions_and_consolidates_at_each_size() -> None:
    memory = Written()
    _, _, units = long_history([case("a", 2), case("b", 2)], UTTERANCE, 4)
    lines = list(build(memory, units, [1, 3]))
    assert memory.told == [
        "a says 0",
        "consolidate",
        "a says 1",
        "end a/s1",
        "b says 0",
        "consolidate",
        "b says 1",
        "end b/s1",
    ]
    assert [line.phase for line in lines] == ["write", "consolidate", "write", "write", "consolidate", "write"]
    assert [line.held for line in lines if line.phase == "consolidate"] == [2, 6]


LINES = [
    effort("write", 1, 10),
    effort("write", 2, 20),
    effort("consolidate", 5, 100, held=2),
    effort("write", 3, 30),
    effort("write", 5, 50),
    effort("consolidate", 9, 400, held=4),
]


def test_one_more_unit_costs_a_write_where_nothing_is_rebuilt() -> None:
    small, large = costs_at(LINES, rebuilds=False, window=2)
    assert (small.n, large.n, small.held, large.held) == (2, 4, 2, 4)
    assert [value(one.one_more, "calls") for one in (small, large)] == [1.5, 4.0]
    assert [value(one.consolidation, "calls") for one in (small, large)] == [5.0, 9.0]
    assert [value(one.cumulative, "tokens_in") for one in (small, large)] == [30.0, 110.0]


def test_one_more_unit_costs_a_rebuild_where_everything_is_rebuilt() -> None:
    small, large = costs_at(LINES, rebuilds=True, window=1)
    assert [value(one.one_more, "calls") for one in (small, large)] == [7.0, 14.0]
    assert [value(one.cumulative, "calls") for one in (small, large)] == [8.0, 25.0]


def test_a_window_longer_than_the_history_takes_what_there_is() -> None:
    (small, _) = costs_at(LINES, rebuilds=False, window=99)
    assert value(small.one_more, "calls") == 1.5


def test_the_file_has_three_lines_a_size() -> None:
    rows = list(
        csv.DictReader(as_csv("segtree", "locomo", False, costs_at(LINES, rebuilds=False, window=2)).splitlines())
    )
    assert [(row["n"], row["what"]) for row in rows[:3]] == [
        ("2", "one_more"),
        ("2", "consolidation"),
        ("2", "cumulative"),
    ]
    assert len(rows) == 6
    assert float(rows[3]["calls"]) == 4.0
