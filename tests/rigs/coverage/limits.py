"""Situations in which a printed number misses its level: the limits that docs/statistics.md and docs/gate.md state.

Scores of one question are right with a probability of its own (symmetric beta), so that two runs differ on a given share of the questions.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator

import numpy as np

from eval.analysis.growth import exponent
from eval.judging.agreement import agreement
from eval.judging.judge_card import Card, ProbeVerdicts, Share, card, corrected
from eval.report import published
from eval.report.measures import mean
from eval.report.published import FLIPS, Runs, builds_needed, decided, gap_error, measured_runs
from eval.statistics.power import planned
from eval.statistics.stats import (
    Difference,
    Grouping,
    Interval,
    Sampling,
    around,
    by_question,
    difference,
    differences,
    effective_number,
    estimate,
    independent,
    jackknifed,
)
from eval.statistics.variance import components, detects
from scripts.answers.audit import regression
from scripts.answers.manifest import Claim
from scripts.answers.matching import Asked
from scripts.answers.scoring import ScoredClaim
from scripts.commands.gate import Gate, verdict
from tests.rigs.coverage import verdicts
from tests.rigs.coverage.rows import LOCOMO, Row, covered, homes_of, repeated, shares_by_history

REPETITIONS = 1000
ANSWERABLE = (154, 82, 154, 201, 182, 124, 150, 192, 156, 145)
"""Answerable questions of LoCoMo's histories, 1,540 together."""
TENS = {"200 questions in ten histories": (20,) * 10, "1,540 questions in ten histories": ANSWERABLE}
MARGIN = float(Gate.model_fields["margin"].default)


def rows(share: float = 1.0) -> list[Row]:
    """Simulate all situations.

    Args:
        share: share of the repetitions; 1 takes a minute on one core.
    """
    times = repeated(REPETITIONS, share)
    parts = (
        _gates,
        _looks,
        _best,
        _missing,
        _unequal,
        _planned,
        _uneven,
        _changes,
        _advised,
        _products,
        _histories,
        _kappas,
        _cards,
        _rows_apart,
        _costs,
        _quantities,
        _slopes,
        _effects,
    )
    return [row for part in parts for row in part(times)]


# --- the gate --------------------------------------------------------------------------------------------------------------

GATED = {
    "48 questions in 4 histories": (12,) * 4,
    "48 questions in 6 histories": (8,) * 6,
    "400 questions in 1 history": (400,),
    "400 questions in 10 histories": (40,) * 10,
    "1,540 questions in 10 histories": ANSWERABLE,
}


def likely(rng: np.random.Generator, shape: tuple[int, ...], flips: float) -> np.ndarray:
    """Probabilities of right answers, such that two runs differ on a share `flips` of the questions: float64 of that shape."""
    if not flips:
        return rng.integers(0, 2, shape).astype(float)
    spread = flips / (1 - 2 * flips)
    return np.asarray(rng.beta(spread, spread, shape))


def run(
    rng: np.random.Generator, chances: np.ndarray, homes: np.ndarray, loss: float = 0.0, of_history: float = 0.0
) -> np.ndarray:
    """0/1 scores of one build, float64 [times, n]: a share `loss` of all questions is lost; a history gains or loses by chance."""
    right = rng.random(chances.shape) < chances
    shift = rng.normal(-loss, of_history, (len(chances), int(homes.max()) + 1))[:, homes]
    moved = rng.random(chances.shape) < 2 * np.abs(shift)  # half of the questions are right before
    return np.where(moved, shift > 0, right).astype(float)


def failed(now: np.ndarray, baseline: np.ndarray, homes: np.ndarray) -> np.ndarray:
    """Whether the gate fails, bool [times]."""
    gaps = differences(now - baseline, Grouping.of(homes), np.ones(len(now), dtype=bool))
    return np.array([verdict(gap, MARGIN) == "regression" for gap in gaps])


def _gates(times: int) -> Iterator[Row]:
    rng = np.random.default_rng(1)
    for name, sizes in GATED.items():
        homes = homes_of(sizes)
        cells = [(flips, loss, 0.0) for flips in (0.0, 0.16) for loss in (0.0, MARGIN, 2 * MARGIN)]
        for flips, loss, of_history in [*cells, (0.16, 0.0, 0.03)]:
            chances = likely(rng, (times, homes.size), flips)
            lost = failed(run(rng, chances, homes, loss, of_history), run(rng, chances, homes), homes)
            situation = f"{name}, {flips:.0%} of answers change, true loss {loss:.2f}"
            situation += f", each history ±{of_history:.2f} a build" * bool(of_history)
            yield Row("gate", situation, "fails", float(lost.mean()), times)


