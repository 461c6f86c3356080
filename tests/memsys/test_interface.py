"""The functions that several memories share: periods of units, and shares of a budget."""

from __future__ import annotations

from datetime import datetime

from data_loaders.schema import Turn, Unit
from memsys.interface import period, period_text, shares, spoken


def unit(time: datetime | None, time_text: str) -> Unit:
    return Unit("u", (), "s", time, time_text)


def test_a_period_ignores_unknown_times_and_repeats_none() -> None:
    first, last, unknown = unit(datetime(2023, 5, 7), "7 May"), unit(datetime(2023, 5, 9), "9 May"), unit(None, "")
    assert period((last, unknown, first)) == (datetime(2023, 5, 7), datetime(2023, 5, 9))
    assert period((unknown,)) == (None, None)
    assert [period_text(first, last), period_text(first, first), period_text(unknown, last)] == [
        "7 May – 9 May", "7 May", "9 May",
    ]  # fmt: skip


def test_a_turn_without_a_speaker_is_its_text() -> None:
    assert spoken(Turn("t1", "Ann", "Hello")) == "Ann: Hello"
    assert spoken(Turn("t1", "", "Hello")) == "Hello"


def test_shares_differ_by_at_most_one_and_add_up() -> None:
    assert [shares(7, 2), shares(6, 2), shares(1, 2), shares(5, 1)] == [[4, 3], [3, 3], [1, 0], [5]]
