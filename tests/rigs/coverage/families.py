"""Size and power of the tests of a table, by simulation: the rows' differences are correlated through their common reference.

The difference of a row has an effect of each history and a residual of each question, both correlated between the rows (`SHARED`).
Effects of histories are normal or, as a hard case, exponential.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from eval.statistics.families import LEVEL, Gaps, Tested, single_step
from eval.statistics.power import detectable
from eval.statistics.stats import Sampling, difference, holm
from tests.rigs.coverage.rows import LOCOMO, Row, homes_of, repeated

SHARED = 0.5
"""Correlation of two rows' differences from the reference."""
PRINTED, LEVELS = 400, 24
"""Numbers of tables over which the error, and the level of a pair, are averaged for the printed difference."""
VARIANCE = 0.3
"""Variance of a question's difference: the two memories differ on 30 % of the questions."""
DESIGNS = {
    "10 LoCoMo histories": (LOCOMO, 0.02),
    "20 x 20": ((20,) * 20, 0.02),
    "500 x 1": ((1,) * 500, 0.0),
    "5 LoCoMo histories": (LOCOMO[:5], 0.02),
}
"""Questions by history, and the intraclass correlation of the differences."""


def draw(
    rng: np.random.Generator, sizes: Sequence[int], alike: float, rows: int, skewed: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Sums of differences by history without any true difference: float64 [histories, rows]; and their standard deviation of a mean."""
    counts = np.asarray(sizes, dtype=float)

    def mixed(normal: bool) -> np.ndarray:
        own, common = (
            rng.standard_normal((counts.size, width)) if normal else rng.exponential(1.0, (counts.size, width)) - 1.0
            for width in (rows, 1)
        )
        return np.asarray(SHARED**0.5 * common + (1 - SHARED) ** 0.5 * own)

    history = counts[:, None] * mixed(not skewed) * (VARIANCE * alike) ** 0.5
    return history + mixed(True) * (VARIANCE * (1 - alike) * counts)[:, None] ** 0.5, counts


def _sampling(sums: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Means, jackknife errors by history and degrees of freedom as in `eval.statistics.stats`, for many rows at once."""
    total, size = counts.sum(), counts.size
    means = sums.sum(axis=0) / total
    gaps = (sums.sum(axis=0) - sums) / (total - counts)[:, None] - means
    errors = ((size - 1) / size * (gaps**2).sum(axis=0)) ** 0.5
    return means, errors, max(1.0, float(total**2 / (counts**2).sum() - 1))


def _tested(sums: np.ndarray, counts: np.ndarray, columns: int) -> tuple[Tested, np.ndarray, np.ndarray, float]:
    from scipy.special import stdtr

    means, errors, freedom = _sampling(sums, counts)
    ps = 2 * stdtr(freedom, -np.abs(means) / errors)
    rows = [Gaps(sums[:, [row]], counts[:, None]) for row in range(sums.shape[1])]
    return single_step(rows, ps.tolist(), [freedom] * len(rows), columns), ps, errors, freedom


def size(
    designs: Sequence[str], pairs: int, repetitions: int, *, skewed: bool = False, true: int = 0, seed: int = 0
) -> Iterator[Row]:
    """The family-wise error of a table over several data sets: of max-T, and of Holm over all t-tests for comparison.

    Args:
        designs: designs of the data sets.
        true: number of rows of each data set that truly differ, by 0.2; stars of the other rows are errors.
    """
    rng = np.random.default_rng(seed)
    wrong = {"max-T": 0, "Holm of t-tests": 0}
    for _ in range(repetitions):
        ours, ps = False, []
        for name in designs:
            sums, counts = draw(rng, *DESIGNS[name], rows=pairs, skewed=skewed)
            sums[:, :true] += 0.2 * counts[:, None]
            tested, own, _, _ = _tested(sums, counts, len(designs))
            ours |= min(tested.ps[true:]) <= LEVEL
            ps.append(own)
        adjusted = np.array(holm(np.concatenate(ps).tolist()), dtype=float).reshape(len(designs), pairs)
        wrong["max-T"] += ours
        wrong["Holm of t-tests"] += bool((adjusted[:, true:] <= LEVEL).any())
    title = " + ".join(designs) + (", skewed" if skewed else "") + (f", {true} rows differ" if true else "")
    title += f"; {pairs} pairs on {len(designs)} data sets"
    for what, count in wrong.items():
        yield Row("adjusted p", title, f"size, {what}", count / repetitions, repetitions)


def power(
    design: str, pairs: int, columns: int, repetitions: int, *, others: bool = False, seed: int = 1
) -> Iterator[Row]:
    """The power of one pair at the detectable difference that tables print, and at the detectable difference of a single test.

    Args:
        others: whether the other rows differ as much.
    """
    rng = np.random.default_rng(seed)
    sizes, alike = DESIGNS[design]
    # The printed difference, averaged over tables in which the rows differ as much as below.
    error = _true_error(sizes, alike)
    printed = 0.0
    for _ in range(3):  # the printed difference depends on how the rows differ: iterate to the fixed point
        alphas, squares, freedom = [], [], 1.0
        for table in range(
            min(PRINTED, 5 * repetitions)
        ):  # an average over few tables would be noisy: the error has few degrees of freedom
            sums, counts = draw(rng, sizes, alike, pairs)
            sums[:, 0 : pairs if others else 1] += printed * counts[:, None]
            if table < min(LEVELS, repetitions):
                alphas.append(_tested(sums, counts, columns)[0].alpha)
            _, errors, freedom = _sampling(sums, counts)
            squares.append(float((errors**2).mean()))
        printed = detectable(Sampling(float(np.mean(squares)) ** 0.5, freedom), float(np.mean(alphas)))
    single = detectable(Sampling(error, freedom))
    for what, true in (("at the printed difference", printed), ("at the difference of one test", single)):
        starred = 0
        for _ in range(repetitions):
            sums, counts = draw(rng, sizes, alike, pairs)
            sums[:, 0 : pairs if others else 1] += true * counts[:, None]
            starred += _tested(sums, counts, columns)[0].ps[0] <= LEVEL
        title = design + (", all rows differ" if others else "")
        title += f"; {pairs} pairs on {columns} data sets"
        yield Row("detectable difference", title, f"power {what}, {true:.3f}", starred / repetitions, repetitions)


def _true_error(sizes: Sequence[int], alike: float) -> float:
    counts = np.asarray(sizes, dtype=float)
    variance = VARIANCE * (alike * (counts**2).sum() + (1 - alike) * counts.sum())
    return float(variance**0.5 / counts.sum())


def few_histories(histories: int, alike: float, repetitions: int, seed: int = 2) -> Row:
    """The share of permutation tests over questions below .05 without a true difference: the reason why few histories get no star."""
    rng = np.random.default_rng(seed)
    homes = homes_of(LOCOMO[:histories])
    low = 0
    for _ in range(repetitions):
        effect = rng.normal(0, (VARIANCE * alike) ** 0.5, histories)[homes]
        gap = np.clip(rng.uniform(size=homes.size) < VARIANCE, 0, 1) * np.sign(
            rng.uniform(-1, 1, homes.size) + effect / VARIANCE
        )
        p = difference(gap, np.zeros(homes.size), homes.astype(str).tolist()).p
        low += p is not None and p < LEVEL
    situation = f"{histories} LoCoMo histories, intraclass correlation {alike}"
    return Row("p of a difference", situation, "size at 5 %", low / repetitions, repetitions)


def rows(share: float = 1.0) -> list[Row]:
    """Simulate all situations.

    Args:
        share: share of the repetitions; 1 takes about four minutes on one core.
    """
    ten, five, many = "10 LoCoMo histories", "5 LoCoMo histories", "500 x 1"
    often, seldom, rarely = (repeated(times, share) for times in (2000, 1000, 400))
    simulated = [
        *size([ten], 33, often),
        *size([ten] * 3, 33, often),
        *size([ten], 33, often, true=16),
        *size([ten], 33, often, skewed=True),
        *size([ten, many], 33, rarely),
        *size([ten, five, many], 33, rarely),
        *power(ten, 33, 1, often),
        *power(ten, 33, 3, often),
        *power(ten, 33, 3, often, others=True),
        *power(five, 33, 3, often),
        *power("20 x 20", 33, 3, seldom),
        *power(many, 33, 3, rarely),
    ]
    return simulated + [few_histories(3, alike, rarely) for alike in (0.0, 0.005, 0.02, 0.05)]
