"""Where two memories differ: wins, losses and the most telling questions, worked by hand."""

from __future__ import annotations

from pathlib import Path

from eval.files.store import write_lines
from eval.report.cell import Asked, Cell, Column
from scripts.commands.compare import tallies, telling

QUESTIONS = tuple(Asked("c", f"q{number}", "ab"[number % 2], "c", True, True) for number in range(5))
COLUMN = Column("toy", "Toy", "F1", QUESTIONS)


def cell(folder: Path, name: str, *values: float | None) -> Cell:
    path = folder / f"{name}.jsonl"
    keys = [{"case_id": "c", "question_id": f"q{number}", "repeat": 0} for number in range(len(values))]
    write_lines(path, [{**key, "value": value} for key, value in zip(keys, values, strict=True)])
    return Cell(COLUMN, {}, (path,))


def test_wins_and_losses_count_only_questions_that_both_have_a_score_for(tmp_path: Path) -> None:
    first, second = cell(tmp_path, "x", 1.0, 0.0, 1.0, 0.5, 1.0), cell(tmp_path, "y", 0.0, 1.0, 1.0, 0.25, None)
    assert tallies(first, second) == {"all": (2, 1, 1), "a": (1, 0, 1), "b": (1, 1, 0)}
    assert tallies(second, first) == {"all": (1, 2, 1), "a": (0, 1, 1), "b": (1, 1, 0)}


def test_the_largest_gap_comes_first_then_the_mean_gap_then_the_order_of_the_data(tmp_path: Path) -> None:
    cells = [
        cell(tmp_path, "x", 1.0, 1.0, 0.0, 0.5, 1.0),
        cell(tmp_path, "y", 0.0, 0.0, 0.0, 0.0, 0.0),
        cell(tmp_path, "z", 1.0, 0.0, 0.0, 0.5, None),
    ]
    entries = telling(cells, 10)
    assert [(question.question_id, scores) for question, scores in entries] == [
        ("q1", (1.0, 0.0, 0.0)),
        ("q4", (1.0, 0.0, None)),
        ("q0", (1.0, 0.0, 1.0)),
        ("q3", (0.5, 0.0, 0.5)),
    ]
    assert [question.question_id for question, _ in telling(cells, 2)] == ["q1", "q4"]


def test_equal_gaps_keep_the_order_of_the_data(tmp_path: Path) -> None:
    cells = [cell(tmp_path, "x", *[1.0] * 5), cell(tmp_path, "y", *[0.0] * 5)]
    assert [question.question_id for question, _ in telling(cells, 3)] == ["q0", "q1", "q2"]
