"""The verdict on a published number about the same questions: its error is that of runs and of printed digits, not of histories."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from statistics import stdev

import numpy as np
import pytest

from eval.files.store import write_lines
from eval.report.cell import Asked, Cell, Column
from eval.report.paper import latex
from eval.report.published import (
    DIFFERS,
    FLIPS,
    OPEN,
    Published,
    Runs,
    assumed_runs,
    between_builds,
    brief,
    builds_needed,
    decided,
    gap_error,
    measured_runs,
    open_gaps,
    verdict,
)
from eval.report.rendering import shown
from eval.report.tables import Measure, Row, Table, verdict_lines
from eval.statistics.stats import Estimate, Interval
from tests.rigs.coverage.verdicts import rows

ONE = Runs(1, FLIPS / 2 / 1540, inf, measured=False)
"""A build of the answerable questions of LoCoMo, with scores of 0 or 1."""


def published(value: float, low: float | None = None, high: float | None = None, std: float | None = None) -> Published:
    return Published("P", "T", "D", "B", "M", "", "All", "acc", value, low, high, std, "", f"{value:.3f}")


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        (0.500, "equivalent"),
        (0.507, "equivalent"),
        (0.511, "cannot tell: +1.1 [-0.3, +2.5], would need 5 builds if the gap stays"),
        (0.470, "differs by -3.0 [-4.4, -1.6]"),
    ],
)
def test_a_gap_is_equivalent_or_differs_or_says_how_many_builds_would_tell(ours: float, expected: str) -> None:
    assert verdict(ours, published(0.5), runs=ONE) == expected


def test_a_small_gap_that_is_surely_not_zero_prints_both_facts() -> None:
    said = verdict(0.512, published(0.5), runs=Runs(3, 1e-6, inf, measured=True))
    assert said == "equivalent, differs by +1.2 [+1.0, +1.4]"
    assert brief(said) == "equivalent"
    others = {"differs by -3.0 [-4.4, -1.6]": DIFFERS, "cannot tell: +1.1": OPEN, "pending": "pending"}
    assert [brief(other) for other in others] == [*others.values()]


def test_a_percentage_is_compared_on_our_scale() -> None:
    share = Published(*"PTDBM", "", "All", "a", 75.3, 74.3, 76.3, 0.5, "", "75.30").divided(100.0)
    assert (share.value, share.low, share.high, share.std) == pytest.approx((0.753, 0.743, 0.763, 0.005))
    assert share.printed == "0.7530"
    assert verdict(0.7530, share, runs=ONE) == "equivalent"


def test_the_difference_of_histories_plays_no_part() -> None:
    few = Runs(1, FLIPS / 2 / 200, inf, measured=False)  # five histories of 40 questions
    assert verdict(0.5, published(0.53), runs=few).startswith("cannot tell")  # never equivalent by ignorance
    assert verdict(0.5, published(0.56), runs=few).startswith("differs")


def test_a_published_deviation_counts_and_a_published_interval_bounds_it() -> None:
    said = {
        name: verdict(0.47, number, runs=ONE)
        for name, number in {
            "none": published(0.5),
            "no spread": published(0.5, std=0.0),
            "wide": published(0.5, std=0.03),
            "wilson": published(0.5, 0.475, 0.525),
            "narrow": published(0.5, 0.498, 0.502),
        }.items()
    }
    assert (
        said["none"] == said["wilson"] == "differs by -3.0 [-4.4, -1.6]"
    )  # an interval by question is about questions
    assert said["no spread"] == "differs by -3.0 [-4.0, -2.0]"
    assert said["wide"].startswith("cannot tell: -3.0 [-9.0, +3.0]")
    assert said["narrow"] == "differs by -3.0 [-4.0, -2.0]"


def test_missing_answers_widen_the_gap_by_what_they_could_be() -> None:
    assert verdict(0.5, published(0.5), runs=ONE, span=Interval(0.498, 0.502)) == "equivalent"
    said = verdict(0.5, published(0.5), runs=ONE, span=Interval(0.47, 0.53))
    assert said == "cannot tell: +0.0 [-4.4, +4.4], would need the missing answers"


def test_coarse_digits_are_an_error_of_their_own() -> None:
    coarse = Published(*"PTDBM", "", "All", "a", 5.0, None, None, None, "", "5")
    assert verdict(0.0505, coarse.divided(100.0), runs=Runs(1, 0.0, inf, measured=False)) == "equivalent"
    assert verdict(0.0505, coarse.divided(10.0), runs=Runs(1, 0.0, inf, measured=False)).startswith(
        "differs by -45.0 [-50.6, -39.3]"
    )


def test_where_no_number_of_builds_helps_the_verdict_says_so() -> None:
    few = Runs(1, FLIPS / 2 / 200, inf, measured=False)
    assert verdict(0.51, published(0.5), runs=few).endswith(", however many builds")


def test_the_number_of_builds_that_is_advised_does_settle_a_gap_of_that_size() -> None:
    for gap in np.arange(0.0, 0.03, 0.0005):
        here = Interval(gap, gap)
        open_gap = not any(decided(gap, gap, *gap_error(ONE, None, 0.0), 0.02))
        if open_gap and (builds := builds_needed(gap, here, ONE, None, 0.0, 0.02)):
            runs = [Runs(count, ONE.variance, inf, measured=False) for count in (builds, builds - 1)]
            again, fewer = (decided(gap, gap, *gap_error(each, None, 0.0), 0.02) for each in runs)
            assert any(again)
            assert not any(fewer)


def test_the_gaps_that_stay_open_are_those_that_nothing_settles() -> None:
    left = open_gaps(ONE, 1)
    assert left is not None
    assert left == pytest.approx((0.02 - 1.645 * 0.00721, 1.96 * 0.00721), abs=2e-5)
    assert open_gaps(Runs(1, 1e-6, inf, measured=False), 1) is None


def test_an_assumed_error_is_that_of_eight_in_a_hundred_flips_and_smaller_for_graded_scores() -> None:
    binary = assumed_runs(np.array([0.0, 1.0] * 50), np.ones(100), np.repeat(np.arange(4), 25))
    assert binary.variance == pytest.approx(0.08 / 2 / 100)
    graded = assumed_runs(np.array([0.4, 0.6] * 50), np.ones(100), np.zeros(100, dtype=int))
    assert graded.variance == pytest.approx(0.08 / 2 / 100 * 0.04)
    assert not binary.measured
    assert (binary.histories, graded.histories) == (4.0, 1.0)


def test_builds_of_one_history_measure_an_error_with_few_degrees_of_freedom() -> None:
    """Two builds of 2,000 questions have Student's t(1) = 12.7: they settle next to nothing."""
    many, one = (replace(ONE, variance=FLIPS / 2 / 2000, histories=number) for number in (10.0, 1.0))
    advised = [builds_needed(0.0115, Interval(0.0115, 0.0115), runs, None, 0.0, 0.02) for runs in (many, one)]
    assert advised == [3, 8]


