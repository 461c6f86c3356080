"""Components of the variance of scores, and the number of questions, builds and repeats that detect a given difference.

The score of a question (nested in its history) in one build and one repeat of the judge is the sum of a mean and independent effects of

- *history*: some histories are harder;
- *question*: some questions of a history are harder;
- *build*: the effect of one build of a history on all of its questions alike;
- *answer*: the remaining variation between replicates of one question: the answer is drawn again, or a build loses a single fact;
- *judge*: repeats of the judge on the same answer.

Each build has its own answers, so the effects of build and answer are separated by the correlation of questions of one history. The
variances are those of an analysis of variance (Henderson's method 1: mean squares are set equal to their expectations), exact for histories
of unequal size. They are unbiased, and may be below 0 where the true variance is near 0. An effect that was drawn only once cannot be
separated and remains in the effect above it. Differences of two memories are decomposed in the same way, question by question: this gives
the variance of a comparison.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product

import numpy as np

from eval.statistics.power import detectable
from eval.statistics.stats import ENOUGH_CLUSTERS, Interval, Sampling, effective_number, t_point

PARTS = ("history", "question", "build", "answer", "judge")
ASSURANCE = 0.8
"""Confidence of the upper limit that designs are planned with; Browne (1995), Statistics in Medicine 14, on sample sizes from pilots."""
Draws = Mapping[tuple[str, str], np.ndarray]
"""Scores [builds, repeats] by (history, question)."""


@dataclass(frozen=True, slots=True)
class Design:
    """The size of an experiment: histories, questions, builds and repeats."""

    histories: int
    questions: float
    """Mean number of questions of a history."""
    builds: int
    repeats: int


@dataclass(frozen=True, slots=True)
class Components:
    """Variances of the effects, from one design."""

    design: Design
    mean: float
    variances: Mapping[str, float | None]
    """Variance by part; None for a part that cannot be separated from the part above it in the nesting of `PARTS`."""
    intervals: Mapping[str, Interval | None]
    """95 % intervals; None below five histories. For *history* and *build* a modified large-sample interval, which covers 93 to 99 %; for
    the others by leaving out one history at a time, which covers 90 to 95 %: variances are skewed."""
    upper: Mapping[str, float | None] = field(default_factory=dict)
    """One-sided upper limits by part (`ASSURANCE`), for plans; None below five histories."""
    evenness: float = 1.0
    """Kish's effective number of histories divided by their number; designs are taken to be as uneven as the data. 1: all of one size."""

    def positive(self, part: str) -> float:
        """The variance of a part; 0 where it is negative or not separated."""
        return max(0.0, self.variances[part] or 0.0)

    @property
    def total(self) -> float:
        """Variance of one score of one question."""
        return sum(map(self.positive, PARTS))


def components(draws: Draws) -> Components:
    """Estimate the variances of the five effects.

    Raises:
        ValueError: fewer than two questions, or the numbers of builds and repeats differ between questions.
    """
    shapes = {array.shape for array in draws.values()}
    if len(draws) < 2 or len(shapes) != 1:
        given = f"{len(draws)} questions with builds and repeats {sorted(shapes)}"
        raise ValueError(f"{given}: two questions alike are needed")
    by_history: dict[str, list[np.ndarray]] = {}
    for (history, _), array in draws.items():
        by_history.setdefault(history, []).append(array)
    blocks = [np.stack(arrays) for arrays in by_history.values()]  # [questions, builds, repeats]
    builds, repeats = next(iter(shapes))
    design = Design(len(blocks), len(draws) / len(blocks), builds, repeats)
    mean = float(np.mean([array.mean() for array in draws.values()]))
    within = list(map(within_history, blocks))
    whole = _variances(blocks, within)
    intervals, limits = _intervals(blocks, within, whole, (0.025, 1 - ASSURANCE))
    upper = {part: None if limit is None else limit.high for part, limit in limits.items()}
    evenness = effective_number(np.array([len(block) for block in blocks], dtype=float)) / len(blocks)
    return Components(design, mean, whole, intervals, upper, evenness)


def mean_squares(blocks: Sequence[np.ndarray], within: Sequence[Mapping[str, float]]) -> dict[str, float | None]:
    """Mean squares of the nested analysis of variance by effect, from `within_history` of each block; None without a degree of freedom."""
    whole = float(np.concatenate(blocks).mean())
    sums = dict.fromkeys(PARTS, 0.0)
    for block, own in zip(blocks, within, strict=True):
        for part in PARTS[1:]:
            sums[part] += own[part]
        sums["history"] += block.size * float((own["mean"] - whole) ** 2)
    freedom = _freedom(blocks)
    return {part: sums[part] / freedom[part] if freedom[part] else None for part in PARTS}