def _looks(times: int) -> Iterator[Row]:
    """Twenty changes without any effect, compared with one baseline."""
    rng = np.random.default_rng(2)
    for name in ("48 questions in 6 histories", "400 questions in 10 histories"):
        homes = homes_of(GATED[name])
        chances = likely(rng, (times, homes.size), 0.16)
        baseline = run(rng, chances, homes)
        looks = np.stack([failed(run(rng, chances, homes), baseline, homes) for _ in range(20)])
        situation = f"{name}, 16% of answers change, true loss 0.00"
        yield Row("gate", situation, "fails in one of 20 changes or more", float(looks.any(axis=0).mean()), times)


# --- choices, missing answers, unequal histories, plans ----------------------------------------------------------------------


def _best(times: int) -> Iterator[Row]:
    rng = np.random.default_rng(3)
    for name, sizes in TENS.items():
        homes = homes_of(sizes)
        for count in (2, 10, 20):
            best = []
            for _ in range(times):
                luck = shares_by_history(rng, len(sizes), 0.5, 0.02)[homes]
                scores = (rng.random((count, homes.size)) < luck).astype(float)
                best.append(estimate(scores[scores.mean(axis=1).argmax()], homes))  # type: ignore[arg-type]
            situation = f"{count} equal settings, {name}"
            yield Row(
                "best of several",
                situation,
                "bias of the best mean",
                float(np.mean([each.mean for each in best])) - 0.5,
                times,
            )
            yield Row("best of several", situation, "coverage", covered([each.by_case for each in best], 0.5), times)


def _missing(times: int) -> Iterator[Row]:
    """Two equal rows that agree on 70 % of the questions; of the first one only wrong answers are missing."""
    rng, homes = np.random.default_rng(4), homes_of(TENS["200 questions in ten histories"])
    for lost in (0.05, 0.2):
        found: list[Difference] = []
        for _ in range(times):
            chances = likely(rng, (1, homes.size), 0.3)
            first, second = (run(rng, chances, homes)[0] for _ in range(2))
            there = (first == 1.0) | (rng.random(homes.size) >= 2 * lost)
            found.append(difference(first[there], second[there], homes[there], test=False))
        situation = f"200 questions in ten histories, {lost:.0%} missing, only wrong answers"
        yield Row(
            "paired difference, by case", situation, "coverage", covered([each.by_case for each in found], 0.0), times
        )


def _unequal(times: int) -> Iterator[Row]:
    rng, homes = np.random.default_rng(5), homes_of((1000, *(20,) * 9))
    for alike in (0.02, 0.1):
        found = []
        for _ in range(times):
            both = [
                (rng.random(homes.size) < shares_by_history(rng, 10, 0.5, alike)[homes]).astype(float) for _ in range(2)
            ]
            found.append(difference(both[0], both[1], homes, test=False).by_case)
        situation = f"a history of 1,000 and nine of 20 questions, ICC {alike}"
        yield Row("paired difference, by case", situation, "coverage", covered(found, 0.0), times)


def _planned(times: int) -> Iterator[Row]:
    """The difference that a plan prints before any run, under its assumption: 0/1 and graded differences, with history effects."""
    rng = np.random.default_rng(6)
    for name, sizes in {
        "10 LoCoMo histories": LOCOMO,
        "5 LoCoMo histories": LOCOMO[:5],
        "20 histories of 20": (20,) * 20,
    }.items():
        homes, assumed = homes_of(sizes), planned(sizes)
        assert assumed is not None, "there are questions"
        grouping, shape = Grouping.of(homes), (times, homes.size)
        effect = rng.normal(assumed[0], (0.02 * 0.3) ** 0.5, (times, len(sizes)))[:, homes]
        luck = rng.random(shape)
        binary = np.where(luck < (0.3 + effect) / 2, 1.0, np.where(luck < 0.3, -1.0, 0.0))
        graded = np.clip(effect + rng.laplace(0.0, (0.3 * 0.98 / 2) ** 0.5, shape), -1.0, 1.0)
        for kind, gaps in {"0/1": binary, "graded": graded}.items():
            ps = [each.p_by_case for each in differences(gaps, grouping, np.ones(times, dtype=bool))]
            situation = f"planned before any run, {kind}, {name}"
            power = float(np.mean([p is not None and p < 0.05 for p in ps]))
            yield Row("detectable difference", situation, "power at 5 %", power, times)


