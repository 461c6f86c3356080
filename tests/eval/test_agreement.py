"""Agreement beyond chance: kappa and alpha are those of the reference packages, and their intervals hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from scipy.special import betaincinv

from eval.judging.agreement import Verdicts, agreement, kappa


def graders(rng: np.random.Generator, n: int, skills: Sequence[float], share: float = 0.6) -> list[Verdicts]:
    """Graders of whom each sees the truth with a probability of its own, and answers at random otherwise."""
    truth = rng.random(n) < share
    return [
        {
            place: bool(right)
            for place, right in enumerate(np.where(rng.random(n) < skill, truth, rng.random(n) < share))
        }
        for skill in skills
    ]


def test_kappa_and_alpha_are_those_of_statsmodels_sklearn_and_krippendorff() -> None:
    import krippendorff
    from sklearn.metrics import cohen_kappa_score
    from statsmodels.stats.inter_rater import cohens_kappa

    rng = np.random.default_rng(3)
    for n, skills in ((40, (0.8, 0.5)), (200, (0.1, 0.0)), (60, (0.9, 0.7, 0.4, 0.2))):
        every = graders(rng, n, skills)
        ragged = [{key: right for key, right in grader.items() if rng.random() < 0.7} for grader in every]
        table = np.array([[float(grader[key]) if key in grader else np.nan for key in range(n)] for grader in ragged])
        every_pair = agreement(ragged)
        assert every_pair is not None
        assert every_pair.alpha == pytest.approx(krippendorff.alpha(table, level_of_measurement="nominal"), abs=1e-9)
        first, second = ([grader[key] for key in range(n)] for grader in every[:2])
        assert kappa(*every[:2]) == pytest.approx(cohen_kappa_score(first, second), abs=1e-9)
        counts = np.histogram2d(first, second, bins=2)[0]
        assert kappa(*every[:2]) == pytest.approx(cohens_kappa(counts).kappa, abs=1e-9)


def test_graders_without_a_common_answer_and_graders_who_never_differ_have_no_coefficient() -> None:
    assert agreement([{"a": True}, {"b": True}]) is None
    same = agreement([{"a": True, "b": True}, {"a": True, "b": True}])
    assert same is not None
    assert (same.n, same.agreeing, same.kappa, same.alpha) == (2, 1.0, None, None)
    assert kappa({"a": True, "b": True, "c": False, "d": False}, {"a": True, "b": False, "c": True, "d": False}) == 0.0


def test_only_answers_that_two_graders_share_count() -> None:
    found = agreement([{"a": True, "b": False, "x": True}, {"a": True, "b": True}, {"b": True, "y": False}])
    assert found is not None
    assert found.n == 2
    assert found.kappa is None, "kappa is for two graders"


@pytest.mark.slow
def test_intervals_of_simulated_graders_cover_the_true_agreement() -> None:
    rng, rounds, covered = np.random.default_rng(8), 200, np.zeros(2)
    truth = 0.8 * 0.7  # both see the truth; otherwise they agree by chance
    for _ in range(rounds):
        found = agreement(graders(rng, 250, (0.8, 0.7)))
        assert found is not None
        assert found.kappa_interval is not None
        assert found.alpha_interval is not None
        for place, interval in enumerate((found.kappa_interval, found.alpha_interval)):
            covered[place] += interval.low <= truth <= interval.high
    # At least .94, but for chance: 200 rounds have a standard error of .015.
    assert all(betaincinv(each + 1, rounds - each, 0.999) >= 0.94 for each in covered)
    assert (covered / rounds > 0.91).all()


def test_answers_about_one_history_that_share_their_luck_make_the_interval_wider() -> None:
    rng = np.random.default_rng(5)
    hard = {f"c{number}": number % 2 for number in range(10)}
    clusters = {(case, place): case for case in hard for place in range(20)}
    first = {key: bool(rng.random() < 0.5) for key in clusters}
    second = {key: right != bool(hard[key[0]]) for key, right in first.items()}
    alone, grouped = agreement([first, second]), agreement([first, second], clusters)
    assert alone is not None
    assert grouped is not None
    assert alone.kappa == grouped.kappa
    assert alone.kappa_interval is not None
    assert grouped.kappa_interval is not None
    width = alone.kappa_interval.high - alone.kappa_interval.low
    assert grouped.kappa_interval.high - grouped.kappa_interval.low > 2 * width


def test_perfect_agreement_is_not_known_without_error() -> None:
    verdicts = {place: place % 2 == 0 for place in range(30)}
    same = agreement([verdicts, dict(verdicts)])
    assert same is not None
    assert same.kappa == same.alpha == 1.0
    assert same.kappa_interval is not None
    assert 0.6 < same.kappa_interval.low < 0.9
    assert same.kappa_interval.high == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("histories", [5, 10])
def test_agreement_over_few_histories_is_covered(histories: int) -> None:
    """A percentile bootstrap covers .81 to .92 of these."""
    rng, covered = np.random.default_rng(histories), 0
    clusters = dict(enumerate(np.repeat(np.arange(histories), 30).astype(str).tolist()))
    for _ in range(300):
        skill = rng.beta(0.7 * 19, 0.3 * 19, histories).repeat(30)
        truth = rng.random(skill.size) < 0.6
        other = np.where(rng.random(skill.size) < skill, truth, rng.random(skill.size) < 0.6)
        found = agreement([dict(enumerate(truth.tolist())), dict(enumerate(other.tolist()))], clusters)
        assert found is not None
        assert found.kappa_interval is not None
        covered += found.kappa_interval.low <= 0.7 <= found.kappa_interval.high
    assert covered / 300 >= 0.925


def test_one_large_history_leaves_few_degrees_of_freedom() -> None:
    """As for a mean: with G - 1 of them, kappa's interval covered .86 instead of .95 where one of ten histories held most answers."""
    rng = np.random.default_rng(4)
    first = dict(enumerate((rng.random(200) < 0.5).tolist()))
    second = {key: value if rng.random() < 0.9 else not value for key, value in first.items()}
    widths = []
    for sizes in ([20] * 10, [110, *[10] * 9]):
        clusters = dict(enumerate(np.repeat(np.arange(10), sizes).astype(str).tolist()))
        found = agreement([first, second], clusters)
        assert found is not None
        assert found.kappa_interval is not None
        widths.append(found.kappa_interval.high - found.kappa_interval.low)
    assert widths[1] > 2 * widths[0]
