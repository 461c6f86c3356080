"""A judge's card: simulated judges get their own error rates back, its intervals hold, corrected scores cover the truth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from scipy.special import betaincinv

from eval.files.store import RunError
from eval.judging.agreement import agreement
from eval.judging.judge_card import (
    Card,
    Corrected,
    Correction,
    ProbeVerdicts,
    Share,
    card,
    corrected,
    read_card,
    write_card,
)
from eval.report.tables import CONDITION, corrected_text
from eval.statistics.stats import estimate

KINDS: Mapping[str, tuple[bool, float]] = {
    "as it is": (True, 0.01),
    "long": (True, 0.1),
    "date": (True, 0.3),
    "another": (False, 0.05),
    "vague": (False, 0.6),
    "a day later": (False, 0.4),
    "empty": (False, 0.0),
}
"""A simulated judge: its errors by kind of probe."""
WEIGHTS = {kind: 1 / 3 if kind == "date" else 0.0 if kind == "empty" else 1.0 for kind in KINDS}
"""Probes of a kind per question; a third of the answers are dates, and empty answers are known to be wrong without a judge."""
TRUE = {
    side: sum(WEIGHTS[kind] * error for kind, (right, error) in KINDS.items() if right == side)
    / sum(WEIGHTS[kind] for kind, (right, _) in KINDS.items() if right == side)
    for side in (True, False)
}


probe = cache(ProbeVerdicts)


def simulated(rng: np.random.Generator, n: int, luck: float = 0.15) -> Card:
    """The card of the simulated judge on `n` questions; some are hard, and raise its errors on all their probes alike."""
    verdicts = []
    for number in range(n):
        hard = luck if rng.random() < 0.5 else -luck
        for kind, (right, error) in KINDS.items():
            if kind != "date" or number % 3 == 0:
                wrong = rng.random() < error * (1 + hard)
                verdicts.append(probe(kind, right, (float(right != wrong),), (f"c{number % 10}", f"q{number}")))
    return card(verdicts)


def covers(covered: int, rounds: int, wanted: float = 0.94) -> bool:
    """Whether this many of the rounds agree with a coverage of `wanted`, but for chance."""
    return bool(betaincinv(covered + 1, rounds - covered, 0.999) >= wanted) and covered / rounds > wanted - 0.025


def test_a_generous_a_strict_and_a_silent_judge_get_what_they_deserve() -> None:
    probes = [("as it is", True), ("vague", False), ("empty", False)]
    generous = card([ProbeVerdicts(kind, right, (1.0,)) for kind, right in probes])
    strict = card([ProbeVerdicts(kind, right, (0.0, 0.0)) for kind, right in probes])
    for judge, rejects, accepts in ((generous, 0.0, 1.0), (strict, 1.0, 0.0)):
        assert judge.rejected is not None
        assert judge.accepted is not None
        assert (judge.rejected.mean, judge.accepted.mean, judge.discriminates) == (rejects, accepts, False)
    assert strict.repeats is not None
    assert strict.repeats.agreeing == 1.0
    silent = card([ProbeVerdicts("as it is", True, (None,)), ProbeVerdicts("as it is", True, (1.0,))])
    assert (silent.lines[0].n, silent.lines[0].unscored, silent.accepted, silent.repeats) == (1, 1, None, None)


def test_repeats_are_averaged_and_their_agreement_is_counted_by_pairs() -> None:
    result = card([ProbeVerdicts("empty", False, (1.0, 0.0, 0.0)), ProbeVerdicts("empty", False, (0.0, 0.0, 0.0))])
    assert result.accepted is not None
    assert result.accepted.mean == pytest.approx(1 / 6)
    assert result.repeats is not None
    assert result.repeats.agreeing == pytest.approx(4 / 6), "one of three pairs of the first, all of the second"


def test_a_verdict_that_turns_with_the_order_of_the_prompt_shows_in_the_order_and_not_in_the_errors() -> None:
    steady = [ProbeVerdicts("vague", False, (0.0,), ("c", f"q{number}"), 0.0) for number in range(9)]
    result = card([*steady, ProbeVerdicts("vague", False, (0.0,), ("c", "q9"), 1.0)])
    assert result.accepted is not None
    assert result.accepted.mean == 0.0
    assert result.order is not None
    assert (result.order.n, result.order.agreeing) == (10, 0.9)
    assert card(steady[:1]).repeats is None
    wavering = card([ProbeVerdicts("vague", False, (0.0, 1.0), ("c", "q"), 0.0)]).order
    assert wavering is not None
    assert wavering.agreeing == 1.0, "compared with the first verdict, which was asked for at the same time"


def test_below_five_histories_kappa_takes_questions_and_not_their_probes() -> None:
    """A judge that errs on all probes of a question: ten probes of 40 questions are 40 pieces of evidence, not 400."""
    probes = [
        ProbeVerdicts(
            "vague", at % 2 == 0, (float((at % 2 == 0) != (number < 4)),), ("c", f"q{number}"), float(at % 2 == 0)
        )
        for number in range(40)
        for at in range(10)
    ]
    order = card([replace(each, history=f"h{place % 3}") for place, each in enumerate(probes)]).order
    single = agreement(
        [{n: each.values[0] == 1.0 for n, each in enumerate(probes)}, {n: each.right for n, each in enumerate(probes)}]
    )
    assert order is not None
    assert single is not None
    assert order.kappa == single.kappa == pytest.approx(0.8)
    assert order.kappa_interval is not None
    assert single.kappa_interval is not None
    wide, narrow = (each.high - each.low for each in (order.kappa_interval, single.kappa_interval))
    assert wide > 10**0.5 * narrow


def test_kappa_takes_histories_and_not_the_cases_that_share_one(tmp_path: Path) -> None:
    verdicts = [
        ProbeVerdicts(
            "vague", False, (float(at % 3 == 0), float(at % 3 == 0 and at < 20)), (f"c{at}", "q"), None, f"h{at // 10}"
        )
        for at in range(60)
    ]
    write_card(tmp_path / "card.jsonl", verdicts)
    alone = card([replace(verdict, question=(verdict.history, f"q{at}")) for at, verdict in enumerate(verdicts)])
    cases = card([replace(verdict, history="") for verdict in verdicts])
    read = read_card(tmp_path / "card.jsonl")
    assert read is not None
    assert card(verdicts).repeats == read.repeats == alone.repeats != cases.repeats


def test_the_interval_by_kind_is_wilson_s() -> None:
    from statsmodels.stats.proportion import proportion_confint

    line = card([ProbeVerdicts("vague", False, (float(number < 7),)) for number in range(50)]).lines[0]
    assert line.interval is not None
    assert (line.interval.low, line.interval.high) == pytest.approx(
        proportion_confint(7, 50, method="wilson"), abs=1e-9
    )


def test_the_interval_of_a_plain_share_is_jeffreys() -> None:
    from statsmodels.stats.proportion import proportion_confint

    interval = Share(0.14, 50.0, 50).interval
    assert (interval.low, interval.high) == pytest.approx(proportion_confint(7, 50, method="jeffreys"), abs=1e-9)


@pytest.mark.slow
def test_the_card_s_intervals_cover_the_errors_of_a_simulated_judge() -> None:
    rng, rounds = np.random.default_rng(11), 200
    means, lines = {True: 0, False: 0}, dict.fromkeys(KINDS, 0)
    for _ in range(rounds):
        judge = simulated(rng, 60)
        for side, share in ((True, judge.rejected), (False, judge.accepted)):
            assert share is not None
            means[side] += share.interval.low <= TRUE[side] <= share.interval.high
        for line in judge.lines:
            assert line.interval is not None
            lines[line.kind] += line.interval.low <= KINDS[line.kind][1] <= line.interval.high
    assert all(covers(covered, rounds) for covered in means.values()), means
    # A share has few values that it can take, so Wilson's interval covers .94 over the kinds and not of every one.
    assert covers(sum(lines.values()), rounds * len(KINDS)), lines


@pytest.mark.slow
@pytest.mark.parametrize(("truth", "n", "probed"), [(0.75, 400, 30), (0.5, 400, 90), (0.3, 150, 200)])
def test_corrected_scores_of_a_simulated_judge_cover_the_truth(truth: float, n: int, probed: int) -> None:
    """The answers that are judged are right and wrong in the ways of the probes, each way as often as among them."""
    rng, rounds, covered, raw = np.random.default_rng(4), 250, 0, 0
    accept = truth * (1 - TRUE[True]) + (1 - truth) * TRUE[False]
    for _ in range(rounds):
        observed = estimate((rng.random(n) < accept).astype(float).tolist(), ["one case"] * n)
        result = corrected(observed, simulated(rng, probed))
        covered += not isinstance(result, str) and result.interval.low <= truth <= result.interval.high
        assert observed.by_question is not None
        raw += observed.by_question.low <= truth <= observed.by_question.high
    assert covers(covered, rounds)
    assert raw < covered, "the raw score is biased"


def test_a_corrected_score_of_few_histories_is_as_uncertain_as_the_score_itself() -> None:
    values = [1.0] * 60 + [0.0] * 60
    few = estimate(values, [f"c{n // 30}" for n in range(120)])
    result = corrected(few, carded(0.0, 0.0))
    assert isinstance(result, Corrected)
    assert few.cautious is not None
    assert result.interval.high - result.interval.low > 0.75 * (few.cautious.high - few.cautious.low)


def carded(rejected: float, accepted: float) -> Card:
    return Card((), Share(rejected, 1000.0, 1000), Share(accepted, 1000.0, 1000), None, None)


def test_the_point_is_rogan_and_gladen_s() -> None:
    observed = estimate([1.0] * 60 + [0.0] * 40, [f"c{number % 4}" for number in range(100)])
    result = corrected(observed, carded(0.1, 0.3))
    assert not isinstance(result, str)
    assert result.mean == pytest.approx((0.6 + 0.7 - 1) / (0.9 + 0.7 - 1))
    assert result.interval.low < result.mean < result.interval.high


def test_why_a_score_is_not_corrected_is_said() -> None:
    observed = estimate([1.0, 0.0] * 20, ["c"] * 40)
    assert "does not tell right from wrong" in str(Correction(carded(0.4, 0.7), "").of(observed, [1.0, 0.0]))
    assert "between right and wrong" in str(Correction(carded(0.1, 0.1), "").of(observed, [1.0, 0.5]))
    assert Correction(None, "make one").of(observed, [1.0]) == "no judge card; make one"


def test_where_rows_err_differently_the_correction_enlarges_their_false_difference_and_the_table_says_so() -> None:
    judge = carded(0.05, 0.2)
    shares = [
        0.6 * 0.95 + 0.4 * accepted for accepted in (0.4, 0.2)
    ]  # two rows of truth .6; of the first, .4 of wrong are accepted
    scores = [
        corrected(estimate([1.0] * round(1000 * each) + [0.0] * round(1000 * (1 - each)), ["c"] * 1000), judge)
        for each in shares
    ]
    first, second = (each for each in scores if isinstance(each, Corrected))
    assert second.mean == pytest.approx(0.6)
    assert first.mean - second.mean == pytest.approx((shares[0] - shares[1]) / 0.75)
    assert first.interval.low > second.interval.high
    assert "where two rows err differently, the correction enlarges the false difference" in CONDITION


def test_a_score_just_outside_of_what_the_probes_get_is_clipped_with_a_one_sided_interval() -> None:
    """Zep's case: .35 of 20 answers are accepted, and .4 of the wrong probes; 20 are too few to tell the two apart."""
    below, above = (estimate([1.0] * right + [0.0] * (20 - right), ["c"] * 20) for right in (7, 19))
    low, high = corrected(below, carded(0.2, 0.4)), corrected(above, carded(0.1, 0.2))
    assert isinstance(low, Corrected)
    assert isinstance(high, Corrected)
    assert (low.mean, low.interval.low) == (0.0, 0.0)
    assert 0.2 < low.interval.high < 0.6
    assert (high.mean, high.interval.high) == (1.0, 1.0)
    assert 0.7 < high.interval.low < 0.95
    inside = corrected(estimate([1.0] * 9 + [0.0] * 11, ["c"] * 20), carded(0.2, 0.4))
    assert isinstance(inside, Corrected)
    assert inside.mean == pytest.approx(0.125)


