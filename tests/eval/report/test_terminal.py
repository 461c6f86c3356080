"""The table in a terminal: it fits, it says what the Markdown says, and failures stand where there are any."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from eval.files.store import read_lines, write_lines
from eval.report.cell import Asked, Cell, Column
from eval.report.counted import counted
from eval.report.published import Published, brief
from eval.report.rendering import markdown
from eval.report.tables import UNLIKE, Measure, Row, Table
from eval.report.terminal import brief_span, shortened, terminal
from eval.statistics.stats import Estimate, Interval, preferred_interval
from tests.eval.report.pairs import two_data_sets

CASES, PER_CASE = 6, 8
QUESTIONS = tuple(
    Asked(f"c{case}", f"q{case}-{number}", "", f"c{case}", True, True)
    for case in range(CASES)
    for number in range(PER_CASE)
)
JUDGE = Column("toy", "Toy", "judge, correct at 2", QUESTIONS)
F1 = Column("toy", "Toy", "F1 (official)", QUESTIONS)
LONG = "A memory of segments with propagation from the top down"


def cell(folder: Path, column: Column, share: float, **more: Any) -> Cell:
    """The first `share` of each case's questions right; None answers are left out."""
    path = folder / f"{column.metric}-{share}.jsonl"
    missing = more.pop("missing", 0)
    values = [float(int(question.question_id.split("-")[1]) < share * PER_CASE) for question in QUESTIONS]
    asked = list(zip(QUESTIONS, values, strict=True))[missing:]
    keys = [{"case_id": one.case_id, "question_id": one.question_id, "repeat": 0, "value": v} for one, v in asked]
    write_lines(path, keys)
    reached = {one.key: frozenset({"answered"}) for one, _ in asked}
    return Cell(column, reached, (path,), **more)


def published(value: float) -> Published:
    return Published("P", "T", "D", "B", "M", "", "All", "acc", value, None, None, None, "", f"{value}")


def table(folder: Path, **more: Any) -> Table:
    stand_in = {"published": replace(published(0.469), why_not="stand-in")}
    rows = (
        Row("bm25", "BM25", (cell(folder, JUDGE, 0.25, **stand_in), cell(folder, F1, 0.25))),
        Row("dense", "Dense", (cell(folder, JUDGE, 0.3, published=published(0.9)), cell(folder, F1, 0.3))),
        Row("segtree", LONG, (cell(folder, JUDGE, 1.0, published=published(1.0)), cell(folder, F1, 0.5, missing=3))),
        Row("twin", f"{LONG}, again", ("pending", "pending"), ruled=True),
    )
    use = "only testing the machinery; stand-ins fill memory, reader, judge, embedder."
    fields: dict[str, Any] = {"use": use, "primary": frozenset({0}), **more}
    return Table("toy", "Toy table", ("made with care",), (JUDGE, F1), rows, "bm25", **fields)


def lines_of(made: Table, width: int, *, wide: bool = False) -> list[str]:
    """What a console of that width without colours prints."""
    console = Console(file=io.StringIO(), width=1000 if wide else width, color_system=None, soft_wrap=wide)
    console.print(terminal(made, width, wide=wide))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return [line.rstrip() for line in text.splitlines()]


@pytest.mark.parametrize("width", [80, 100, 160])
def test_every_line_fits_and_no_row_takes_two(tmp_path: Path, width: int) -> None:
    lines = lines_of(table(tmp_path), width)
    assert max(map(cell_len, lines)) <= width
    assert sum(line.startswith("BM25") for line in lines) == 2  # one a metric
    assert sum(line.startswith("A mem") for line in lines) == 4
    assert lines[1] == "Use: only testing the machinery; stand-ins fill memory, reader, judge, embedder."


@pytest.mark.parametrize("width", [80, 100, 160])
def test_names_that_differ_stay_different_when_they_are_cut(tmp_path: Path, width: int) -> None:
    names = [
        re.split(r"\s+(?=\d|pending)", line)[0] for line in lines_of(table(tmp_path), width) if line[:5] == "A mem"
    ]
    assert len(set(names)) == 2
    assert all("…" in name for name in names) == (width < 160)


