"""One family of paired tests at one level: rows compared with a reference row, in the primary metric of each data set.

- Statistic: the difference over its jackknife error by case, the t of the interval that tables print.
- Null distribution: the signs of whole histories are flipped together in all rows, and the largest |t| over the rows is taken each time
  (single-step max-T: Westfall and Young 1993, "Resampling-Based Multiple Testing"). It is exact where the differences of histories are
  symmetric about 0, and uses the correlation of rows that share a reference. Neither it nor Student's t (nor the worse of both) holds
  the level for strongly skewed effects of histories: the family-wise error for .05 is then .06 to .09 with ten histories.
- All flips are listed up to 16 histories; beyond, random ones are drawn until each p is resolved.
- G histories have 2^(G-1) different flips. Where even the smallest p is above the level (5 or 6 histories), single-step Bonferroni on the
  p of Student's t is used instead. It assumes normal effects of histories.
- Data sets are independent: each is tested at the level 1 - (1 - 0.05)^(1/D) of Šidák.

Simulated: `tests.rigs.coverage.families`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from eval.statistics.stats import numbered

LEVEL = 0.05
"""Probability of any false star in a table."""
EXACT = 16
"""All sign flips are listed up to this number of histories."""
BATCH, MOST, RESOLVED = 2_000, 20_000, 50
"""Random flips: number drawn at once, maximum number, and number that must be as extreme as the pair nearest to the level."""


@dataclass(frozen=True, slots=True)
class Tested:
    """The pairs of one column, tested together."""

    ps: tuple[float, ...]
    """Adjusted p of each pair, over the whole family."""
    alpha: float
    """Level of a pair's own t-test at which it gets a star; detectable differences are computed with it. 0: no pair can get a star."""
    method: str
    """Name of the method in words."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """The paired differences of one row, added up by history."""

    sums: np.ndarray
    """float64 [histories, groups]."""
    counts: np.ndarray
    """Number of questions: float64 [histories, groups]; the mean weighs groups equally."""

    @classmethod
    def of(cls, gaps: Sequence[float], clusters: Sequence[str], groups: Sequence[str], names: Sequence[str]) -> Gaps:
        """Add up differences.

        Args:
            gaps: one per question.
            clusters, groups: of each question, same length.
            names: of all histories of the column, so that the rows are flipped alike; a history may have no question here.
        """
        codes = numbered(groups)
        places = {name: place for place, name in enumerate(names)}
        homes = np.fromiter((places[name] for name in clusters), dtype=int, count=len(clusters))
        if int(codes.max()) > 0 and (codes == numbered(homes)).all():
            # The groups are the histories: the mean is the mean of the histories' means.
            counts = np.bincount(homes, minlength=len(names)).astype(float)
            sums = np.bincount(homes, weights=np.asarray(gaps), minlength=len(names)) / np.maximum(counts, 1.0)
            return cls(sums[:, None], np.minimum(counts, 1.0)[:, None])
        shape = (len(names), int(codes.max()) + 1)
        sums, counts = np.zeros(shape), np.zeros(shape)
        np.add.at(sums, (homes, codes), np.asarray(gaps, dtype=float))
        np.add.at(counts, (homes, codes), 1.0)
        return cls(sums, counts)


def flipped(rows: Sequence[Gaps], signs: np.ndarray) -> np.ndarray:
    """|t| of rows with flipped histories: the mean of group means over its delete-one-history jackknife error.

    Args:
        signs: 1 or -1, float64 [flips, histories].

    Returns:
        float64 [rows, flips].
    """
    alike: dict[bytes, list[int]] = {}
    for place, row in enumerate(rows):
        alike.setdefault(row.counts.tobytes(), []).append(place)
    sizes = np.empty((len(rows), len(signs)))
    for places in alike.values():  # rows that lack scores for different questions differ in their counts
        sums = np.stack([rows[place].sums for place in places], axis=-1)
        sizes[places] = _flipped(sums, rows[places[0]].counts, signs)
    return sizes


def _flipped(sums: np.ndarray, counts: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """|t| of rows with the same counts [histories, groups], from sums [histories, groups, rows]: float64 [rows, flips]."""
    present = (counts > 0).any(axis=1)
    if not present.all():
        sums, counts, signs = sums[present], counts[present], signs[:, present]
    size, groups, rows = sums.shape
    total = counts.sum(axis=0)
    left = total - counts
    some = left > 0  # a group may have all its questions in one history
    share = np.divide(1.0, left * some.sum(axis=1, keepdims=True), out=np.zeros_like(left), where=some)
    change, own = share - 1 / (groups * total), np.einsum("gc,gcr->gr", share, sums)

    def summed(values: np.ndarray) -> np.ndarray:
        return np.asarray(signs @ values.reshape(size, -1)).reshape(len(signs), groups, rows)

    totals = summed(sums)
    mean = np.einsum("fcr,c->fr", totals, 1 / (groups * total))
    # The squared change of the mean when a history g is left out, added up over histories: (totals @ change_g - sign_g own_g)^2.
    crossed = (totals.transpose(0, 2, 1) @ (change.T @ change)).transpose(0, 2, 1)
    crossed -= 2 * summed(change[:, :, None] * own[:, None, :])
    squares = (totals * crossed).sum(axis=1) + (own**2).sum(axis=0)
    error = ((size - 1) / size * np.maximum(squares, 1e-24)) ** 0.5
    return np.asarray((np.abs(mean) / error).T)


def level_of(columns: int) -> float:
    """The level of each of several independent columns (Šidák)."""
    return float(1 - (1 - LEVEL) ** (1 / max(1, columns)))


def can_flip(histories: int, level: float) -> bool:
    """Whether flips of this number of histories can reach a level: their smallest p is 2^(1 - histories)."""
    return bool(2.0 ** (1 - histories) <= level)


def single_step(rows: Sequence[Gaps], ps: Sequence[float], freedoms: Sequence[float], columns: int) -> Tested:
    """Test the rows of a column together.

    Args:
        rows: differences from the reference, all over the same histories.
        ps, freedoms: p and degrees of freedom of the t-test of each row alone.
        columns: number of columns of the family, including this one.
    """
    level, histories = level_of(columns), len(rows[0].sums)
    if not can_flip(histories, level):
        own = [min(1.0, len(ps) * p) for p in ps]
        method = f"t-test by history, Bonferroni ({histories} histories have too few sign flips)"
        return Tested(_over(own, columns), level / len(ps), method)
    limits = _ps(flipped(rows, np.ones((1, histories))) * (1 - 1e-9), freedoms)[:, 0]
    least: list[np.ndarray] = []
    for signs in _signs(histories):
        sizes = flipped(rows, signs)
        if len(set(freedoms)) == 1:  # the largest |t| has the smallest p
            sizes = sizes.max(axis=0, keepdims=True)
        least.append(_ps(sizes, freedoms[: len(sizes)]).min(axis=0))
        if histories > EXACT:
            reached = [sum(int((each <= limit).sum()) for each in least) for limit in limits]
            drawn = sum(map(len, least))
            open_ = [hits for hits in reached if hits / drawn < 2 * level]
            if not open_ or min(open_) >= RESOLVED:
                break
    null = np.sort(np.concatenate(least))
    exact = histories <= EXACT
    extra = 0 if exact else 1  # the observed signs count as one of the random flips
    hits = np.searchsorted(null, limits, side="right")
    own = [float((number + extra) / (null.size + extra)) for number in hits]
    allowed = int(level * (null.size + extra) + 1e-9) - extra
    alpha = float(null[allowed - 1]) if allowed >= 1 else 0.0
    kind = "all" if exact else f"{null.size:,} random"
    method = f"t by history, max-T over {kind} sign flips of the {histories} histories"
    return Tested(_over(own, columns), alpha, method)


def _over(ps: Sequence[float], columns: int) -> tuple[float, ...]:
    return tuple(float(-np.expm1(columns * np.log1p(-p))) if p < 1 else 1.0 for p in ps)


def _ps(sizes: np.ndarray, freedoms: Sequence[float]) -> np.ndarray:
    """Two-sided p of |t|: float64 [rows, flips]."""
    from scipy.special import stdtr

    return np.asarray(2 * stdtr(np.asarray(freedoms)[:, None], -sizes))


def _signs(histories: int) -> Iterator[np.ndarray]:
    """All different flips of few histories, in batches; for many histories, a new batch of random flips each time."""
    if histories <= EXACT:
        # The last history keeps its sign: |t| is the same for the opposite signs.
        numbers = np.arange(2 ** (histories - 1))
        for start in range(0, numbers.size, BATCH):
            yield 1.0 - 2.0 * (numbers[start : start + BATCH, None] >> np.arange(histories) & 1)
        return
    rng = np.random.default_rng(0)
    for _ in range(MOST // BATCH):
        yield rng.integers(0, 2, (BATCH, histories)) * 2.0 - 1.0
