"""The paper's table on one screen: published rows and columns, ours beside theirs, at any width."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from eval.report.cell import Cell, Column
from eval.report.tables import Row, Table
from eval.report.terminal import headings, paper_grid
from tests.eval.report.test_terminal import table


def lines_of(made: Table, width: int) -> list[str]:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(paper_grid(made, width, "Elsewhere."))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return [line.rstrip() for line in text.splitlines()]


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_grid_has_one_line_a_row_and_fits(tmp_path: Path, width: int) -> None:
    lines = lines_of(table(tmp_path), width)
    assert max(map(cell_len, lines)) <= width
    assert sum(line.startswith(("BM25", "Dense", "A memory")) for line in lines) == 3
    assert "Not shown: 1 row and 1 metric that the paper does not print. Elsewhere." in lines


def test_a_row_of_the_paper_that_nobody_asked_for_is_not_said_to_be_missing_in_the_paper(tmp_path: Path) -> None:
    made = table(tmp_path, wanted=frozenset({"bm25"}))
    rows = (made.rows[0], replace(made.rows[1], cells=("pending", "pending")), *made.rows[2:])
    said = "Not shown: 1 row that nobody asked for; 1 row and 1 metric that the paper does not print. Elsewhere."
    assert said in " ".join(lines_of(replace(made, rows=rows), 160))


def test_the_legend_names_the_interval_of_a_single_history(tmp_path: Path) -> None:
    said = "below five cases or where none differ [Wilson's on the effective number of questions], by question for a single one"
    assert said in " ".join(lines_of(table(tmp_path), 100))


def test_our_number_stands_beside_the_published_one_with_its_interval_and_verdict(tmp_path: Path) -> None:
    line = next(line for line in lines_of(table(tmp_path), 100) if line.startswith("BM25"))
    assert "0.250 [.121, .447]" in line
    assert line.split()[-2:] == ["0.469", "n/c"]


def test_a_row_below_the_rule_is_shown_when_it_is_asked_for(tmp_path: Path) -> None:
    made = replace(table(tmp_path), wanted=frozenset({"bm25", "twin"}))
    assert any("again" in line or "…2" in line for line in lines_of(made, 160))


def in_columns(made: Table, columns: Sequence[Column]) -> Table:
    """Three rows of a table with their first cell in each of these columns."""
    rows = []
    for row in made.rows[:3]:
        cell = row.cells[0]
        assert isinstance(cell, Cell)
        rows.append(Row(row.name, row.title, tuple(replace(cell, column=column) for column in columns)))
    return replace(made, columns=tuple(columns), rows=tuple(rows))


def test_many_columns_drop_intervals_first_and_then_follow_in_another_grid(tmp_path: Path) -> None:
    made = table(tmp_path)
    first = made.columns[0]
    columns = [replace(first, dataset=f"d{n}", title=f"Data {n}") for n in range(9)]
    lines = lines_of(in_columns(made, columns), 80)
    assert max(map(cell_len, lines)) <= 80
    assert sum(line.startswith("BM25") for line in lines) == 3
    assert not any("{" in line for line in lines)


def test_a_state_that_is_too_long_for_a_cell_is_said_once_below(tmp_path: Path) -> None:
    made = table(tmp_path)
    state = "no data: python -m scripts fetch locomo gets it"
    rows = [replace(row, cells=(state, row.cells[1])) for row in made.rows[1:3]]
    lines = lines_of(replace(made, rows=(made.rows[0], *rows)), 100)
    assert lines.count(state) == 1
    assert sum("see below" in line for line in lines) == 2


def test_headings_that_would_be_cut_to_the_same_text_are_split_after_their_common_beginning(tmp_path: Path) -> None:
    made = table(tmp_path)
    columns = [replace(made.columns[0], metric=f"judge, theirs, {kind}") for kind in ("multi-hop", "single-hop")]
    lines = lines_of(in_columns(made, columns), 80)
    (place,) = [place for place, line in enumerate(lines) if "hop" in line]
    assert lines[place].split() == ["multi-hop", "single-hop"]
    assert lines[place - 1].strip() == "judge, theirs"
    split = [("score of", "A"), ("score of", "B"), ("score of", "A"), ("", "n")]
    assert headings(["score of A", "score of B", "score of A", "n"], [9, 9, 9, 9]) == split


@pytest.mark.parametrize("width", [80, 100, 140])
def test_a_metric_that_is_cut_keeps_its_category_and_can_be_told_from_its_neighbours(
    tmp_path: Path, width: int
) -> None:
    made = table(tmp_path)
    titles = ("F1 (LoCoMo stems, all categories alike)", "ROUGE-1 F (LoCoMo's rougel_score)", "ROUGE-L F (stems)")
    metrics = [f"Mem0 judge (generous), {kind}" for kind in ("single-hop", "temporal", "answerable")]
    metrics += [f"{title}, answerable" for title in titles]
    lines = lines_of(in_columns(made, [replace(made.columns[0], metric=metric) for metric in metrics]), width)
    heads = [lines[: lines.index(line)] for line in lines if line.startswith("BM25")]
    shown = "\n".join("\n".join(head[-4:]) for head in heads)
    assert [shown.count(kind) for kind in ("single-hop", "temporal", "answerable")] == [1, 1, 4]
    assert all(name in shown for name in ("Mem0 judge", "F1 (", "ROUGE-1", "ROUGE-L"))


def test_a_comma_within_parentheses_begins_no_category() -> None:
    assert headings(["F1 (stems, alike)", "F1 (stems, alike), temporal"], [9, 12]) == [
        ("", "F1 (stem…"),
        ("F1 (stems, alike)", "temporal"),
    ]


def test_a_category_stands_below_its_metric_in_every_grid(tmp_path: Path) -> None:
    made = table(tmp_path)
    metrics = ("BLEU-1 (nltk method1)", "F1 (Mem0 sets)")
    columns = [
        replace(made.columns[0], metric=f"{name}, {kind}") for name in metrics for kind in ("answered", "temporal")
    ]
    lines = lines_of(in_columns(made, columns), 60)
    grids = "\n".join(lines).split("\n\n")
    below = [re.findall(r"answered|temporal", grid) for grid in grids]
    assert [name for kinds in below for name in kinds] == ["answered", "temporal"] * 2
    for grid, kinds in zip(grids, below, strict=True):
        assert not kinds or "BLEU-1 (" in grid or "F1 (Mem0" in grid
    assert len([kinds for kinds in below if kinds]) > 1, "narrow enough for several grids"


def test_the_star_is_explained_only_where_a_printed_row_was_compared(tmp_path: Path) -> None:
    explained = "*: differs from BM25 (adjusted p < .05)."
    made = table(tmp_path)
    tested = {key: replace(pair, p=0.5) for key, pair in made.pairs.items() if key[0] == "segtree"}
    for ruled, expected in ((False, True), (True, False)):  # below the rule it is not printed
        rows = tuple(replace(row, ruled=row.ruled or (ruled and row.name == "segtree")) for row in made.rows)
        shown = replace(made, rows=rows)
        vars(shown)["pairs"] = {**made.pairs, **tested}
        assert (explained in lines_of(shown, 100)) is expected