@pytest.mark.parametrize(("width", "wide"), [(80, False), (100, False), (160, False), (100, True)])
def test_the_terminal_and_the_markdown_print_the_same_numbers(tmp_path: Path, width: int, wide: bool) -> None:
    made = table(tmp_path)
    text, whole = "\n".join(lines_of(made, width, wide=wide)), markdown(made)
    for row in made.rows[:3]:
        for place, one in enumerate(row.cells):
            assert isinstance(one, Cell)
            ours = one.estimate()
            assert ours is not None
            interval = preferred_interval(ours)
            assert interval is not None
            mean, ends = f"{ours.mean:.3f}", [f"{end:.3f}" for end in (interval.low, interval.high)]
            assert re.search(rf"{mean} [{{\[]{', '.join(end.removeprefix('0') for end in ends)}[}}\]]", text)
            assert re.search(rf"\| {mean} .*(no spread: |cases: )?{', '.join(ends)}[}}\]]", whole)
            if (pair := made.pairs.get((row.name, place))) is not None:
                gap = f"{pair.difference.mean:+.3f}"
                assert gap in text
                assert gap in whole
                if pair.p is not None:
                    assert ("<.001" if pair.p < 0.001 else f"{pair.p:.3f}") in text
                    assert ("<0.001" if pair.p < 0.001 else f"{pair.p:.3f}") in whole
            if one.published is not None:
                verdict = one.verdict()
                assert f"{one.published.printed} · {verdict}" in whole
                word = "n/c" if verdict.startswith("not comparable") else brief(verdict)
                assert re.search(rf"{re.escape(one.published.printed)} +{word}", text)


def test_failures_are_named_where_there_are_any_and_nowhere_else(tmp_path: Path) -> None:
    lines = lines_of(table(tmp_path), 160)
    notes = [line for line in lines if "not reached" in line]
    assert notes == [f"  {LONG}: 3 not reached of 48; could be 0.438–0.500"]
    assert "Incomplete: 6.2% of a cell's scores are missing." in lines
    whole = replace(table(tmp_path), rows=table(tmp_path).rows[:2])
    assert not [line for line in lines_of(whole, 160) if "not reached" in line or line.startswith("Incomplete")]


def test_answers_that_one_of_several_builds_lacks_are_counted(tmp_path: Path) -> None:
    first, second = (cell(tmp_path, JUDGE, share, missing=3 * (share == 1.0)) for share in (0.25, 1.0))
    both = replace(first, score_files=(*first.score_files, *second.score_files))
    assert both.counts().scored == 48
    made = replace(table(tmp_path), columns=(JUDGE,), rows=(Row("bm25", "BM25", (both,)),))
    lines = lines_of(made, 160)
    assert "  BM25: 3 of 96 answers of 2 builds not scored; could be 0.594–0.625" in lines
    assert "3 of 96 answers of 2 builds not scored" in markdown(made)
    assert made.missing_share == 3 / 96, "what max_unscored is compared with"
    assert "Several builds: a score is their mean; tokens and $ are those of the first." in lines
    assert not [line for line in lines_of(table(tmp_path), 160) if "Several builds" in line]


def test_verdicts_that_only_some_repeats_gave_are_counted(tmp_path: Path) -> None:
    twice = cell(tmp_path, JUDGE, 0.75, repeats=2)
    (path,) = twice.score_files
    first = read_lines(path)
    write_lines(path, [*first, *({**line, "repeat": 1, "value": line["value"] or None} for line in first)])
    assert twice.counts().scored == 48
    made = replace(table(tmp_path), columns=(JUDGE,), rows=(Row("bm25", "BM25", (twice,)),))
    assert "  BM25: 12 of 96 verdicts missing, 2 an answer; could be 0.750–0.875" in lines_of(made, 160)
    assert "12 of 96 verdicts missing, 2 an answer" in markdown(made)
    assert made.missing_share == 12 / 96, "what max_unscored is compared with"


def test_the_legend_says_that_errored_questions_are_in_the_mean_tokens(tmp_path: Path) -> None:
    whole = cell(tmp_path, JUDGE, 0.25)
    failed = next(iter(whole.outcomes))
    partly = replace(whole, outcomes={**whole.outcomes, failed: frozenset({"error"})})
    partly.__dict__["scores"] = {key: score for key, score in whole.scores.items() if key != failed}
    made = replace(table(tmp_path), columns=(JUDGE,), rows=(Row("bm25", "BM25", (partly,)),))
    said = "errored: without a score, but in the tokens a question, often with few or none."
    assert said in lines_of(made, 160)
    assert said not in lines_of(table(tmp_path), 160)


def test_the_legend_says_when_an_interval_is_wilsons(tmp_path: Path) -> None:
    alike = replace(table(tmp_path), columns=(JUDGE,), rows=(Row("none", "None", (cell(tmp_path, JUDGE, 0.0),)),))
    text = " ".join(lines_of(alike, 160))
    assert re.search(r"0\.000 \[\.000, \.\d+\]", text), "six cases, all alike"
    assert "below five cases, or where none differ, [Wilson's" in text


def test_only_the_rows_asked_for_are_tested_and_only_in_the_primary_metric(tmp_path: Path) -> None:
    made = two_data_sets(tmp_path, wanted=frozenset({"bm25", "better"}))
    text = "\n".join(lines_of(made, 100))
    assert re.search(r"better +0\.\d+ \{\.\d+, \.\d+\} +\+0\.\d{3}\* \(<?\.?[\d.]+", text)
    assert re.search(r"old +0\.\d+ \{\.\d+, \.\d+\} +\+0\.\d{3}$", text, re.MULTILINE), "on the disk, but not asked for"
    assert "F1 · exploratory" in text
    assert "judge · Δ about these 4 histories alone" in text
    assert "No p, no star: exploratory, not asked for." in text
    assert "~" not in text


