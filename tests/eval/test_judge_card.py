"""A judge's card: probes are what they claim, simulated judges get their own error rates back, corrected scores cover the truth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import beta

from data_loaders.schema import Case, Gold, Question
from eval.judge_card import Card, Line, Verdict, card, corrected, kappa
from eval.judge_probes import Probe, probes
from eval.stats import estimate

CASE = Case(
    "c1",
    ("Ines", "Ruben"),
    (),
    (
        (Question("q1", "When did Ines leave the weaving school?"), Gold(("7 May 2023",), category="temporal")),
        (Question("q2", "What did Ines bring?"), Gold(("bread, cheese and figs",), category="single")),
        (Question("q3", "Who fixed the boat?"), Gold(("Ruben",), category="single")),
        (Question("q4", "When was the wedding?"), Gold(("12 June 2021",), category="temporal")),
        (Question("q5", "Why did Ines sell it?"), Gold(("-",), answerable=False, trap="She needed money")),
    ),
)
MADE = list(probes([CASE]))


def of(question: str) -> dict[str, Probe]:
    return {probe.kind: probe for probe in MADE if probe.question.id == question}


def test_dates_move_by_a_day_a_month_and_a_year_and_are_written_in_figures() -> None:
    answers = {kind: probe.answer for kind, probe in of("q1").items()}
    assert answers["the date in figures"] == "2023-05-07"
    assert answers["a day later"] == "8 May 2023"
    assert answers["a month later"] == "7 June 2023"
    assert answers["a year later"] == "7 May 2024"
    assert answers["another question's answer"] == "12 June 2021"


def test_lists_lose_an_item_or_have_one_swapped_and_may_be_in_another_order() -> None:
    answers = {kind: probe.answer for kind, probe in of("q2").items()}
    assert answers["the list in another order"] == "figs, cheese, bread"
    assert answers["an item of the list missing"] == "bread, cheese"
    assert answers["an item of the list swapped"] == "bread, cheese, Ruben"


def test_a_speaker_becomes_the_other_and_a_trap_is_offered_where_there_is_no_answer() -> None:
    assert of("q3")["the other speaker"].answer == "Ines"
    assert {kind: (probe.right, probe.answer) for kind, probe in of("q5").items()} == {
        "refusal where there is no answer": (True, "I do not know; the conversation does not say."),
        "the tempting answer": (False, "She needed money"),
    }


def test_wrong_probes_never_repeat_the_gold_answer() -> None:
    for probe in MADE:
        if not probe.right and "hedged" not in probe.kind:
            assert probe.gold.answers[0] not in probe.answer, probe.kind
        if probe.right and probe.gold.answerable and probe.kind in ("as it is", "inside a long sentence"):
            assert probe.gold.answers[0] in probe.answer


def test_a_generous_a_strict_and_a_silent_judge_get_what_they_deserve() -> None:
    generous = card([Verdict(probe.kind, probe.right, (1.0,)) for probe in MADE])
    assert (generous.errors(True), generous.errors(False)) == (0.0, 1.0)
    strict = card([Verdict(probe.kind, probe.right, (0.0, 0.0)) for probe in MADE])
    assert (strict.errors(True), strict.errors(False), strict.consistency) == (1.0, 0.0, 1.0)
    silent = card([Verdict("as it is", True, (None,)), Verdict("as it is", True, (1.0,))])
    assert (silent.lines[0].n, silent.lines[0].unscored, silent.errors(False)) == (1, 1, None)


def test_repeats_that_differ_are_counted_and_the_majority_is_the_verdict() -> None:
    result = card([Verdict("empty", False, (1.0, 0.0, 0.0)), Verdict("empty", False, (0.0, 0.0, 0.0))])
    assert result.consistency == 0.5
    assert result.errors(False) == 0.0


def carded(rejected: float, accepted: float, n: int) -> Card:
    lines = (Line("r", True, n, 0, rejected, None), Line("w", False, n, 0, accepted, None))
    return Card(lines, None)


def test_a_judge_that_does_not_tell_right_from_wrong_corrects_nothing() -> None:
    observed = estimate([1.0, 0.0] * 20, ["c"] * 40)
    assert corrected(observed, carded(0.4, 0.7, 100)) is None
    assert corrected(observed, card([Verdict("as it is", True, (1.0,))])) is None


def test_the_point_is_rogan_and_gladen_s() -> None:
    observed = estimate([1.0] * 60 + [0.0] * 40, [f"c{number % 4}" for number in range(100)])
    result = corrected(observed, carded(0.1, 0.3, 1000))
    assert result is not None
    assert result.mean == pytest.approx((0.6 + 0.7 - 1) / (0.9 + 0.7 - 1))
    assert result.interval.low < result.mean < result.interval.high


@pytest.mark.slow
@pytest.mark.parametrize(("truth", "keeps", "refuses"), [(0.5, 0.9, 0.7), (0.75, 0.95, 0.6), (0.3, 0.8, 0.9)])
def test_corrected_scores_of_simulated_judges_cover_the_truth(truth: float, keeps: float, refuses: float) -> None:
    rng, n, probed, rounds = np.random.default_rng(4), 400, 300, 600
    accept = truth * keeps + (1 - truth) * (1 - refuses)
    covered = 0
    for _ in range(rounds):
        values = (rng.random(n) < accept).astype(float).tolist()
        observed = estimate(values, ["one case"] * n)
        judge = carded(1 - rng.binomial(probed, keeps) / probed, 1 - rng.binomial(probed, refuses) / probed, probed)
        result = corrected(observed, judge)
        covered += result is not None and result.interval.low <= truth <= result.interval.high
    # At least .94, but for chance: 600 rounds have a standard error of .009.
    assert beta.ppf(0.999, covered + 1, rounds - covered) >= 0.94
    assert covered / rounds > 0.92


def test_kappa_is_agreement_beyond_chance() -> None:
    first = {"a": True, "b": True, "c": False, "d": False, "e": True}
    assert kappa(first, first) == pytest.approx(1.0)
    assert kappa({"a": True, "b": True, "c": False, "d": False}, {"a": True, "b": False, "c": True, "d": False}) == 0.0
    assert kappa({"a": True}, {"a": True}) is None
    assert kappa({"a": True}, {"b": True}) is None