def _uneven(times: int) -> Iterator[Row]:
    """The difference that `variance` says the data detect, averaged over pilots of three builds, and the power at it."""
    rng = np.random.default_rng(16)

    def drawn(count: int, homes: np.ndarray, true: float) -> np.ndarray:
        """Differences [count, n, builds]: a tenth of the answers is drawn again in each build."""
        effect = rng.normal(true, (0.02 * 0.3) ** 0.5, (count, int(homes.max()) + 1))[:, homes, None]
        first, again = (
            np.where(luck < (0.3 + effect) / 2, 1.0, np.where(luck < 0.3, -1.0, 0.0))
            for luck in (rng.random((count, homes.size, 1)), rng.random((count, homes.size, 3)))
        )
        return np.where(rng.random(again.shape) < 0.1, again, first)

    for name, sizes in {"10 histories of 20": (20,) * 10, "a history of 120 and nine of 9": (120, *(9,) * 9)}.items():
        homes, squares = homes_of(sizes), []
        for pilot in drawn(repeated(times, 0.15), homes, 0.1):
            parts = components({(str(home), str(at)): pilot[at][:, None] for at, home in enumerate(homes)})
            squares.append(detects(parts, parts.design) ** 2)
        gaps = drawn(times, homes, float(np.mean(squares)) ** 0.5).mean(axis=2)
        found = differences(gaps, Grouping.of(homes), np.ones(times, dtype=bool))
        power = float(np.mean([each.p_by_case is not None and each.p_by_case < 0.05 for each in found]))
        yield Row("detectable difference", f"by components, three builds, {name}", "power at 5 %", power, times)


def _changes(times: int) -> Iterator[Row]:
    """A difference of 5 points with the probes that docs/change.md names: their numbers hold for independent probes."""
    rng = np.random.default_rng(14)
    for probes, share in ((306, 0.1), (640, 0.2), (934, 0.3)):
        homes = np.arange(probes) % 40
        for alike in (0.0, 0.02, 0.1):
            effect = rng.normal(0.05, (alike * share) ** 0.5, (times, 40))[:, homes]
            luck = rng.random((times, probes))
            gaps = np.where(luck < (share + effect) / 2, 1.0, np.where(luck < share, -1.0, 0.0))
            grouping = Grouping.of(homes)
            found = differences(gaps, grouping, np.ones(times, dtype=bool))
            power = float(np.mean([each.p_by_case is not None and each.p_by_case < 0.05 for each in found]))
            situation = (
                f"0.05 between two memories under change, {probes} probes in 40 hosts, {share:.0%} differ, ICC {alike}"
            )
            yield Row("detectable difference", situation, "power at 5 %", power, times)


def _advised(times: int) -> Iterator[Row]:
    """What becomes of a gap from a published number that one build leaves open, once the advised number of builds is there."""
    rng, most = np.random.default_rng(15), 20
    for name, sizes in {"10 LoCoMo histories": LOCOMO, "10 histories of 40": (40,) * 10}.items():
        size, effective = sum(sizes), effective_number(np.array(sizes, dtype=float))
        least = FLIPS / 2 / size
        one = Runs(1, least, math.inf, measured=False, histories=effective)
        parts, _ = verdicts.runs(verdicts.Situation(name, sizes, builds=most), repeated(times, 0.4), rng)
        advice: Counter[str] = Counter()
        for shift, own in itertools.product((0.0, 0.015, 0.03), parts):
            theirs = (own[:, -1].sum() - shift).round(3)
            gap = float(own[:, 0].sum() - theirs)
            if any(decided(gap, gap, *gap_error(one, None, verdicts.ROUNDED), published.MARGIN)):
                continue
            builds = builds_needed(gap, Interval(gap, gap), one, None, verdicts.ROUNDED, published.MARGIN)
            if builds is None or builds > most:
                advice["more"] += 1
                continue
            later, now = measured_runs(own[:, :builds], least), float(own[:, :builds].sum() / builds - theirs)
            settled = any(decided(now, now, *gap_error(later, None, verdicts.ROUNDED), published.MARGIN))
            advice["settled" if settled else "open"] += 1
        situation, tried = f"{name}, true gap 0, .015 or .03, open with one build", 3 * len(parts)
        advised = advice["settled"] + advice["open"]
        yield Row("verdict", situation, "settled by the advised builds", advice["settled"] / max(1, advised), tried)
        more = advice["more"] / max(1, advice.total())
        yield Row("verdict", situation, f"advised none, or more than {most} builds", more, tried)


