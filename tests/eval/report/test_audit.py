"""Recomputed totals, possible fractions, intervals and repetitions, on numbers worked by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from eval.report.audit import (
    AuditedRow,
    Relation,
    Value,
    audit_differences,
    audit_intervals,
    audit_lines,
    audit_relations,
    audit_repetitions,
    average_verdict,
    best_order,
    feasible,
    fewest_runs,
    infeasible_cells,
    interval_methods,
    one_question_less,
    reordered,
    repairs,
    weighted_mean,
)
from eval.report.published import Published


def line(
    cells: str, total: str, counts: tuple[int, ...], name: str = "bm25", scale: int = 1, runs: int = 1
) -> AuditedRow:
    values = tuple(Value(cell.rstrip("!"), still=cell.endswith("!")) for cell in cells.split())
    names = tuple("abcdef"[: len(values)])
    return AuditedRow("Table 1", "set", name, names, counts, values, Value(total), scale, True, runs)


def printed(value: str, metric: str = "accuracy", **fields: str | float | None) -> Published:
    base = Published(
        "Paper", "T1", "set", "model", "ours", "", "All", metric, float(value), None, None, None, "", value
    )
    return replace(base, **fields)  # type: ignore[arg-type]


def test_the_mean_is_weighted_by_questions() -> None:
    assert weighted_mean(line("0.5 0.9", "0.6", (3, 1))) == Fraction(6, 10)


@pytest.mark.parametrize(
    ("total", "verdict"),
    [("0.600", "OK"), ("0.601", "OK within rounding"), ("0.602", "MISMATCH"), ("0.598", "MISMATCH")],
)
def test_a_total_may_be_off_by_what_rounding_explains(total: str, verdict: str) -> None:
    # cells to three digits move the mean by at most 0.0005, and the total is rounded by as much
    assert average_verdict(line("0.500 0.900", total, (3, 1))) == verdict
    assert average_verdict(line("0.500 0.901", "0.700", (1, 1))) == "OK", "0.7005 may be rounded to it"


def test_only_some_values_are_right_answers_of_n() -> None:
    assert feasible(Value("0.333"), 3)
    assert not feasible(Value("0.332"), 3)
    assert feasible(Value("78.18"), 55, 100)  # 43 of 55
    assert not feasible(Value("78.18"), 56, 100)
    assert feasible(Value("0.6"), 8)  # 5/8 = 0.625


def test_repetitions_make_more_values_possible() -> None:
    found = line("0.25 0.50", "0.38", (2, 2))
    assert infeasible_cells(found, 1) == ["a"]
    assert fewest_runs(found) == 2


def test_a_cell_that_never_varied_is_a_fraction_of_one_run() -> None:
    found = line("80.00! 50.00", "60.00", (56, 100), scale=100, runs=5)
    assert infeasible_cells(found, 5) == ["a"]
    assert infeasible_cells(replace(found, cells=(Value("80.00"), Value("50.00"))), 5) == []


def test_an_unvarying_cell_may_ask_for_one_question_less() -> None:
    found = one_question_less(line("80.00! 50.00", "60.00", (56, 100), scale=100, runs=5))
    assert found is not None
    assert found.counts == (55, 100)
    assert one_question_less(line("80.00 50.00", "60.00", (56, 100), scale=100, runs=5)) is None


def test_a_single_cell_that_would_mend_the_total_is_named() -> None:
    found = repairs(line("0.50 0.90", "0.70", (3, 1)))
    assert found == {"a": Fraction(19, 30)}  # b would have to be 1.3
    (finding,) = audit_lines([line("0.50 1.00", "0.75", (10, 10)), line("0.50 1.00", "0.70", (10, 10), "dense")])
    assert (finding.kind, finding.row) == ("average", "set · dense")
    assert "a 0.400, b 0.900" in finding.text


def test_rows_that_a_corrected_total_would_pass_are_named() -> None:
    lines = [line("0.50 1.00", "0.75", (2, 2), "above"), line("0.50 1.00", "0.90", (2, 2), "wrong")]
    lines.append(line("0.80 0.80", "0.80", (10, 10), "between"))
    said = [one.text for one in audit_lines(lines) if one.kind == "average"]
    assert len(said) == 1
    assert "with 0.750 it would be below between" in said[0]


SWAPPED = [line("0.5 0.9", "0.8", (3, 1), "a"), line("0.1 0.5", "0.4", (3, 1), "b")]


def test_counts_under_the_wrong_headings_are_put_in_order() -> None:
    assert best_order(SWAPPED) == (1, 3)
    lines, findings = reordered(SWAPPED)
    assert [one.counts for one in lines] == [(1, 3), (1, 3)]
    assert [one.kind for one in findings] == ["heading"]
    assert "0 of 2 totals" in findings[0].text


def test_a_row_of_equal_cells_says_nothing_about_the_order_of_the_headings() -> None:
    rows = [
        line("0.5 0.9", "0.6", (3, 1), "right"),
        line("0.1 0.5", "0.4", (3, 1), "wrong"),
        line("0 0", "0", (3, 1), "none"),
    ]
    assert reordered(rows) == (rows, [])
    lines, (finding,) = reordered([*SWAPPED, *rows[2:]])
    assert "0 of 2 totals" in finding.text
    assert {one.counts for one in lines} == {(1, 3)}


def test_headings_stand_when_most_totals_agree_with_them() -> None:
    agreeing = [line("0.5 0.9", "0.6", (3, 1), str(number)) for number in range(2)]
    lines, findings = reordered([*agreeing, *SWAPPED[:1]])
    assert not findings
    assert {one.counts for one in lines} == {(3, 1)}


def test_intervals_are_told_apart() -> None:
    # 190 of 300: Wald 0.6333 ± 0.0545, Wilson [0.5774, 0.6860]
    assert interval_methods(0.633, 0.579, 0.688, 300, 0.0005) == {"Wald"}
    assert interval_methods(0.633, 0.5797, 0.688, 300, 0.0005) == set(), (
        "beyond what rounding of share and end explains"
    )
    assert interval_methods(0.633, 0.577, 0.686, 300, 0.0005) == {"Wilson"}
    assert interval_methods(0.669, 0.618, 0.720, 300, 0.0005) == set()


def test_an_interval_of_no_kind_names_the_row_that_it_may_be_copied_from() -> None:
    numbers = [printed("0.669", low=0.618, high=0.72), printed("0.720", low=0.669, high=0.771, variant="best")]
    findings = audit_intervals(numbers, {"set": 300}, ["accuracy"])
    assert [one.row for one in findings] == ["set, model, accuracy · ours"]
    assert findings[0].text.endswith("its value or ends are those of ours / best")
    assert audit_intervals(numbers, {"set": 300}, []) == []


def test_a_table_with_two_kinds_of_interval_is_reported() -> None:
    numbers = [printed("0.633", low=0.579, high=0.688), printed("0.633", low=0.577, high=0.686, variant="b")]
    assert [one.text for one in audit_intervals(numbers, {"set": 300}, ["accuracy"])] == [
        "two kinds of interval in one table: 1 only Wald, 1 only Wilson"
    ]


def test_differences_are_taken_again() -> None:
    numbers = [
        printed("0.639", variant="Original"),
        printed("0.538", variant="Permuted"),
        printed("-0.111", "delta_accuracy", variant="Delta"),
        printed("75.30", "LLJ", table="T9", variant="one"),
        printed("73.64", "LLJ", table="T9", variant="two"),
        printed("-1.66", "delta_LLJ", table="T9", variant="two"),
    ]
    assert [str(one) for one in audit_differences(numbers)] == [
        "Paper T1: set · ours / Delta: -0.111 printed, 0.538 - 0.639 = -0.101"
    ]


def test_a_number_printed_twice_must_agree_up_to_rounding() -> None:
    def setting(one: Published) -> tuple[str, str, str, str, str, str, str]:
        return one.paper, one.dataset, one.backbone, one.method, "", one.category, one.metric

    same = [printed("0.35"), printed("0.354", table="T2")]
    assert audit_repetitions(same, setting) == []
    assert audit_repetitions([*same, printed("0.353", table="T3", variant="x")], setting) == []  # 0.35 is as near
    numbers = [printed("2879"), printed("2897", table="T2"), printed("2897", method="other")]
    assert [one.text for one in audit_repetitions(numbers, setting)] == [
        "2879, but 2897 in Paper T2 (ours); 2897 is also other of Paper T1"
    ]


def test_a_relation_between_metrics_of_a_row_is_computed() -> None:
    ratio = Relation("mean", ("all", "groups"), lambda a, b: a / b, "all / groups")
    row = [printed("2897", "all"), printed("642", "groups"), printed("4.48", "mean")]
    assert [one.text for one in audit_relations(row, [ratio])] == ["mean 4.48, but all / groups gives 4.5125"]
    assert audit_relations([printed("2879", "all"), *row[1:]], [ratio]) == []
    assert audit_relations(row, [replace(ratio, methods=("theirs",))]) == []


def test_digits_count_as_they_are_printed() -> None:
    assert Value("61.20").half == Fraction(1, 200)
    assert Value("-0.111").exact == Fraction(-111, 1000)
    assert Value("2879").half == Fraction(1, 2)


def test_means_such_as_f1_need_not_be_right_answers_of_n() -> None:
    found = line("0.501 0.901", "0.601", (3, 1))
    assert {one.kind for one in audit_lines([found])} == {"fraction"}
    assert "total 0.601 is no k/4" in [one.text for one in audit_lines([found])]
    assert audit_lines([replace(found, counted=False)]) == []
