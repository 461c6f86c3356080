"""The exponent on log-log scale, checked by hand."""

from __future__ import annotations

import pytest

from eval.analysis.growth import exponent


@pytest.mark.parametrize("power", [-0.5, 0.0, 1.0, 2.0])
def test_a_power_is_found_exactly_and_values_on_the_line_show_no_error(power: float) -> None:
    sizes = [100.0, 200.0, 400.0, 1000.0]
    fit = exponent(sizes, [3 * size**power for size in sizes])
    assert fit is not None
    assert fit.value == pytest.approx(power, abs=1e-9)
    assert fit.interval is None


def test_the_interval_is_that_of_a_regression_slope() -> None:
    """x = 0, 1, 2 and y = 0, 1, 1 on log scale: slope 1/2, residuals -1/6, 1/3, -1/6, error √(1/12), t(1) = 12.706."""
    e = 2.718281828459045
    fit = exponent([1, e, e * e], [1, e, e])
    assert fit is not None
    assert fit.interval is not None
    assert fit.value == pytest.approx(0.5)
    half = 12.706205 * (1 / 12) ** 0.5
    assert (fit.interval.low, fit.interval.high) == pytest.approx((0.5 - half, 0.5 + half), rel=1e-6)


def test_two_sizes_give_no_interval_and_one_size_or_a_zero_no_exponent() -> None:
    fit = exponent([10, 100], [1, 10])
    assert fit is not None
    assert fit.value == pytest.approx(1.0)
    assert fit.interval is None
    assert exponent([10], [1]) is None
    assert exponent([10, 10], [1, 2]) is None
    assert exponent([10, 100], [0, 1]) is None