def _products(times: int) -> Iterator[Row]:
    """A product of three means over questions of three kinds in each history."""
    rng = np.random.default_rng(7)
    for histories in (5, 10, 20):
        for factors in ((0.95, 0.97, 0.98), (0.7, 0.8, 0.9), (0.2, 0.3, 0.4)):
            for alike in (0.02, 0.1):
                found = []
                for _ in range(times):
                    hits = np.stack(
                        [rng.binomial(20, shares_by_history(rng, histories, each, alike)) for each in factors]
                    )
                    left = (hits.sum(axis=1)[:, None] - hits) / (20 * (histories - 1))
                    value = math.prod((hits.mean(axis=1) / 20).tolist())
                    found.append(jackknifed(value, left.prod(axis=0).tolist(), [60] * histories).by_case)
                situation = f"{histories} histories of 3 x 20 questions, product {math.prod(factors):.2f}, ICC {alike}"
                yield Row("product of means", situation, "coverage", covered(found, math.prod(factors)), times)


# --- levels that the first table of the page warns of ---------------------------------------------------------------------------


def _histories(times: int) -> Iterator[Row]:
    rng, homes = np.random.default_rng(8), homes_of(LOCOMO)
    luck = [shares_by_history(rng, len(LOCOMO), 0.5, 0.02)[homes] for _ in range(times)]
    found = [by_question((rng.random(homes.size) < own).astype(float)) for own in luck]
    yield Row(
        "mean, by question", "new histories: 10 LoCoMo histories, ICC 0.02", "coverage", covered(found, 0.5), times
    )


def _kappas(times: int) -> Iterator[Row]:
    rng = np.random.default_rng(9)
    for histories in (1, 4):
        homes = homes_of([100] * histories)
        clusters, found = dict(enumerate(homes.astype(str).tolist())), []
        for _ in range(repeated(times, 0.25)):
            truth = rng.random(homes.size) < 0.6
            sees = rng.random(homes.size) < shares_by_history(rng, histories, 0.7, 0.2)[homes]
            other = np.where(sees, truth, rng.random(homes.size) < 0.6)
            result = agreement([dict(enumerate(truth.tolist())), dict(enumerate(other.tolist()))], clusters)
            found.append(None if result is None else result.kappa_interval)
        situation = f"{histories} histories of 100 answers, kappa 0.7, ICC 0.2"
        yield Row("kappa", situation, "coverage", covered(found, 0.7), len(found))


def _cards(times: int) -> Iterator[Row]:
    """Six wrong probes of each question, whose acceptance is correlated within the question."""
    rng = np.random.default_rng(10)
    for questions in (10, 30, 100):
        for truth in (0.01, 0.2):
            found = []
            for _ in range(repeated(times, 0.25)):
                luck = shares_by_history(rng, questions, truth, 0.2)
                graded = [
                    ProbeVerdicts(f"wrong {kind}", False, (float(hit),), ("", str(question)))
                    for question, own in enumerate(rng.random((questions, 6)) < luck[:, None])
                    for kind, hit in enumerate(own)
                ]
                accepted = card(graded).accepted
                found.append(None if accepted is None else accepted.interval)
            situation = f"share of the card, {questions} questions of 6 probes, accepts {truth}, ICC 0.2"
            yield Row("corrected score", situation, "coverage of the share", covered(found, truth), len(found))


def _rows_apart(times: int) -> Iterator[Row]:
    """Two rows of the same truth and a card of 360 wrong and 120 right probes: of the first row the judge errs otherwise."""
    rng, homes = np.random.default_rng(17), homes_of(ANSWERABLE)
    for name, accepts, rejects in (
        ("both rows err like the probes", 0.2, 0.05),
        ("one accepts .4 of wrong, the probes .2", 0.4, 0.05),
        ("one rejects .2 of right, the probes .05", 0.2, 0.2),
    ):
        gaps, apart = [], 0
        for _ in range(repeated(times, 0.2)):
            wrong, right = rng.binomial(360, 0.2) / 360, rng.binomial(120, 0.05) / 120
            judge = Card((), Share(right, 120.0, 120), Share(wrong, 360.0, 360), None, None)
            both = []
            for accepted, rejected in ((accepts, rejects), (0.2, 0.05)):
                hits = np.where(rng.random(homes.size) < 0.6, 1 - rejected, accepted)
                fixed = corrected(estimate((rng.random(homes.size) < hits).astype(float), homes), judge)  # type: ignore[arg-type]
                assert not isinstance(fixed, str), "the judge discriminates"
                both.append(fixed)
            first, second = both
            gaps.append(first.mean - second.mean)
            apart += first.interval.low > second.interval.high or second.interval.low > first.interval.high
        situation = f"two rows of truth 0.6, {name}"
        yield Row("corrected score", situation, "mean difference", float(np.mean(gaps)), len(gaps))
        yield Row("corrected score", situation, "intervals lie apart", apart / len(gaps), len(gaps))


