"""A cell that names outcomes: what is not applicable is neither right, wrong nor missing."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from eval.files.store import write_lines
from eval.report.cell import Asked, Cell, Column, OutcomeCell
from eval.report.rendering import as_csv, markdown, shown
from eval.report.tables import Row, Table, gap_bounds
from eval.statistics.stats import Interval

QUESTIONS = tuple(Asked(f"h{n % 6}", f"q{n}", "supersede", f"h{n % 6}", True, False) for n in range(12))
COLUMN = Column("toy", "Toy", "recalled, supersede", QUESTIONS)


def cell(folder: Path, outcomes: list[str], name: str = "a") -> OutcomeCell:
    """Outcomes of the first questions; the others were not reached."""
    path = folder / f"change_recall-{name}.jsonl"
    lines = [
        {
            "case_id": question.case_id,
            "question_id": question.question_id,
            "repeat": 0,
            "value": {"resolved": 1.0, "both": 0.0, "lost": 0.0}.get(outcome),
            "detail": {"outcome": outcome},
        }
        for question, outcome in zip(QUESTIONS, outcomes, strict=False)
    ]
    write_lines(path, lines)
    reached = {question.key: frozenset({"answered"}) for question, _ in zip(QUESTIONS, outcomes, strict=False)}
    return OutcomeCell(COLUMN, reached, (path,))


def test_the_mean_is_over_what_is_applicable(tmp_path: Path) -> None:
    made = cell(tmp_path, ["resolved"] * 3 + ["both"] + ["n/a: twin gone"] * 8)
    ours = made.estimate()
    assert ours is not None
    assert (ours.mean, ours.n) == (0.75, 4)
    assert made.split() == "3/1/8"
    assert made.failures() == "both 1"
    assert made.missing_share() == 0
    assert shown(made).startswith("0.750 ")
    assert shown(made).endswith(" · 3/1/8 · both 1")


def test_a_memory_to_which_nothing_applies_has_no_number_and_nothing_missing(tmp_path: Path) -> None:
    made = cell(tmp_path, ["n/a: not held before"] * 12)
    assert shown(made) == "– · 0/0/12"
    table = Table("t", "T", (), (COLUMN,), (Row("nothing", "Nothing", (made,)),))
    assert table.missing_share == 0
    assert "0/0/12" in markdown(table)
    assert ",all,0,0,0,0,0," in as_csv(table)


def test_errors_and_what_was_not_reached_are_missing(tmp_path: Path) -> None:
    made = cell(tmp_path, ["resolved", "errored", "unscored", "both", "lost", "lost", "n/a: twin gone"])
    counts = made.counts()
    assert (counts.questions, counts.scored, counts.unscored, counts.errored, counts.not_reached) == (11, 4, 1, 1, 5)
    assert made.split() == "1/3/1, 1 unscored, 1 errored, 5 not reached"
    assert made.failures() == "both 1, lost 2", "the one that matters comes first"
    (line,) = csv.DictReader(as_csv(Table("t", "T", (), (COLUMN,), (Row("a", "A", (made,)),))).splitlines())
    assert (line["not_applicable"], line["wrong_outcomes"]) == ("1", "both 1, lost 2")
    bounds = made.bounds()
    assert bounds is not None
    assert (bounds.low, bounds.high) == (pytest.approx(1 / 11), pytest.approx(8 / 11))
    assert "could be 0.091–0.727" in shown(made)


def test_two_memories_are_compared_where_both_are_applicable(tmp_path: Path) -> None:
    first = cell(tmp_path, ["resolved"] * 6 + ["n/a: twin gone"] * 6, "a")
    second = cell(tmp_path, ["n/a: twin gone"] * 3 + ["both"] * 9, "b")
    gap = first.minus(second, test=False)
    assert gap is not None
    assert (gap.mean, gap.n) == (1.0, 3)
    assert gap_bounds(first, second) is None, "nothing is missing"


def test_other_cells_know_no_inapplicable_question(tmp_path: Path) -> None:
    made = cell(tmp_path, ["n/a: twin gone"] * 12)
    assert Cell(COLUMN, made.outcomes, made.score_files).counts().unscored == 12


def test_what_applies_in_one_build_alone_is_not_missing_in_the_other(tmp_path: Path) -> None:
    files = [
        cell(tmp_path, ["resolved"] * 6 + [sixth] + ["both"] * 5, name)
        for name, sixth in (("a", "lost"), ("b", "n/a: gone"))
    ]
    both = replace(files[0], score_files=(*files[0].score_files, *files[1].score_files))
    assert (both.missing_share(), both.bounds()) == (0, Interval(0.5, 0.5))