def within_history(block: np.ndarray) -> dict[str, float]:
    """The mean of a history's scores, and its sums of squares by effect."""
    builds, repeats = block.shape[1:]
    cells, centre = block.mean(axis=2), block.mean()
    by_question, by_build = cells.mean(axis=1), cells.mean(axis=0)
    interaction = cells - by_question[:, None] - by_build[None, :] + centre
    return {
        "mean": centre,
        "judge": float(((block - cells[:, :, None]) ** 2).sum()),
        "answer": repeats * float((interaction**2).sum()),
        "build": repeats * len(block) * float(((by_build - centre) ** 2).sum()),
        "question": repeats * builds * float(((by_question - centre) ** 2).sum()),
    }


def _freedom(blocks: Sequence[np.ndarray]) -> dict[str, int]:
    """Degrees of freedom of each mean square."""
    builds, repeats = blocks[0].shape[1:]
    sizes = np.array([len(block) for block in blocks])
    return {
        "judge": int(sizes.sum()) * builds * (repeats - 1),
        "answer": int((sizes - 1).sum()) * (builds - 1),
        "build": len(blocks) * (builds - 1),
        "question": int((sizes - 1).sum()),
        "history": len(blocks) - 1,
    }


def _variances(blocks: Sequence[np.ndarray], within: Sequence[Mapping[str, float]]) -> dict[str, float | None]:
    alone = all(len(block) == 1 for block in blocks)
    if alone:  # one question per history: history and question are confounded, and so are build and answer
        blocks = [np.concatenate(blocks)]
        within = [within_history(blocks[0])]
    builds, repeats = blocks[0].shape[1:]
    sizes = np.array([len(block) for block in blocks], dtype=float)
    squares = mean_squares(blocks, within)
    noise = squares["judge"] or 0.0
    answered = noise if squares["answer"] is None else squares["answer"]
    found: dict[str, float | None] = dict.fromkeys(PARTS)
    found["judge"] = squares["judge"]
    if squares["answer"] is not None:
        found["answer"] = (squares["answer"] - noise) / repeats
        if squares["build"] is not None and not alone:
            found["build"] = (squares["build"] - squares["answer"]) / (repeats * sizes.mean())
    if squares["question"] is not None:
        found["question"] = (squares["question"] - answered) / (builds * repeats)
        if squares["history"] is not None:
            size = (sizes.sum() - (sizes**2).sum() / sizes.sum()) / (len(sizes) - 1)
            between = (squares["history"] - squares["question"]) / (size * builds * repeats)
            found["history"] = between - (found["build"] or 0.0) / builds
    return found


def _intervals(
    blocks: Sequence[np.ndarray],
    within: Sequence[Mapping[str, float]],
    whole: Mapping[str, float | None],
    tails: Sequence[float],
) -> list[dict[str, Interval | None]]:
    """Jackknife over histories with Student's t, but `_of_few` for histories and builds; a variance's interval begins at 0 or above.

    Args:
        whole: the variances.
        tails: probability outside each end; the intervals are computed for each of them.
    """
    found: list[dict[str, Interval | None]] = [dict.fromkeys(PARTS) for _ in tails]
    count = len(blocks)
    if count < ENOUGH_CLUSTERS:
        return found
    squares = mean_squares(blocks, within)
    left = [_variances([*blocks[:n], *blocks[n + 1 :]], [*within[:n], *within[n + 1 :]]) for n in range(count)]
    for part, value in whole.items():
        if value is None:
            continue
        if part in ("history", "build"):
            for intervals, tail in zip(found, tails, strict=True):
                intervals[part] = _of_few(blocks, squares, part, value, tail)
            continue
        others = [other for each in left if (other := each[part]) is not None]
        if len(others) < count:
            continue
        error = float(((count - 1) / count * ((np.array(others) - value) ** 2).sum()) ** 0.5)
        for intervals, tail in zip(found, tails, strict=True):
            half = t_point(count - 1, 1 - tail) * error
            intervals[part] = Interval(max(0.0, value - half), max(0.0, value + half))
    return found


def _of_few(
    blocks: Sequence[np.ndarray], squares: Mapping[str, float | None], part: str, value: float, tail: float
) -> Interval:
    """The modified large-sample interval of Ting et al. (1990), without its cross terms, of the variance of histories or of their builds.

    With few histories the estimate is skewed, and a symmetric interval has too little coverage. Each mean square is taken as a multiple of
    chi-squared and gives its own distance up and down; the squares of the distances are added. Coverage is lower if the effects are far
    from normal.
    """
    from scipy.special import chdtri  # imported here: it takes half a second

    builds, repeats = blocks[0].shape[1:]
    sizes = np.array([len(block) for block in blocks], dtype=float)
    freedom = dict[str, float](_freedom(blocks))
    # If histories differ in size, large ones count more.
    effective = effective_number(sizes)
    freedom |= {"history": effective - 1.0, "build": effective * (builds - 1)}
    size = (sizes.sum() - (sizes**2).sum() / sizes.sum()) / (len(sizes) - 1)
    within, between = 1.0 / (size * builds * repeats), 1.0 / (sizes.mean() * repeats)
    known = squares["build"] is not None and squares["answer"] is not None
    terms = {"build": between, "answer": -between}
    if part == "history":
        shares = {name: -factor / builds for name, factor in terms.items()} if known else {}
        terms = {"history": within, "question": -within, **shares}
    below = above = 0.0
    for name, factor in terms.items():
        own, square = freedom[name], factor * (squares[name] or 0.0)
        down = square * (1.0 - own / float(chdtri(own, tail)))
        up = square * (own / float(chdtri(own, 1 - tail)) - 1.0)
        below += (down if factor > 0 else up) ** 2
        above += (up if factor > 0 else down) ** 2
    return Interval(max(0.0, value - below**0.5), max(0.0, value + above**0.5))


