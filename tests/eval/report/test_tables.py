"""Tables: the four outcomes add up, failures are shown, published numbers get honest verdicts, every format says the same."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_loaders.schema import Case, Gold, Question
from eval.files.records import Prediction
from eval.files.store import Appender, write_lines
from eval.metrics.lexical import squad_token_f1
from eval.report import rendering
from eval.report.cell import ANSWERABLE, Asked, Cell, Column, Counts, asked, categories, outcomes
from eval.report.paper import latex
from eval.report.published import Published, find, read_published, verdict
from eval.report.rendering import EVIDENCE_INTERVAL, about_mean, as_csv, markdown, shown
from eval.report.tables import Measure, Row, Table, gap_bounds
from eval.statistics.stats import Estimate, Interval, Sampling
from scripts.setup.options import load_option

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


def test_what_a_table_knows_of_a_question_is_what_its_gold_says() -> None:
    gold = Gold(("x",), ("t1",), "a", answerable=False, groups=("early",))
    first, second = asked([Case("c", ("A",), (), ((Question("q", "?"), gold), (Question("p", "?"), Gold(("y",)))))])
    assert first == Asked("c", "q", "a", "c", False, evidence=True, groups=("early",))
    assert second == Asked("c", "p", "", "c", True, evidence=False)
    assert asked([Case("c", ("A",), (), ((Question("q", "?"), gold),), "home")])[0].cluster == "home"


def test_evidence_recall_stands_below_the_scores_where_questions_name_evidence(tmp_path: Path) -> None:
    detail = {"verbatim": 0.5, "ndcg": 0.25, "sources_per_item": 2.0}
    path = tmp_path / "evidence@10-1.jsonl"
    write_lines(path, [{"case_id": "c", "question_id": "q", "repeat": 0, "value": 1.0, "detail": detail}])
    row = Row("m", "M", (cell(tmp_path, {0: 1.0}),), evidence={COLUMN.dataset: path})
    text = markdown(Table("t", "T", (), (COLUMN,), (row,)))
    assert "## evidence@10 on Toy (means over questions that name evidence)" in text
    assert f"\n\n{EVIDENCE_INTERVAL}\n\n| Memory | covered |" in text
    assert "[by question], about these histories alone" in EVIDENCE_INTERVAL
    assert "| M | 1.000 | 0.500 | 0.250 | 2.000 | 1 |" in text
    write_lines(path, [])
    assert "## evidence" not in markdown(Table("t", "T", (), (COLUMN,), (row,)))


def test_a_question_counts_in_its_category_and_in_each_further_group(tmp_path: Path) -> None:
    grouped = tuple(
        replace(question, groups=("early", "odd") if n == 1 else ("early",) if n < 3 else ())
        for n, question in enumerate(QUESTIONS)
    )
    one = replace(cell(tmp_path, {0: 1.0, 1: 1.0, 2: 0.0, 3: 0.0}), column=replace(COLUMN, questions=grouped))
    assert categories(one.column) == ["all", ANSWERABLE, "a", "b", "c", "early", "odd"]
    counts = {name: one.counts(name).scored for name in ("all", "a", "early", "odd")}
    assert counts == {"all": 4, "a": 2, "early": 3, "odd": 1}
    early = one.estimate("early")
    assert early is not None
    assert early.mean == pytest.approx(2 / 3)


def test_scored_unscored_errored_and_not_reached_add_up(tmp_path: Path) -> None:
    one = cell(tmp_path, {0: 1.0, 1: 0.0, 2: None}, {0: "answered", 1: "aborted", 2: "answered", 3: "error"})
    assert one.counts() == Counts(6, 2, 1, 1, 2, 1)
    assert one.missing_share() == pytest.approx(4 / 6)
    assert "2/1/1/2" in shown(one)
    assert "1 aborted" in shown(one)


def test_a_mean_outside_of_a_table_says_what_it_weighs_alike_and_which_questions_it_lacks(tmp_path: Path) -> None:
    assert about_mean(cell(tmp_path, dict.fromkeys(range(6), 1.0))) == ""
    some = cell(tmp_path, {0: 1.0, 1: None}, {0: "answered", 1: "answered", 2: "error"})
    lacking = "Scored: 1 of 6 questions; 1 unscored, 1 errored, 3 not reached."
    assert about_mean(some) == lacking
    by_case = replace(some, column=replace(some.column, aggregate="case"))
    assert about_mean(by_case) == f"Means are those of tables: of case means, each of which weighs the same. {lacking}"


def test_what_is_not_scored_is_never_averaged_in_and_the_possible_range_is_shown(tmp_path: Path) -> None:
    one = cell(tmp_path, {0: 1.0, 1: 1.0, 2: None, 3: None})
    found = one.estimate()
    assert found is not None
    assert (found.mean, found.n) == (1.0, 2)
    assert one.bounds() == Interval(2 / 6, 1.0)
    assert "could be 0.333–1.000" in shown(one)


def test_a_verdict_that_is_missing_among_repeats_widens_the_possible_range(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"
    write_lines(
        path, [*lines(dict.fromkeys(range(6), 1.0)), *lines({**dict.fromkeys(range(6), 1.0), 4: None}, repeat=1)]
    )
    one = Cell(COLUMN, dict.fromkeys((each.key for each in QUESTIONS), frozenset({"answered"})), (path,))
    assert one.bounds() == Interval(pytest.approx(5.5 / 6), 1.0)
    assert "could be 0.917–1.000" in shown(one)
    other = cell(tmp_path / "other", dict.fromkeys(range(6), 0.0))
    assert gap_bounds(one, other) == Interval(pytest.approx(5.5 / 6), 1.0)


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
    assert one.scores["c1", "q5"] == 0.5
    assert one.spread() == pytest.approx(0.353553, abs=1e-5)
    assert shown(one).startswith("0.750 ± 0.354 ")
    assert shown(one, "c").startswith("0.750 ± 0.354 ")
    second = lines({n: float(n < 2) for n in range(4)}, repeat=1)
    write_lines(path, lines({n: float(n < 4) for n in range(6)}) + second)
    one = Cell(COLUMN, {(f"c{n % 2}", f"q{n}"): frozenset({"answered"}) for n in range(6)}, (path,))
    assert shown(one).startswith("0.500 ± 0.354 "), (
        "1 and 1/2 over the four questions that both repeats scored, not 2/3 and 1/2"
    )
    assert shown(one, "b").startswith("0.500 ± 0.000 "), "of the category alone"


def test_only_the_repeats_that_were_asked_for_are_averaged(tmp_path: Path) -> None:
    path = tmp_path / "scores.jsonl"  # an earlier run judged three times
    write_lines(path, [line for repeat in range(3) for line in lines({0: float(repeat == 0)}, repeat=repeat)])
    reached = {("c0", "q0"): frozenset({"answered"})}
    once, twice = (Cell(COLUMN, reached, (path,), repeats=repeats) for repeats in (1, 2))
    assert once.scores == {("c0", "q0"): 1.0}
    assert once.spread() is None
    assert twice.scores == {("c0", "q0"): 0.5}
    assert Cell(COLUMN, reached, (path,)).scores["c0", "q0"] == pytest.approx(1 / 3)


def test_below_five_cases_the_cell_says_how_many_there_are_and_prints_a_cautious_interval(tmp_path: Path) -> None:
    own = cell(tmp_path, {n: float(n < 3) for n in range(6)})
    ours = own.estimate()
    assert ours is not None
    assert ours.cautious is not None
    cautious = f"{ours.cautious.low:.3f}, {ours.cautious.high:.3f}"
    assert f"0.500 {{2 cases: {cautious}}} [0.188, 0.812] · 6/0/0/0" in shown(own)


def test_cases_that_do_not_differ_print_no_interval_of_no_width(tmp_path: Path) -> None:
    questions = tuple(Asked(f"c{n}", f"q{n}", "", f"c{n}", True, True) for n in range(6))
    path = tmp_path / "scores.jsonl"
    records = [{"case_id": f"c{n}", "question_id": f"q{n}", "repeat": 0, "value": 1.0} for n in range(6)]
    write_lines(path, records)
    one = Cell(Column("toy", "Toy", "judge", questions), {}, (path,))
    assert shown(one).startswith("1.000 {no spread: 0.476, 1.000} [0.610, 1.000]")


def test_the_mean_of_cases_weighs_cases_alike(tmp_path: Path) -> None:
    one = cell(tmp_path, {0: 1.0, 2: 1.0, 4: 1.0, 1: 0.0})
    by_case = replace(one, column=replace(one.column, aggregate="case")).estimate()
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


@pytest.mark.parametrize("aggregate", ["question", "category"])
def test_many_paired_differences_are_those_of_single_pairs(tmp_path: Path, aggregate: str) -> None:
    rng = np.random.default_rng(0)
    asked = tuple(Asked(f"c{n % 6}", f"q{n}", "abc"[n % 5 % 3], f"c{n % 6}", True, True) for n in range(40))
    values = [rng.integers(0, 2, 40).astype(float), rng.random(40), rng.random(40) * 9, np.zeros(40), np.zeros(40)]
    values.append(np.where(np.arange(40) == 7, np.nan, values[1]))  # a question without a score

    def scored(place: int, own: np.ndarray) -> Cell:
        records = [
            {
                "case_id": each.case_id,
                "question_id": each.question_id,
                "repeat": 0,
                "value": None if np.isnan(value) else value,
            }
            for each, value in zip(asked, own.tolist(), strict=True)
        ]
        write_lines(tmp_path / f"{place}.jsonl", records)
        return Cell(Column("toy", "Toy", "judge", asked, aggregate), {}, (tmp_path / f"{place}.jsonl",))

    cells = [scored(place, own) for place, own in enumerate(values)]
    for first in cells:
        for category in ("all", "a"):
            singly = [first.minus(each, category, test=False) for each in cells]
            for one, other in zip(singly, first.minus_each(cells, category), strict=True):
                assert one is not None
                assert other is not None
                assert (one.n, one.clusters, one.p) == (other.n, other.clusters, other.p)
                assert (one.by_case is None, one.by_question is None) == (
                    other.by_case is None,
                    other.by_question is None,
                )
                plain = [(gap.mean, *numbers(gap.by_question, gap.by_case, gap.sampling)) for gap in (one, other)]
                assert plain[0] == pytest.approx(plain[1], abs=1e-12)
    assert cells[0].minus_each([]) == []


def numbers(*parts: Interval | Sampling | None) -> list[float]:
    return [number for part in parts if part is not None for number in astuple(part)]


def published(value: float, low: float | None = None, high: float | None = None) -> Published:
    return Published("P", "T", "D", "B", "M", "", "All", "acc", value, low, high, None, "", str(value))


def test_a_qualifier_follows_a_verdict_that_compares_two_numbers(tmp_path: Path) -> None:
    known = published(0.5)
    qualified = replace(known, qualifier="prompts ours")
    for ours in (0.5, 0.55, 0.9):
        assert verdict(ours, qualified) == f"{verdict(ours, known)}, prompts ours"
    assert verdict(0.5, replace(qualified, why_not="other model")) == "not comparable: other model"
    assert verdict(None, qualified) == "missing"
    scored = cell(tmp_path, {0: 1.0, 1: 1.0}, published=replace(qualified, value=1.0))
    assert scored.verdict().endswith(", prompts ours")
    assert scored.verdict() in shown(scored)
    mean = Estimate(5.0, 100, Interval(4.0, 6.0), None, 10)
    measure = Measure(mean, replace(qualified, value=5.0))
    assert measure.verdict() == "equivalent, prompts ours"


def test_a_reason_not_to_compare_outweighs_everything() -> None:
    for why_not in ("stand-in", "subset"):
        assert verdict(0.5, replace(published(0.5), why_not=why_not)) == f"not comparable: {why_not}"
    assert verdict(None, published(0.5)) == "missing"
    assert verdict(0.5, None) == "not published"


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
    first = cell(tmp_path / "x", dict.fromkeys(range(6), 1.0), published=replace(published(0.9), why_not="stand-in"))
    second = cell(tmp_path / "y", dict.fromkeys(range(6), 0.0))
    rows = (
        Row("one", "One | two_%", (first,)),
        Row("two", "Two", (second,), ruled=True),
        Row("amem", "A-MEM", ("pending",)),
        Row("raptor", "RAPTOR", ("no data: python -m scripts fetch toy",)),
    )
    return Table("toy", "Toy table", ("made with care",), (COLUMN,), rows, "two", primary=frozenset({0}))


def test_nothing_is_left_out_of_the_printed_table(tmp_path: Path) -> None:
    text = markdown(table(tmp_path))
    for part in (
        "One \\| two_%",
        "pending",
        "no data: python -m scripts fetch toy",
        "0.9 · not comparable: stand-in",
        "made with care",
        "by category\n\n| Memory | all | answerable | a | b | c |",
    ):
        assert part in text
    assert "+1.000" in text


def test_a_table_with_squad_s_f1_on_option_letters_says_that_the_letter_a_is_an_article(tmp_path: Path) -> None:
    assert (squad_token_f1("(a)", "(a)"), squad_token_f1("(b)", "(b)")) == (0.0, 1.0)
    columns = tuple(Column.of(load_option("dataset", "personamem"), title, ()) for title in ("F1 (SQuAD)", "accuracy"))
    made = Table("t", "T", (), columns, ())
    assert [line for line in made.lines if "the reply (a) scores 0" in line] == made.notes == [columns[0].note]
    assert replace(made, columns=columns[1:]).lines == ()


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


def test_a_published_percentage_stands_on_the_scale_of_our_share(tmp_path: Path) -> None:
    number = Published("P", "T", "D", "B", "M", "", "All", "acc", 46.18, 45.0, 47.0, None, "", "46.18").divided(100.0)
    one = cell(tmp_path, {n: float(n < 3) for n in range(6)}, published=number)
    made = Table("toy", "Toy", (), (COLUMN,), (Row("one", "One", (one,)),))
    for text in (markdown(made), latex(made)):
        assert "0.4618" in text
        assert "46.18" not in text
    (first, *_) = csv.DictReader(io.StringIO(as_csv(made)))
    assert (first["published"], first["published_low"], first["published_high"]) == ("0.4618", "0.450000", "0.470000")


@pytest.mark.parametrize(
    ("printed", "scale", "expected"), [("46.18", 100.0, "0.4618"), ("5", 100.0, "0.05"), (".469", 1.0, ".469")]
)
def test_a_published_number_keeps_all_its_digits(printed: str, scale: float, expected: str) -> None:
    assert replace(published(float(printed)), printed=printed).divided(scale).printed == expected


def test_rows_that_were_not_asked_for_do_not_count_as_missing(tmp_path: Path) -> None:
    made = table(tmp_path)
    fresh = Row("fresh", "Fresh", (Cell(COLUMN, {}, ()),))
    every = replace(made, rows=(*made.rows, fresh))
    assert every.missing_share == 1.0
    assert replace(every, wanted=frozenset({"one"})).missing_share == 0.0
    assert replace(every, wanted=frozenset({"fresh"})).missing_share == 1.0


def test_latex_escapes_what_it_prints(tmp_path: Path) -> None:
    text = latex(table(tmp_path))
    assert r"two\_\%" in text
    assert text.count(r"\\") >= 5


def test_no_title_or_line_of_the_markdown_begins_html_or_another_line(tmp_path: Path) -> None:
    made, evil = table(tmp_path), "<img src=x onerror=alert(1)>\n# second"
    (first, *others), (column, *columns) = made.rows, made.columns
    rows = (replace(first, title=evil), *others)
    text = markdown(
        replace(made, title=evil, caption=(evil,), columns=(replace(column, title=evil), *columns), rows=rows)
    )
    assert "&lt;img src=x onerror=alert(1)> # second" in text
    assert "<img" not in text
    assert "\n# second" not in text


def test_outcomes_are_read_from_every_replicate(tmp_path: Path) -> None:
    for name, outcome in (("one", "error"), ("two", "answered")):
        record = {
            "case_id": "c0",
            "question_id": "q0",
            "answer": "It was",
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


def test_empty_answers_are_counted_in_the_cell_and_in_the_csv(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    for n in range(6):
        record = Prediction(f"c{n % 2}", f"q{n}", "" if n in (1, 2) else "It was", (), (), "answered")
        Appender(folder / "cases" / f"c{n % 2}" / "predictions.jsonl").add(record)
    write_lines(tmp_path / "scores.jsonl", lines({n: float(n not in (1, 2)) for n in range(6)}))
    cell = Cell(COLUMN, outcomes([folder], QUESTIONS), (tmp_path / "scores.jsonl",))
    assert "6/0/0/0 · 2 empty" in shown(cell)
    table = Table("t", "T", (), (COLUMN,), (Row("m", "M", (cell,)),))
    rows = list(csv.DictReader(io.StringIO(as_csv(table))))
    assert (rows[0]["scored"], rows[0]["cut"], rows[0]["empty"]) == ("6", "0", "2")


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


def test_dollars_of_a_run_are_added_up_before_they_are_rounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The table's JSON and the terminal print the same sum."""
    monkeypatch.setattr(rendering, "phases", lambda folder: [[0.00004], [0.00004, 0.00003], []])
    monkeypatch.setattr(rendering, "dollars", lambda phase, prices: phase)
    assert rendering.run_money(tmp_path, {}) == "0.0001"
    monkeypatch.setattr(rendering, "phases", lambda folder: [[0.5], [None]])
    assert rendering.run_money(tmp_path, {}) == "unknown"
    monkeypatch.setattr(rendering, "phases", lambda folder: [[], []])
    assert rendering.run_money(tmp_path, {}) == "–"