def test_only_a_score_beyond_two_standard_errors_says_that_the_card_does_not_fit() -> None:
    few, many = (estimate([right] * 400, ["c"] * 400) for right in (0.0, 1.0))
    low, high = corrected(few, carded(0.1, 0.4)), corrected(many, carded(0.3, 0.1))
    assert "fewer of these answers than of the wrong probes" in str(low)
    assert "more of these answers than of the right probes" in str(high)
    assert corrected_text(low) == corrected_text(high) == "not corrected: its card does not fit"


def test_kinds_of_probes_weigh_as_often_as_the_data_have_them() -> None:
    """15 probes of a rare kind, all accepted, beside 150 of a common one, none accepted: .09 and not .5."""
    rare = [ProbeVerdicts("number in words", False, (1.0,), ("c", f"r{number}")) for number in range(15)]
    common = [ProbeVerdicts("another", False, (0.0,), ("c", f"q{number}")) for number in range(150)]
    result = card([*rare, *common])
    assert result.accepted is not None
    assert result.accepted.mean == pytest.approx(15 / 165)


def test_the_point_says_its_condition_and_stands_beside_the_range_over_kinds() -> None:
    kinds = [("as it is", True, 0.0), ("long", True, 0.2), ("another", False, 0.1), ("vague", False, 0.5)]
    errors = [
        ProbeVerdicts(kind, right, (float(right != (number < error * 100)),), ("c", f"q{number}"))
        for kind, right, error in kinds
        for number in range(100)
    ]
    result = corrected(estimate([1.0] * 60 + [0.0] * 40, ["c"] * 100), card(errors))
    assert isinstance(result, Corrected)
    assert result.mean == pytest.approx((0.6 - 0.3) / (0.9 - 0.3))
    assert result.by_kind.low == pytest.approx((0.6 - 0.5) / (1.0 - 0.5))
    assert result.by_kind.high == pytest.approx((0.6 - 0.1) / (0.8 - 0.1))
    assert corrected_text(result).endswith("if answers err like the probes; 0.200–0.714 by kind of probe")


