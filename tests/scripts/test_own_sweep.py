"""What a sweep prints, and the names that a figure of one's own may use."""

from __future__ import annotations

from scripts.tables.sweep import SweepLine, best_lines, mean_text


def line(k: int, mean: float, *, by_case: bool = True) -> SweepLine:
    ends = {"case_low": mean - 0.1, "case_high": mean + 0.1} if by_case else {"case_low": None, "case_high": None}
    values = {
        "dataset": "locomo",
        "metric": "judge",
        "category": "all",
        "mean": mean,
        "question_low": 0.0,
        "question_high": 1.0,
    }
    return SweepLine({"k": k}, {**values, **ends}, 0.0)


def test_a_sweep_prints_its_means_with_their_intervals() -> None:
    assert mean_text(line(1, 0.125)) == "mean 0.125 {0.025, 0.225}"
    assert mean_text(line(1, 0.125, by_case=False)) == "mean 0.125 [0.000, 1.000]"


def test_a_sweep_names_the_best_setting_and_says_that_it_was_chosen() -> None:
    assert best_lines([line(1, 0.125), line(5, 0.5)]) == [
        "best on locomo judge: k=5 (mean 0.500 {0.400, 0.600}), chosen on these questions"
    ]
    assert best_lines([line(1, 0.125)]) == []
