"""The family of a table's tests: exact by enumeration, the printed t, and right in size and power by simulation."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from eval.statistics.families import Gaps, can_flip, flipped, level_of, single_step
from eval.statistics.stats import difference
from tests.rigs.coverage.families import few_histories, power, size


def gaps(
    rng: np.random.Generator, histories: int, groups: int = 1, missing: int = 0
) -> tuple[list[float], list[str], list[str]]:
    """Differences, histories and groups of some questions."""
    homes = [f"h{number % histories:02}" for number in range(8 * histories + 3)]
    names = [f"g{number % 7 % groups}" for number in range(len(homes))]
    values = rng.normal(0.1, 0.4, len(homes)).tolist()
    keep = range(missing, len(homes))
    return [values[n] for n in keep], [homes[n] for n in keep], [names[n] for n in keep]


def test_the_statistic_is_the_t_of_the_printed_interval() -> None:
    values, homes, _ = gaps(np.random.default_rng(0), 7)
    printed = difference(values, [0.0] * len(values), homes)
    assert printed.sampling is not None
    own = Gaps.of(values, homes, [""] * len(values), sorted(set(homes)))
    observed = flipped([own], np.ones((1, 7)))[0, 0]
    assert observed == pytest.approx(abs(printed.mean) / printed.sampling.error, rel=1e-12)


@pytest.mark.parametrize("groups", [1, 3])
def test_a_flip_is_a_table_with_the_differences_of_these_histories_reversed(groups: int) -> None:
    rng = np.random.default_rng(1)
    values, homes, names = gaps(rng, 6, groups, missing=2)
    histories = sorted(set(homes))
    signs = rng.integers(0, 2, (20, 6)) * 2.0 - 1.0
    fast = flipped([Gaps.of(values, homes, names, histories)], signs)[0]
    for row, sign in zip(signs, fast, strict=True):
        turned = [value * row[histories.index(home)] for value, home in zip(values, homes, strict=True)]
        assert flipped([Gaps.of(turned, homes, names, histories)], np.ones((1, 6)))[0, 0] == pytest.approx(sign)


def test_groups_that_are_the_histories_weigh_the_histories_equally() -> None:
    values, homes, _ = gaps(np.random.default_rng(2), 6)
    names = sorted(set(homes))
    means = [float(np.mean([v for v, home in zip(values, homes, strict=True) if home == name])) for name in names]
    by_hand = Gaps.of(means, names, [""] * 6, names)
    own = Gaps.of(values, homes, homes, names)
    assert flipped([own], np.ones((1, 6))) == pytest.approx(flipped([by_hand], np.ones((1, 6))))


def test_the_adjusted_p_counts_the_flips_in_which_any_row_is_as_extreme() -> None:
    rng = np.random.default_rng(3)
    table = [gaps(rng, 7) for _ in range(4)]
    names = sorted(set(table[0][1]))
    rows = [Gaps.of(values, homes, [""] * len(values), names) for values, homes, _ in table]
    tested = single_step(rows, [0.5] * 4, [6.0] * 4, columns=1)
    every = flipped(rows, np.array(list(product([1.0, -1.0], repeat=7)))).max(axis=0)
    for row, p in zip(rows, tested.ps, strict=True):
        observed = flipped([row], np.ones((1, 7)))[0, 0]
        assert p == pytest.approx(float((every >= observed - 1e-9).mean()))
    two = single_step(rows, [0.5] * 4, [6.0] * 4, columns=2)
    assert two.ps == pytest.approx([1 - (1 - p) ** 2 for p in tested.ps])


def test_histories_that_flips_cannot_tell_apart_are_tested_by_students_t_and_bonferroni() -> None:
    rng = np.random.default_rng(4)
    values, homes, names = gaps(rng, 5)
    row = Gaps.of(values, homes, [""] * len(names), sorted(set(homes)))
    assert not can_flip(5, level_of(1))
    assert can_flip(6, level_of(1))
    tested = single_step([row, row], [0.01, 0.6], [4.0, 4.0], columns=1)
    assert tested.ps == pytest.approx((0.02, 1.0))
    assert tested.alpha == pytest.approx(0.025)
    assert "Bonferroni (5 histories have too few sign flips)" in tested.method


def test_many_histories_take_random_flips_until_a_small_p_is_resolved() -> None:
    rng = np.random.default_rng(5)
    homes = [f"h{number:03}" for number in range(40)]

    def row(shift: float) -> Gaps:
        values = rng.normal(0, 1, 40)
        return Gaps.of((values - values.mean() + shift).tolist(), homes, [""] * 40, homes)

    dull = single_step([row(0.0)], [1.0], [39.0], columns=1)
    sharp = single_step([row(1.2)], [1e-9], [39.0], columns=1)
    assert "2,000 random sign flips of the 40 histories" in dull.method
    assert "20,000 random" in sharp.method
    assert sharp.ps[0] == pytest.approx(1 / 20_001)


@pytest.mark.slow
def test_a_family_of_99_pairs_has_a_false_star_in_one_table_of_twenty() -> None:
    error, _ = size(["10 LoCoMo histories"] * 3, 33, 200)
    assert error.value <= 0.05 + 2 * (0.05 * 0.95 / 200) ** 0.5


@pytest.mark.slow
def test_a_pair_is_starred_in_four_of_five_tables_at_the_printed_difference() -> None:
    printed, single = power("10 LoCoMo histories", 33, 3, 300)
    assert printed.value == pytest.approx(0.8, abs=0.06)
    assert single.value < 0.4, "the difference that a single test detects is far too small for a table"


def test_three_histories_have_small_ps_over_questions_without_a_difference() -> None:
    assert few_histories(3, 0.05, 60).value > 0.2
