from __future__ import annotations

from dataclasses import is_dataclass

from data_loaders import schema


def test_no_memory_can_change_the_records_that_scoring_reads_later() -> None:
    records = [value for value in vars(schema).values() if isinstance(value, type) and is_dataclass(value)]
    assert {record.__name__ for record in records} >= {"Turn", "Session", "Question", "Gold", "Case", "Unit"}
    assert [record.__name__ for record in records if not record.__dataclass_params__.frozen] == []  # type: ignore[attr-defined]