def test_an_uneven_interval_is_printed_with_both_its_ends() -> None:
    assert brief_span(Interval(0.0, 0.074)) == "[.000, .074]"
    assert brief_span(Interval(0.0, 0.354), brackets="{}") == "{.000, .354}"
    assert brief_span(Interval(-0.02, 1.0)) == "[-.020, 1.000]"
    assert brief_span(Interval(10.25, 1200.5), 1) == "[10.2, 1200.5]"


def test_a_data_set_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    said = "no data: python -m scripts fetch toy"
    rows = tuple(replace(row, cells=(said, said)) for row in table(tmp_path).rows)
    lines = lines_of(replace(table(tmp_path), rows=rows), 100)
    assert [line for line in lines if "no data" in line] == [said]
    assert not [line for line in lines if line.startswith("BM25")]


def test_rows_that_nobody_asked_for_and_nothing_scored_are_left_out_and_said(tmp_path: Path) -> None:
    lines = lines_of(table(tmp_path, wanted=frozenset({"bm25", "dense"})), 100)
    assert "Rows that were not asked for and have no score are left out." in lines
    assert not [line for line in lines if "pending" in line]
    assert [line for line in lines if line.startswith("A mem")]  # scored by an earlier run


def test_quantities_keep_their_digits_and_text_in_brackets_is_no_markup(tmp_path: Path) -> None:
    tokens = Column("toy", "Toy [red]set[/red]", "cost recalled_tokens", ())
    row = Row("one", "One [bold]", (Measure(Estimate(1234.5678, 5, None, None, 0), published(1200.0)),))
    lines = lines_of(Table("toy", "Toy", (), (tokens,), (row,)), 100)
    assert any(re.match(r"One \[bold\] +1234\.6 +1200\.0 +equivalent", line) for line in lines)
    assert any(line.startswith("Toy [red]set[/red] ─") for line in lines)


@pytest.mark.slow
@given(st.lists(st.text(st.characters(exclude_categories=["Cc", "Cs", "Mn"]), max_size=30), unique=True, max_size=12))
def test_cut_names_fit_and_differ(names: list[str]) -> None:
    cut = shortened(names, 12)
    assert all(cell_len(name) <= 12 for name in cut)
    assert len(set(cut)) == len(set(names))


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (1, "history", "1 history"),
        (4, "history", "4 histories"),
        (0, "day", "0 days"),
        (1, "question", "1 question"),
        (2, "most telling question", "2 most telling questions"),
    ],
)
def test_a_count_of_one_has_a_singular_noun(count: int, noun: str, text: str) -> None:
    assert counted(count, noun) == text


def test_the_ends_of_names_that_begin_alike_are_kept() -> None:
    assert shortened(["A long name, k=5", "A long name, k=10", "Short"], 12) == [
        "A long…, k=5",
        "A long… k=10",
        "Short",
    ]


def test_answers_of_others_have_no_star_against_a_row_of_stand_ins(tmp_path: Path) -> None:
    made = two_data_sets(tmp_path)
    assert made.pairs["better", 0].p is not None
    bm25, *rest = made.rows
    engines = replace(made, rows=(replace(bm25, by_stand_ins=True), *rest))
    assert (engines.pairs["better", 0].p, engines.pairs["better", 0].untested) == (None, UNLIKE)
    assert "No p, no star: one side by stand-ins." in lines_of(engines, 100)
    alike = replace(engines, rows=tuple(replace(row, by_stand_ins=True) for row in engines.rows))
    assert alike.pairs["better", 0].p is not None


def test_p_is_by_case_where_there_are_cases_enough(tmp_path: Path) -> None:
    rows = []
    for name, shares in {"bm25": [0.0] * CASES, "mine": [0.5, 0.0, 0.125, 0.25, 0.0, 0.375]}.items():
        path = tmp_path / f"{name}.jsonl"
        values = [float(int(q.question_id.split("-")[1]) < shares[int(q.case_id[1:])] * PER_CASE) for q in QUESTIONS]
        keys = [{"case_id": q.case_id, "question_id": q.question_id, "repeat": 0} for q in QUESTIONS]
        write_lines(path, [{**key, "value": value} for key, value in zip(keys, values, strict=True)])
        rows.append(Row(name, name, (Cell(JUDGE, {}, (path,)),)))
    made = Table("toy", "Toy", (), (JUDGE,), tuple(rows), "bm25", primary=frozenset({0}))
    gap = made.pairs["mine", 0].difference
    assert gap.p_by_case is not None
    assert f"({gap.p_by_case:.3f}, {made.pairs['mine', 0].p:.3f})" in "\n".join(lines_of(made, 100))
