from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from data_loaders.schema import Question, Unit
from eval.running.reader import within
from memsys.interface import Item, MemorySystem, dated, positive, union, unit_item
from memsys.systems.controls import FullHistory, Nothing, Recency
from memsys.tokens import count_tokens

MakeUnit = Callable[..., Unit]
QUESTION = Question("q", "Where is the key?")


def filled(memory: MemorySystem, units: list[Unit]) -> MemorySystem:
    for unit in units:
        memory.write(unit)
    return memory


@pytest.fixture
def units(unit: MakeUnit) -> list[Unit]:
    return [unit(f"u{number}", f"remark {number}") for number in range(5)]


def ids(memory: MemorySystem) -> list[str]:
    return [item.id for item in memory.read(QUESTION).items]


def test_nothing_recalls_nothing(units: list[Unit]) -> None:
    memory = filled(Nothing(), units)
    assert (ids(memory), memory.held, list(memory.nodes()), memory.report()) == ([], 0, [], {})


def test_the_full_history_comes_in_order_and_dated(units: list[Unit]) -> None:
    memory = filled(FullHistory(), units)
    assert ids(memory) == ["u0", "u1", "u2", "u3", "u4"]
    assert memory.held == 5
    assert memory.read(QUESTION).items[0] == Item("u0", "[7 May 2023] Ann: remark 0", 0.0, ("t-u0",), "leaf", 0)


def test_a_budget_drops_the_earliest(units: list[Unit]) -> None:
    each = count_tokens("[7 May 2023] Ann: remark 0")
    memory = filled(FullHistory(max_tokens=3 * each), units)
    assert ids(memory) == ["u2", "u3", "u4"]
    for budget, kept in ((3 * each - 1, 2), (0, 0), (None, 5), (100 * each, 5)):
        other = copy.copy(memory)
        other.max_tokens = budget  # type: ignore[attr-defined]
        assert len(ids(other)) == kept


@pytest.mark.parametrize("memory", [FullHistory(), Recency(k=4)])
def test_the_budget_of_a_reader_drops_the_earliest_too(memory: MemorySystem, units: list[Unit]) -> None:
    recalled = filled(memory, units).read(QUESTION).items
    assert [item.id for item in within(recalled, 3 * count_tokens(recalled[0].text))] == ["u2", "u3", "u4"]


def test_a_budget_keeps_an_unbroken_tail(unit: MakeUnit) -> None:
    memory = filled(FullHistory(max_tokens=30), [unit("u0", "hi"), unit("u1", "word " * 50), unit("u2", "bye")])
    assert ids(memory) == ["u2"]


def test_recency_recalls_the_last_k_in_order(units: list[Unit]) -> None:
    memory = filled(Recency(k=2), units)
    assert (ids(memory), memory.held) == (["u3", "u4"], 5)
    for k, kept in ((5, 5), (99, 5), (1, 1)):
        other = copy.copy(memory)
        other.k = k  # type: ignore[attr-defined]
        assert len(ids(other)) == kept


@pytest.mark.parametrize("k", [0, -3])
def test_a_setting_below_one_is_refused_by_name(k: int) -> None:
    with pytest.raises(ValueError, match=f"k must be at least 1, found {k}"):
        Recency(k=k)
    assert positive("k", 1) == 1


def test_what_is_dated_and_what_is_not() -> None:
    assert dated("Ann: hi", "7 May 2023") == "[7 May 2023] Ann: hi"
    assert dated("Ann: hi", "") == "Ann: hi"


def test_a_unit_item_carries_its_turns(unit: MakeUnit) -> None:
    item = unit_item(unit("u1", "hi", time_text=""), 0.5, kind="page")
    assert item == Item("u1", "Ann: hi", 0.5, ("t-u1",), "page", 0)


def test_a_union_keeps_first_seen_order() -> None:
    assert union([("b", "a"), ("a", "c"), (), ("b",)]) == ("b", "a", "c")
