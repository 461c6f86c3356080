"""Tables: the four outcomes add up, failures are shown, published numbers get honest verdicts, every format says the same."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eval.published import Published, find, read_published, verdict
from eval.records import Prediction
from eval.rendering import as_csv, latex, markdown, shown
from eval.stats import Estimate, Interval
from eval.store import Appender, write_lines
from eval.tables import (
    ANSWERABLE,
    Asked,
    Cell,
    Column,
    Counts,
    Row,
    Table,
    categories,
    outcomes,
)

QUESTIONS = tuple(Asked(f"c{n % 2}", f"q{n}", "abc"[n % 3], f"c{n % 2}", n != 5, True) for n in range(6))
COLUMN = Column("toy", "Toy", "judge", QUESTIONS)


def lines(values: dict[int, float | None], repeat: int = 0) -> list[dict[str, Any]]:
    return [
        {
            "case_id": f"c{n % 2}",
            "question_id": f"q{n}",
            "repeat": repeat,
            "value": value,
            "why": "",
            "detail": {},
            "answer": "x",
        }
        for n, value in values.items()
    ]


def cell(tmp_path: Path, values: dict[int, float | None], reached: dict[int, str] | None = None, **more: Any) -> Cell:
    path = tmp_path / "scores.jsonl"
    write_lines(path, lines(values))
    found = {
        (f"c{n % 2}", f"q{n}"): frozenset({outcome})
        for n, outcome in (reached or dict.fromkeys(values, "answered")).items()
    }
    return Cell(COLUMN, found, (path,), **more)


def test_scored_unscored_errored_and_not_reached_add_up(tmp_path: Path) -> None:
    one = cell(tmp_path, {0: 1.0, 1: 0.0, 2: None}, {0: "answered", 1: "aborted", 2: "answered", 3: "error"})
    assert one.counts() == Counts(6, 2, 1, 1, 2, 1)
    assert one.counts().missing_share == pytest.approx(4 / 6)
    assert "2/1/1/2" in shown(one)
    assert "1 aborted" in shown(one)


def test_what_is_not_scored_is_never_averaged_in_and_the_possible_range_is_shown(tmp_path: Path) -> None:
    one = cell(tmp_path, {0: 1.0, 1: 1.0, 2: None, 3: None})
    found = one.estimate()
    assert found is not None
    assert (found.mean, found.n) == (1.0, 2)
    assert one.bounds() == Interval(2 / 6, 1.0)
    assert "could be 0.333–1.000" in shown(one)


def test_categories_and_the_answerable_have_their_own_means(tmp_path: Path) -> None:
    one = cell(tmp_path, {n: float(n == 5) for n in range(6)})
    assert categories(COLUMN) == ["all", ANSWERABLE, "a", "b", "c"]
    assert [round(found.mean, 3) for name in categories(COLUMN) if (found := one.estimate(name))] == [
        0.167,
        0.0,
        0.0,
        0.0,
        0.5,
    ]


def test_repeats_are_averaged_question_by_question_and_their_spread_is_printed(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    write_lines(path, lines(dict.fromkeys(range(6), 1.0)) + lines({n: float(n < 3) for n in range(6)}, repeat=1))
    one = Cell(COLUMN, {(f"c{n % 2}", f"q{n}"): frozenset({"answered"}) for n in range(6)}, (path,))
    assert one.values["c1", "q5"] == 0.5
    assert one.spread == pytest.approx(0.353553, abs=1e-5)
    assert shown(one).startswith("0.750 ± 0.354 ")


def test_the_mean_of_cases_weighs_cases_alike(tmp_path: Path) -> None:
    one = cell(tmp_path, {0: 1.0, 2: 1.0, 4: 1.0, 1: 0.0})
    by_case = one.estimate(aggregate="case")
    by_question = one.estimate()
    assert by_case is not None
    assert by_question is not None
    assert (by_case.mean, by_question.mean) == (0.5, 0.75)


def test_a_paired_difference_uses_only_questions_that_both_have(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first = cell(tmp_path / "a", {0: 1.0, 1: 1.0, 2: 0.0})
    second = cell(tmp_path / "b", {0: 0.0, 1: 1.0, 3: 1.0})
    gap = first.minus(second)
    assert gap is not None
    assert (gap.mean, gap.n) == (0.5, 2)


def published(value: float, low: float | None = None, high: float | None = None) -> Published:
    return Published("P", "T", "D", "B", "M", "", "All", "acc", value, low, high, None, "", str(value))


def ours(mean: float, by_case: Interval | None, by_question: Interval, clusters: int = 10) -> Estimate:
    return Estimate(mean, 100, by_question, by_case, clusters)


@pytest.mark.parametrize(
    ("mean", "expected"),
    [(0.50, "OK"), (0.55, "OK"), (0.5501, "close"), (0.57, "close"), (0.5702, "off"), (0.43, "close"), (0.429, "off")],
)
def test_the_verdict_is_by_the_interval_of_the_difference(mean: float, expected: str) -> None:
    # half-widths 0.03 (ours, by case) and 0.04 (theirs) make 0.05 for the difference
    estimate = ours(mean, Interval(mean - 0.03, mean + 0.03), Interval(mean - 0.2, mean + 0.2))
    assert verdict(estimate, published(50.0, 46.0, 54.0), scale=100.0) == expected


def test_with_fewer_than_five_cases_the_interval_by_question_decides() -> None:
    estimate = ours(0.6, Interval(0.6, 0.6), Interval(0.45, 0.75), clusters=4)
    assert verdict(estimate, published(0.5)) == "OK"
    assert verdict(replace(estimate, clusters=5), published(0.5)) == "off"


def test_a_reason_not_to_compare_outweighs_everything() -> None:
    estimate = ours(0.5, Interval(0.4, 0.6), Interval(0.4, 0.6))
    assert verdict(estimate, published(0.5), why_not="stand-in") == "not comparable: stand-in"
    assert verdict(None, published(0.5)) == "missing"
    assert verdict(estimate, None) == "not published"


def test_every_published_file_is_read_and_table_4_is_complete() -> None:
    numbers = read_published("segtreemem_t4")
    assert len(numbers) == 54
    found = find(numbers, {"method": "BM25", "dataset": "LoCoMo", "metric": "LLM-judge accuracy"})
    assert found is not None
    assert (found.value, found.low, found.high) == (0.469, 0.447, 0.491)


def test_an_ambiguous_reference_is_an_error() -> None:
    with pytest.raises(ValueError, match="published numbers fit"):
        find(read_published("segtreemem_t4"), {"method": "SegTreeMem", "dataset": "LoCoMo", "metric": "F1"})


def table(tmp_path: Path) -> Table:
    (tmp_path / "x").mkdir()
    (tmp_path / "y").mkdir()
    first = cell(tmp_path / "x", dict.fromkeys(range(6), 1.0), published=published(0.9), why_not="stand-in")
    second = cell(tmp_path / "y", dict.fromkeys(range(6), 0.0))
    rows = (
        Row("one", "One | two_%", (first,)),
        Row("two", "Two", (second,), ruled=True),
        Row("amem", "A-MEM", ("pending",)),
        Row("raptor", "RAPTOR", ("no data: python -m scripts.fetch toy",)),
    )
    return Table("toy", "Toy table", ("made with care",), (COLUMN,), rows, "two")


def test_nothing_is_left_out_of_the_printed_table(tmp_path: Path) -> None:
    text = markdown(table(tmp_path))
    for part in (
        "One \\| two_%",
        "pending",
        "no data: python -m scripts.fetch toy",
        "0.9 · not comparable: stand-in",
        "made with care",
        "by category",
    ):
        assert part in text
    assert "+1.000" in text


def test_csv_says_what_the_table_says(tmp_path: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(as_csv(table(tmp_path)))))
    first = rows[0]
    assert (first["memory"], first["category"], first["mean"], first["published"]) == ("one", "all", "1.000000", "0.9")
    assert all(
        int(r["scored"]) + int(r["unscored"]) + int(r["errored"]) + int(r["not_reached"]) == int(r["questions"])
        for r in rows
        if r["scored"]
    )
    assert [r["verdict"] for r in rows if r["memory"] == "amem"] == ["pending"]


def test_latex_escapes_what_it_prints(tmp_path: Path) -> None:
    text = latex(table(tmp_path))
    assert r"two\_\%" in text
    assert text.count(r"\\") >= 5


def test_outcomes_are_read_from_every_replicate(tmp_path: Path) -> None:
    for name, outcome in (("one", "error"), ("two", "answered")):
        record = {
            "case_id": "c0",
            "question_id": "q0",
            "answer": "",
            "items": [],
            "scores": [],
            "outcome": outcome,
            "error": "",
        }
        path = tmp_path / name / "cases" / "c0" / "predictions.jsonl"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(record) + "\n")
    found = outcomes([tmp_path / "one", tmp_path / "two"], QUESTIONS)
    assert found == {("c0", "q0"): frozenset({"error", "answered"})}


def test_answers_that_were_cut_are_counted_in_the_cell_and_in_the_csv(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for n in range(6):
        record = Prediction(f"c{n % 2}", f"q{n}", "It was", (), (), "answered", cut=n in (1, 2))
        Appender(folder / "cases" / f"c{n % 2}" / "predictions.jsonl").add(record)
    write_lines(tmp_path / "scores.jsonl", lines(dict.fromkeys(range(6), 1.0)))
    one = Cell(COLUMN, outcomes([folder], QUESTIONS), (tmp_path / "scores.jsonl",))
    assert "6/0/0/0 · 2 cut" in shown(one)
    assert "cut" not in shown(one, "a")
    table = Table("t", "T", (), (COLUMN,), (Row("m", "M", (one,)),))
    rows = list(csv.DictReader(io.StringIO(as_csv(table))))
    assert [(row["category"], row["scored"], row["cut"]) for row in rows[:2]] == [
        ("all", "6", "2"),
        ("answerable", "5", "2"),
    ]