def test_builds_measure_the_error_history_by_history() -> None:
    parts = np.random.default_rng(0).normal(0.0, 1.0, (400, 10, 3))
    variance, freedom = between_builds(parts)
    assert np.median(variance) == pytest.approx(10.0, rel=0.1)
    assert np.median(freedom) == pytest.approx(20, rel=0.35)
    one = measured_runs(parts[0, :1])
    assert (one.builds, one.freedom) == (3, 2.0)
    assert one.variance == pytest.approx(parts[0, 0].var(ddof=1))


def test_a_shift_of_whole_builds_leaves_few_degrees_of_freedom() -> None:
    rng = np.random.default_rng(1)
    shifted = rng.normal(0.0, 0.1, (10, 3)) + np.array([-1.0, 0.0, 1.0])
    runs = measured_runs(shifted)
    assert runs.freedom == 2
    assert runs.variance == pytest.approx(shifted.sum(axis=0).var(ddof=1))


def cell(tmp_path: Path, values: np.ndarray, **more: object) -> Cell:
    """A cell of scores [builds, repeats, questions], in histories of four."""
    questions = tuple(Asked(f"c{n // 4}", f"q{n}", "", f"c{n // 4}", True, True) for n in range(values.shape[2]))
    files = []
    for build, own in enumerate(values):
        files.append(tmp_path / f"{build}.jsonl")
        write_lines(
            files[-1],
            [
                {"case_id": q.case_id, "question_id": q.question_id, "repeat": repeat, "value": float(value)}
                for repeat, row in enumerate(own)
                for q, value in zip(questions, row, strict=True)
            ],
        )
    return Cell(Column("toy", "Toy", "judge", questions), {}, tuple(files), **more)  # type: ignore[arg-type]