def _costs(times: int) -> Iterator[Row]:
    rng = np.random.default_rng(11)
    draws: dict[str, tuple[np.ndarray, float]] = {
        f"log-normal, deviation {scale}": (rng.lognormal(0.0, scale, (times, 10)), math.exp(scale**2 / 2))
        for scale in (0.5, 1.0)
    }
    draws["an event in a fifth of the writes"] = ((rng.random((times, 10)) < 0.2).astype(float), 0.2)
    for name, (costs, truth) in draws.items():
        found = []
        for own in costs:
            sampling = Sampling.of(*independent(own[None], Grouping.of(np.zeros(10, dtype=int))))
            found.append(None if sampling is None else around(float(own.mean()), sampling))
        yield Row("cost of one more unit", f"10 writes, {name}", "coverage", covered(found, truth), times)


def _quantities(times: int) -> Iterator[Row]:
    """One quantity of each history, such as the nodes of its tree."""
    rng = np.random.default_rng(13)
    for count in (3, 10):
        names = [f"h{history}" for history in range(count)]
        for scale in (0.3, 1.0):
            found = [mean((100 * rng.lognormal(0.0, scale, count)).tolist(), names) for _ in range(times)]
            spans = [None if each is None else each.by_case or each.by_question for each in found]
            situation = f"{count} histories, log-normal, deviation {scale}"
            yield Row("mean of a quantity", situation, "coverage", covered(spans, 100 * math.exp(scale**2 / 2)), times)


def _slopes(times: int) -> Iterator[Row]:
    rng = np.random.default_rng(12)
    for sizes in ((100, 200, 400), (100, 200, 400, 800, 1600)):
        for slope in (0.0, 1.0):
            noise = rng.normal(0.0, 0.2, (times, len(sizes)))
            fits = [exponent(sizes, (np.array(sizes) ** slope * np.exp(own)).tolist()) for own in noise]
            situation = f"{len(sizes)} sizes, cost of one more unit, exponent {slope:.0f}"
            yield Row(
                "exponent over sizes",
                situation,
                "coverage",
                covered([None if fit is None else fit.interval for fit in fits], slope),
                times,
            )


def claim_of(name: str, measures: dict[str, np.ndarray]) -> ScoredClaim:
    """A claim with these scores of 200 answers, twenty in each of ten conversations."""
    facts = dict.fromkeys(
        ("product", "system", "by", "repository", "commit", "date", "licence", "answer_model", "judge", "form"), ""
    )
    return ScoredClaim(
        claim=Claim(name=name, dataset="LoCoMo", files=(), **facts),  # type: ignore[arg-type]
        asked=tuple(Asked(f"conv-{at % 10}", str(at), "", "", str(1 + at % 4)) for at in range(200)),
        measures=measures,
        sha256="",
        changed=False,
        hashes=(),
        answers=200,
        verdicts=(),
        whole=200,
        counts=Counter(),
        listed=(),
        golds=0,
        other_gold=0,
    )


def _effects(times: int) -> Iterator[Row]:
    """The regression of verdicts on F1 and words over four files of answers to 200 questions in ten conversations."""
    rng, homes, found = np.random.default_rng(13), np.arange(200) % 10, []
    for _ in range(repeated(times, 0.2)):
        luck, slope = rng.normal(0.0, 0.05, 10)[homes], 0.5 + rng.normal(0.0, 0.05, 10)[homes]
        own = []
        for name in "abcd":
            f1, words = rng.random(200), rng.integers(1, 100, 200).astype(float)
            verdicts = (rng.random(200) < 0.2 + luck + slope * f1 + 0.1 * words / 100).astype(float)
            measures = {"f1": f1, "words": words, "verdict": verdicts, "answerable": np.ones(200)}
            own.append(claim_of(name, measures))
        fitted = regression(own)
        assert fitted is not None, "there are ten conversations"
        found.append(fitted.effects)
    for place, (name, truth) in enumerate((("F1", 50.0), ("a hundred words more", 10.0))):
        value = covered([list(effects.values())[place][1] for effects in found], truth)
        yield Row(
            "effect on the verdict",
            f"{name}, 4 files of 200 answers in ten conversations",
            "coverage",
            value,
            len(found),
        )
