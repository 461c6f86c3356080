"""Which pairs of a table are tested: the rows asked for in the primary metrics, whatever lies on the disk."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eval.files.store import RunError
from eval.report.paper import latex
from eval.report.rendering import as_csv, difference_text, markdown, shown
from eval.report.tables import CHOSEN, EXPLORATORY, NOT_ASKED, Pair, choose, composed, gap_bounds
from scripts.setup.options import load_option
from scripts.tables.layout import metrics_of
from tests.eval.report.pairs import score, two_data_sets


def test_rows_of_earlier_runs_on_the_disk_change_no_adjusted_p(tmp_path: Path) -> None:
    asked = frozenset({"bm25", "better"})
    beside = two_data_sets(tmp_path, wanted=asked)
    fresh = replace(beside, rows=tuple(row for row in beside.rows if row.name in asked))
    whole = two_data_sets(tmp_path)
    assert beside.pairs["better", 0] == fresh.pairs["better", 0]
    assert fresh.pairs["better", 0].p is not None
    assert {name for name, _ in beside.pairs} == {"better", "old", "worse"}
    assert beside.pairs["old", 0].untested == NOT_ASKED
    assert len(whole.tests[0][0]) == 3
    assert len(beside.tests[0][0]) == 1


def test_other_metrics_are_exploratory_and_the_primary_one_can_be_declared(tmp_path: Path) -> None:
    made = two_data_sets(tmp_path)
    assert made.testable == (0,)
    assert (made.pairs["better", 1].p, made.pairs["better", 1].untested) == (None, EXPLORATORY)
    other = two_data_sets(tmp_path, primary=frozenset({1, 2}))
    assert other.pairs["better", 0].untested == EXPLORATORY
    assert other.pairs["better", 1].p is not None


def test_a_second_data_set_costs_level_by_sidak(tmp_path: Path) -> None:
    one = two_data_sets(tmp_path, primary=frozenset({0})).pairs["better", 0].p
    both = two_data_sets(tmp_path, primary=frozenset({0, 1})).pairs["better", 0].p
    assert one is not None
    assert both == pytest.approx(1 - (1 - one) ** 2)


def test_fewer_than_five_histories_have_no_star_and_no_bare_p(tmp_path: Path) -> None:
    made = two_data_sets(tmp_path)
    pair = made.pairs["better", 2]
    assert pair.p is None
    assert pair.difference.p is not None
    assert pair.difference.p < 0.001, "the permutation over questions is sure of itself"
    assert ", p <0.001 about these 4 histories alone, n 48" in difference_text(pair)
    five = replace(pair, difference=replace(pair.difference, clusters=5), untested=EXPLORATORY)
    assert f"}}, {EXPLORATORY}, n 48" in difference_text(five)


def test_the_interval_by_case_stands_first_wherever_there_is_one(tmp_path: Path) -> None:
    made = two_data_sets(tmp_path)
    many, _, few = made.rows[1].cells
    assert "} [" in shown(many)
    assert re.search(r"\{4 cases: 0\.\d{3}, 0\.\d{3}\} \[", shown(few)), "the cautious one"
    assert "} [" in difference_text(made.pairs["better", 0])
    assert "mean {by case} [by question]" in markdown(made)
    ours = many.estimate()  # type: ignore[union-attr]
    assert ours is not None
    assert ours.by_case is not None
    assert f"[{ours.by_case.low:.3f}, {ours.by_case.high:.3f}]" in latex(made)
    line = next(
        line
        for line in csv.DictReader(as_csv(made).splitlines())
        if line["memory"] == "better" and line["clusters"] == "4"
    )
    told = few.estimate()  # type: ignore[union-attr]
    assert told is not None
    assert told.cautious is not None
    assert (line["case_low"], line["cautious_low"]) == ("", f"{told.cautious.low:.6f}")


def test_a_row_chosen_on_its_own_questions_gets_no_star_and_a_held_out_one_may(tmp_path: Path) -> None:
    made = two_data_sets(tmp_path)
    cells = {row.name: row.cells[0] for row in made.rows[1:]}
    for held_out, untested in ((False, CHOSEN), (True, "")):
        best = composed(cells, choose(cells, held_out=held_out)[0], held_out=held_out)  # type: ignore[arg-type]
        row = replace(made.rows[1], name="best", cells=(best, *made.rows[1].cells[1:]))
        pair = replace(made, rows=(*made.rows, row)).pairs["best", 0]
        assert pair.untested == untested
        assert (pair.p is None) == bool(untested)


def test_a_difference_has_bounds_where_answers_are_missing(tmp_path: Path) -> None:
    made = two_data_sets(tmp_path)
    column = made.columns[0]
    whole, other = score(tmp_path, column, "better"), score(tmp_path, column, "bm25")
    assert gap_bounds(whole, other) is None
    partly = score(tmp_path, column, "better", without=6)
    bounds, gap = gap_bounds(partly, other), whole.minus(other)
    assert bounds is not None
    assert gap is not None
    assert bounds.low < gap.mean < bounds.high + 1e-9, "it is the upper bound: the six would have been gains"
    assert bounds.high - bounds.low == pytest.approx(6 / 96)
    text = difference_text(Pair(gap, 0.01, bounds=bounds))
    assert f"could be {bounds.low:+.3f} to {bounds.high:+.3f}, n 96" in text


def test_the_bounds_weigh_questions_as_the_column_does(tmp_path: Path) -> None:
    column = replace(two_data_sets(tmp_path).columns[0], aggregate="case")
    cells = [score(tmp_path, column, "better", without=12), score(tmp_path, column, "bm25")]
    bounds = gap_bounds(*cells)
    assert bounds is not None
    assert bounds.high - bounds.low == pytest.approx(1 / 8), "the first of eight histories has no answer"


def test_a_metric_of_one_category_needs_no_published_name_for_it() -> None:
    split = {"metric": "mem0_f1", "category": "temporal", "by": {"all": None, "multi-hop": "Multi"}}
    (single, *several) = metrics_of({"dataset": "d", "metrics": [{"metric": "mem0_f1", "category": "temporal"}, split]})
    assert (single.category, single.published) == ("temporal", {})
    assert single.title == f"{single.whole_title}, temporal"
    assert [(each.category, each.published) for each in several] == [("all", {}), ("multi-hop", {"category": "Multi"})]


def primaries(group: Mapping[str, Any]) -> list[int]:
    return [place for place, metric in enumerate(metrics_of(group)) if metric.primary]


def test_a_table_declares_its_primary_metric_and_the_first_score_is_the_default() -> None:
    for group in load_option("table", "segtreemem_t4")["columns"]:
        assert primaries(group) == [0]
    timem = load_option("table", "timem_t2")["columns"][0]
    (place,) = primaries(timem)
    assert metrics_of(timem)[place].category == "all", "over all questions where the table prints that"
    marked = {
        "dataset": "d",
        "metrics": [{"cost": "held"}, {"metric": "mem0_f1"}, {"metric": "squad_f1", "primary": True}],
    }
    assert primaries(marked) == [2]
    marked["metrics"][1]["primary"] = True  # type: ignore[index]
    with pytest.raises(RunError, match="one metric can be primary"):
        primaries(marked)
    with pytest.raises(RunError, match="only a score can be primary"):
        primaries({"dataset": "d", "metrics": [{"cost": "held", "primary": True}]})