def test_refusals_of_the_run_are_counted_as_wrong_and_the_rest_is_corrected() -> None:
    """60 right answers, 8 wrong ones that are accepted as the probes are (one in four), and 32 refusals that the judge rejects."""
    observed = estimate([1.0] * 62 + [0.0] * 38, ["c"] * 100)
    judge = carded(0.0, 0.25)
    blind, seeing = Correction(judge, "").of(observed, [1.0]), Correction(judge, "").of(observed, [1.0], [0.0] * 32)
    assert isinstance(blind, Corrected)
    assert isinstance(seeing, Corrected)
    assert blind.mean == pytest.approx(0.4933, abs=1e-4), "it takes the refusals for answers that fooled the judge"
    assert seeing.mean == pytest.approx(0.6)


def test_refusals_that_the_judge_accepted_are_no_right_answers() -> None:
    """50 right answers, and 30 refusals of which the judge accepted 10; it errs at nothing else."""
    observed = estimate([1.0] * 60 + [0.0] * 40, ["c"] * 100)
    seen = Correction(carded(0.0, 0.0), "").of(observed, [1.0, 0.0], [1.0] * 10 + [0.0] * 20)
    assert isinstance(seen, Corrected)
    assert seen.mean == pytest.approx(0.5)


def test_probes_of_one_question_say_less_than_as_many_of_other_questions() -> None:
    def trials(questions: int) -> float:
        verdicts = [
            ProbeVerdicts("paraphrase", True, (float(at % 40 >= 10),), ("c", f"q{at % questions}")) for at in range(120)
        ]
        share = card(verdicts).rejected
        assert share is not None
        assert share.mean == pytest.approx(0.25)
        return share.trials

    assert trials(120) == pytest.approx(119, abs=1.5)
    assert trials(40) == pytest.approx(39, abs=1.5), "three probes of one question that agree are one"


