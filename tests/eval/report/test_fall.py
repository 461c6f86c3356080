"""The figure of a loss waterfall: bars that begin where the one before has ended, from 100 points down to the score, without colour."""

from __future__ import annotations

import pytest
from matplotlib.colors import to_rgb

from eval.analysis.losses import STEPS, Loss, waterfall
from eval.report.figures import draw
from eval.report.panels import fall_points, fall_sheet

OF_FOUR: list[tuple[float, dict[str, float]]] = [
    (0.5, {"reader": 0.5}),
    (1.0, {"reader": 0.25, "misread": -0.25}),
    (0.0, {"not found": 1.0}),
    (0.0, {"not found": 1.0}),
]
LOSSES = [Loss(f"c{number % 6}", f"q{number}", "x", *lost) for number, lost in enumerate(OF_FOUR * 6)]


@pytest.mark.slow
def test_the_bars_fall_from_perfect_to_the_score_in_points_and_without_colour() -> None:
    points = fall_points(waterfall(LOSSES))
    assert [(point.x, round(point.y, 6)) for point in points] == [
        ("perfect", 100.0),
        ("reader", 18.75),
        ("not found", 50.0),
        ("misread", -6.25),
        ("score", 37.5),
    ]
    assert [point.x for point in points[1:-1]] == [step for step in STEPS if step in {point.x for point in points}]
    (axes,) = draw(fall_sheet("a memory", points, ()), points).axes
    edges = [(round(bar.get_x(), 6), round(bar.get_x() + bar.get_width(), 6)) for bar in axes.patches]
    assert edges == [(0.0, 100.0), (81.25, 100.0), (31.25, 81.25), (31.25, 37.5), (0.0, 37.5)]
    assert axes.get_xlabel() == "points of 100, mean of 24 questions"
    assert [bar.get_hatch() or "" for bar in axes.patches] == ["", "////", "////", "....", ""]
    for bar in axes.patches:
        red, green, blue, _ = bar.get_facecolor()
        assert red == green == blue
    assert all(len(set(to_rgb(line.get_color()))) == 1 for line in axes.lines)


@pytest.mark.slow
def test_the_interval_of_a_step_is_drawn_from_where_its_bar_begins() -> None:
    points = fall_points(waterfall(LOSSES))
    (axes,) = draw(fall_sheet("a memory", points, ()), points).axes
    lost = points[2]
    assert lost.low is not None
    assert lost.high is not None
    ends = [sorted(line.get_xdata()) for line in axes.lines if set(line.get_ydata()) == {2}]
    assert ends
    for drawn in ends:
        assert drawn == pytest.approx([81.25 - lost.high, 81.25 - lost.low])