def paired(first: Draws, second: Draws) -> dict[tuple[str, str], np.ndarray]:
    """Differences of two memories on the questions that both have, over the builds and repeats that both have."""
    shared = [key for key in first if key in second]
    if not shared:
        return {}
    builds, repeats = np.minimum(first[shared[0]].shape, second[shared[0]].shape)
    return {key: first[key][:builds, :repeats] - second[key][:builds, :repeats] for key in shared}


# --- designs --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tokens:
    """Model tokens for building one history, for reading and answering one question, and for one grade."""

    build: float
    answer: float
    judge: float

    def of(self, design: Design) -> float:
        """Cost of a design."""
        answers = design.questions * design.builds
        return design.histories * (design.builds * self.build + answers * (self.answer + design.repeats * self.judge))


def contributions(parts: Components, design: Design) -> dict[str, float]:
    """Share of each effect in the variance of the mean.

    From five histories on, they are treated as a sample, as in the tables' intervals; fewer are treated as the whole population.
    """
    histories, answers = design.histories * parts.evenness, design.histories * design.questions
    shares = {
        "history": 1 / histories if sampled(design) else 0.0,
        "question": 1 / answers,
        "build": 1 / (histories * design.builds),
        "answer": 1 / (answers * design.builds),
        "judge": 1 / (answers * design.builds * design.repeats),
    }
    return {part: share * parts.positive(part) for part, share in shares.items()}


def sampled(design: Design) -> bool:
    """Whether the histories count as a sample."""
    return design.histories >= ENOUGH_CLUSTERS


def detects(parts: Components, design: Design) -> float:
    """The difference that a design detects with 80 % power; infinite where its error is unknown, as of scores that are all alike."""
    return _detected(sum(contributions(parts, design).values()), design, parts.evenness)


def _detected(variance: float, design: Design, evenness: float) -> float:
    freedom = design.histories * (design.questions - 1)
    if sampled(design):  # as of the test by case
        freedom = max(1.0, design.histories * evenness - 1)
    error = variance**0.5
    return error * _per_error(freedom) if error and freedom > 0 else float("inf")


@cache
def _per_error(freedom: float) -> float:
    """The detectable difference in standard errors; thousands of designs share a few degrees of freedom."""
    return detectable(Sampling(1.0, freedom))


def planned_for(parts: Components, design: Design) -> float:
    """As `detects`, with the upper limit of the error: the limit is too low for only one pilot in five.

    The limits of the parts are combined by the squares of their distances from the estimates (MOVER; Zou and Donner 2008). Fewer than five
    histories have no limit, and the estimate is used.
    """
    shares = contributions(replace(parts, variances=dict.fromkeys(PARTS, 1.0)), design)
    above = {part: max(0.0, limit - parts.positive(part)) for part, limit in parts.upper.items() if limit is not None}
    variance = sum(contributions(parts, design).values())
    variance += sum((shares[part] * distance) ** 2 for part, distance in above.items()) ** 0.5
    return _detected(variance, design, parts.evenness)


def doubled(parts: Components) -> Iterator[tuple[str, Design]]:
    """The design with twice the histories, questions, builds and repeats, each alone; without factors whose effect is unknown."""
    design = parts.design
    yield "histories", replace(design, histories=2 * design.histories)
    yield "questions", replace(design, questions=2 * design.questions)
    if parts.variances["answer"] is not None:
        yield "builds", replace(design, builds=2 * design.builds)
    if parts.variances["judge"] is not None:
        yield "repeats", replace(design, repeats=2 * design.repeats)


def cheapest(parts: Components, wished: float, costs: Tokens, histories: int, questions: int) -> Design | None:
    """The cheapest design that detects a difference at the upper limit of its error (`planned_for`); None if no design does.

    The minimum of many estimates is biased downwards: designs planned with the estimates alone have less power than requested.

    Args:
        wished: the true difference to detect with 80 % power.
        histories, questions: maximum numbers in the data, questions per history. Histories are treated as a sample where possible.
    """
    builds = range(1, 11) if parts.variances["answer"] is not None else (1,)
    repeats = range(1, 6) if parts.variances["judge"] is not None else (1,)
    counts = sorted({*(count for count in range(5, questions, 5)), questions})
    # Fewer histories would only allow statements about these histories.
    fewest = ENOUGH_CLUSTERS if histories >= ENOUGH_CLUSTERS else 1
    designs = (Design(*each) for each in product(range(fewest, histories + 1), counts, builds, repeats))
    by_price = sorted(designs, key=lambda design: (costs.of(design), design.histories))
    return next((design for design in by_price if planned_for(parts, design) <= wished), None)