def test_one_error_of_a_hundred_says_less_than_a_hundred_trials() -> None:
    """Its variance is that of a share half a probe higher: .0149 × .9851 ÷ 100."""
    share = card([ProbeVerdicts("paraphrase", True, (float(at > 0),), ("c", f"q{at}")) for at in range(100)]).rejected
    assert share is not None
    assert share.trials == pytest.approx(0.01 * 0.99 / (0.014851 * 0.985149 / 100), rel=1e-4)


def test_a_card_is_read_back_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    verdicts = [
        ProbeVerdicts("vague", False, (1.0, None), ("c", "q"), 0.0),
        ProbeVerdicts("as it is", True, (1.0, 1.0), ("c", "q")),
    ]
    write_card(tmp_path / "card.jsonl", verdicts)
    assert read_card(tmp_path / "card.jsonl") == card(verdicts)
    assert read_card(tmp_path / "none.jsonl") is None
    (tmp_path / "bad.jsonl").write_text('{"kind": "vague", "right": "no", "values": [1], "question": ["c", "q"]}\n')
    with pytest.raises(RunError, match="damaged verdict"):
        read_card(tmp_path / "bad.jsonl")
    (tmp_path / "bad.jsonl").write_text('{"kind": "vague", "right": true, "values": [1], "question": "q"}\n')
    with pytest.raises(RunError, match="without case and question"):
        read_card(tmp_path / "bad.jsonl")