def test_repeats_of_the_judge_are_averaged_before_builds_are_compared(tmp_path: Path) -> None:
    scores = np.random.default_rng(3).integers(0, 2, (3, 5, 40)).astype(float)
    own = cell(tmp_path, scores)
    means = scores.mean(axis=(1, 2))
    assert own.spread() == pytest.approx(stdev(means))
    assert own.runs.builds == 3
    parts = scores.mean(axis=1).reshape(3, 10, 4).sum(axis=2).T / 40
    assert own.runs.variance in (pytest.approx(parts.var(axis=1, ddof=1).sum()), pytest.approx(means.var(ddof=1)))


def test_two_builds_with_one_mean_by_chance_are_not_without_error(tmp_path: Path) -> None:
    """Two answers of the first history change places: all means are equal, the answers are not."""
    first = np.array([1.0, 0.0, *[1.0] * 19, *[0.0] * 19])
    second = np.array([0.0, 1.0, *first[2:]])
    own = cell(tmp_path, np.array([[first], [second]]), published=published(0.51))
    assert own.runs.variance == pytest.approx(2 * 0.5 / first.size**2)
    assert own.verdict().startswith("cannot tell")
    (tmp_path / "same").mkdir()
    same = cell(tmp_path / "same", np.array([[first], [first]]), published=published(0.51))
    assert same.runs.variance == 0.0


def test_questions_that_support_others_move_neither_the_mean_nor_the_error_between_builds(tmp_path: Path) -> None:
    scores = np.random.default_rng(4).integers(0, 2, (3, 1, 40)).astype(float)
    (tmp_path / "few").mkdir()
    for values in (scores, scores[:1]):  # a measured and an assumed error
        whole, few = cell(tmp_path, values), cell(tmp_path / "few", values[:, :, :20])
        support = [replace(each, supports=number >= 20) for number, each in enumerate(whole.column.questions)]
        own = replace(whole, column=replace(whole.column, questions=tuple(support)))
        assert (own.estimate(), own.spread(), own.runs) == (few.estimate(), few.spread(), few.runs)


def test_a_cell_of_one_build_assumes_its_error_and_prints_its_verdict(tmp_path: Path) -> None:
    own = cell(tmp_path, np.array([[[0.0, 1.0] * 400]]), published=published(0.56))
    assert not own.runs.measured
    assert shown(own).endswith("· 0.560 · differs by -6.0 [-8.0, -4.0]")


@pytest.mark.slow
def test_a_true_gap_of_three_points_is_rarely_called_equivalent() -> None:
    said: dict[str, dict[str, float]] = {}
    for row in rows(0.1):
        said.setdefault(row.situation, {})[row.measure] = row.value
    wrong = {name: own["equivalent"] for name, own in said.items() if name.endswith("gap -0.03")}
    assert any(name.startswith("5 histories of 40, 1 build") for name in wrong)
    assert max(wrong.values()) <= 0.05
    locomo = "10 LoCoMo histories, 1 build, true gap"
    assert said[f"{locomo} +0.00"]["equivalent"] > 0.75
    assert said[f"{locomo} -0.03"]["differs"] > 0.9


def test_the_caption_of_a_compared_table_says_what_the_errors_are(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    values = np.random.default_rng(0).integers(0, 2, (3, 1, 40)).astype(float)
    thrice = cell(tmp_path, values, published=published(0.5))
    once = cell(tmp_path / "one", values[:1], published=published(0.5))
    both = (Row("a", "A", (thrice,)), Row("b", "B", (once,)))
    (line,) = verdict_lines(Table("toy", "Toy", (), (thrice.column,), both))
    assert "measured from 3 builds; else assumed: 8% of the answers' scores change" in line
    cost = Measure(Estimate(57.0, 3, None, None, 3), published(55.0))
    (line,) = verdict_lines(Table("toy", "Toy", (), (thrice.column,) * 2, (Row("a", "A", (thrice, cost)),)))
    assert "ours measured from 3 builds; unknown for costs and counts" in line, "no score's error is assumed"
    assert "Each is tested alone: of twenty numbers that agree, one differs by chance." in line
    stand_in = cell(tmp_path, values, published=replace(published(0.5), why_not="stand-in"))
    assert verdict_lines(Table("toy", "Toy", (), (thrice.column,), (Row("a", "A", (stand_in,)),))) == []


def test_latex_prints_the_verdict_beside_the_published_number(tmp_path: Path) -> None:
    own = cell(tmp_path, np.array([[[0.0, 1.0] * 400]]), published=published(0.56))
    text = latex(Table("toy", "Toy", (), (own.column,), (Row("a", "A", (own,)),)))
    assert r"{\tiny (0.560; differs by -6.0 [-8.0, -4.0])}" in text
