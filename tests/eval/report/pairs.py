"""A table whose pairs are tested in one data set and not in the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eval.files.store import write_lines
from eval.report.cell import Asked, Cell, Column
from eval.report.tables import Row, Table

PER_CASE = 12
RIGHT = {"bm25": 3, "better": 8, "old": 5, "worse": 2}
"""How many questions of a history each row answers right, about."""


def two_data_sets(folder: Path, **more: Any) -> Table:
    """Rows over eight histories with a judge and F1, and over four histories with a judge; the first row is the reference.

    The judge of both data sets is tested, unless `more` names other columns.
    """
    columns = [
        Column("many", "Many", "judge", _questions("many", 8)),
        Column("many", "Many", "F1", _questions("many", 8)),
        Column("few", "Few", "judge", _questions("few", 4)),
    ]
    rows = [Row(name, name, tuple(score(folder, column, name) for column in columns)) for name in RIGHT]
    return Table("toy", "Toy", (), tuple(columns), tuple(rows), "bm25", **{"primary": frozenset({0, 2}), **more})


def score(folder: Path, column: Column, name: str, without: int = 0) -> Cell:
    """The cell of a row, without scores of the first questions."""
    path = folder / f"{column.dataset}-{column.metric}-{name}.jsonl"
    lines = []
    for place, question in enumerate(column.questions[without:], without):
        history, number = divmod(place, PER_CASE)
        right = number < RIGHT[name] + (history + len(name)) * history % 3 - 1
        lines.append(
            {"case_id": question.case_id, "question_id": question.question_id, "repeat": 0, "value": float(right)}
        )
    write_lines(path, lines)
    return Cell(column, {question.key: frozenset({"answered"}) for question in column.questions[without:]}, (path,))


def _questions(name: str, histories: int) -> tuple[Asked, ...]:
    return tuple(
        Asked(f"{name}{case}", f"q{case}-{number}", "", f"{name}{case}", True, False)
        for case in range(histories)
        for number in range(PER_CASE)
    )
