"""The detectable difference: the oracle's, by simulation, and as tables print it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from eval.files.store import write_lines
from eval.report.cell import Asked, Cell, Column
from eval.report.rendering import markdown
from eval.report.tables import Row, Table, detectable_lines
from eval.statistics.power import DISAGREEING, detectable, planned
from eval.statistics.stats import Sampling, difference

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("n", [3, 5, 10, 40, 1986])
def test_the_detectable_difference_is_that_of_statsmodels(n: int) -> None:
    from statsmodels.stats.power import TTestPower

    ours = detectable(Sampling(n**-0.5, n - 1))
    assert TTestPower().power(ours, n, 0.05) == pytest.approx(0.8, abs=1e-9)
    assert ours == pytest.approx(TTestPower().solve_power(nobs=n, alpha=0.05, power=0.8), rel=1e-4), (
        "its solver stops early"
    )


def test_two_questions_have_a_detectable_difference_though_one_tail_is_too_thin_for_a_float() -> None:
    assert detectable(Sampling(1.0, 1)) == pytest.approx(16.334, abs=1e-3)


def test_a_true_difference_of_that_size_is_found_in_four_of_five_samples() -> None:
    rng = np.random.default_rng(0)
    homes = np.repeat(np.arange(8), 10)
    scatter = 0.1**2 + 0.4**2 / 10  # of a history's mean
    true = detectable(Sampling((scatter / 8) ** 0.5, 7))
    found = 0
    for _ in range(600):
        gap = true + np.repeat(rng.normal(0, 0.1, 8), 10) + rng.normal(0, 0.4, 80)
        p = difference(gap, np.zeros(80), homes, test=False).p_by_case
        found += p is not None and p < 0.05
    assert found / 600 == pytest.approx(0.8, abs=0.04)


def test_a_plan_counts_histories_from_five_on_and_questions_below() -> None:
    few, many = planned([100] * 4), planned([100] * 5)
    assert few is not None
    assert many is not None
    assert few[1].endswith("by question")
    assert many[1].endswith("by case")
    assert many[0] > few[0]  # more questions, but alike within a history
    assert planned([1]) is None
    three = planned([1, 2])
    assert three is not None
    assert three[0] == detectable(Sampling((DISAGREEING / 3) ** 0.5, 2)), "three questions leave two degrees of freedom"


def test_unequal_histories_detect_less_than_equal_ones() -> None:
    even, uneven = planned([100] * 10), planned([10] * 5 + [190] * 5)
    assert even is not None
    assert uneven is not None
    assert uneven[0] > even[0]


def table(folder: Path, rows: int, cases: int = 6) -> Table:
    """Rows whose answers are right by another rule each, over ten questions a case."""
    questions = tuple(Asked(f"c{n % cases}", f"q{n}", "", f"c{n % cases}", True, False) for n in range(10 * cases))
    column = Column("toy", "Toy", "judge", questions)
    made = []
    for row in range(rows):
        path = folder / f"{row}.jsonl"
        write_lines(
            path,
            [
                {
                    "case_id": one.case_id,
                    "question_id": one.question_id,
                    "repeat": 0,
                    "value": float(n % 7 % (row + 2) == 0),
                }
                for n, one in enumerate(questions)
            ],
        )
        reached = {(one.case_id, one.question_id): frozenset({"answered"}) for one in questions}
        made.append(Row(f"r{row}", f"R{row}", (Cell(column, reached, (path,)),)))
    return Table("toy", "Toy table", (), (column,), tuple(made), "r0", primary=frozenset({0}))


def test_a_tested_column_without_data_has_no_line() -> None:
    assert (
        detectable_lines(
            Table("toy", "Toy table", (), (Column("toy", "Toy", "judge", ()),), (), primary=frozenset({0}))
        )
        == []
    )


def test_a_table_says_what_its_pairs_detect_at_the_level_of_its_stars(tmp_path: Path) -> None:
    made = table(tmp_path, 3)
    samplings = [pair.difference.sampling for pair in made.pairs.values() if pair.difference.sampling]
    error = (sum(sampling.error**2 for sampling in samplings) / 2) ** 0.5
    (_, tested) = made.tests[0]
    assert tested.alpha < 0.05
    line = detectable_lines(made)[0]
    assert line == (
        "Detectable difference between two rows of Toy, judge, at 80% power (60 questions, 6 cases): "
        f"{detectable(Sampling(error, 5.0), tested.alpha):.3f} "
        "(at the level of 2 pairs, t by history, max-T over all sign flips of the 6 histories)."
    )
    assert f"- {line}" in markdown(made)


def test_a_table_without_pairs_says_what_it_assumes_for_all_rows_asked_for(tmp_path: Path) -> None:
    line = detectable_lines(table(tmp_path, 1))[0]
    assert "assumed: the two differ on 30% of the questions, intraclass correlation 0.02; by case; for 1 pair" in line
    line = detectable_lines(table(tmp_path, 2, cases=3))[0]
    assert "(30 questions, 3 cases): none; differences are about these 3 histories alone." in line
    assert planned([60] * 10, 0.05 / 33)[0] > planned([60] * 10)[0]  # type: ignore[index]


def test_adjusted_ps_stand_beside_the_raw_ones_with_their_family(tmp_path: Path) -> None:
    made = table(tmp_path, 4)
    text = markdown(made)
    assert "Toy · judge: Adjusted p: 3 pairs, t by history, max-T over all sign flips of the 6 histories." in text
    pair = made.pairs["r1", 0]
    assert pair.p is not None
    assert f", adjusted {'<0.001' if pair.p < 0.001 else f'{pair.p:.3f}'}, n 60" in text


@pytest.mark.parametrize(("freedom", "alpha"), [(1.0, 0.001), (4.0, 0.05 / 102), (8.4, 1e-4), (499.0, 1e-6)])
def test_detectable_differences_at_the_levels_of_families_have_the_power_that_they_claim(
    freedom: float, alpha: float
) -> None:
    from scipy import stats

    shift = detectable(Sampling(1.0, freedom), alpha)
    limit = stats.t.ppf(1 - alpha / 2, freedom)
    assert stats.nct.sf(limit, freedom, shift) == pytest.approx(0.8, abs=1e-3)


def test_a_difference_of_more_than_one_is_called_none(tmp_path: Path) -> None:
    made = table(tmp_path, 1)
    few = replace(made.columns[0], questions=made.columns[0].questions[:6])
    line = detectable_lines(replace(made, columns=(few,), rows=made.rows * 34))[0]
    assert "(6 questions, 6 cases): none" in line
    assert "for 33 pairs on 1 data set)" in line
