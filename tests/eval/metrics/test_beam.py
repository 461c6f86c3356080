"""BEAM: what the official order score rewards, and what the corrected reading makes of the same answers."""

from __future__ import annotations

import pytest

from data_loaders.schema import Gold, Question
from eval.files.records import Prediction
from eval.metrics import beam
from eval.metrics.labels import says_yes

EVENTS = ["Setting up a bee log", "Buying a smoker", "The first honey test"]
REFUSAL = "I am sorry, I cannot tell."


def found(answer: str, same: set[tuple[int, int]], *, official: bool) -> beam.Ordered:
    return beam.ordered(EVENTS, beam.aligned(EVENTS, beam.lines_of(answer, official=official), same))


@pytest.mark.slow
def test_a_refusal_of_one_line_scores_by_tau_alone_and_nothing_in_the_corrected_score() -> None:
    refused = found(REFUSAL, set(), official=True)
    assert refused.tau_norm == pytest.approx(0.146447, abs=1e-6)
    assert refused.final == 0.0


def test_a_heading_and_blank_lines_cost_points_officially_and_none_corrected() -> None:
    answer = "You brought them up like this:\n\n1. the log\n2. the smoker\n3. the test"
    official = found(answer, {(0, 2), (1, 3), (2, 4)}, official=True)
    corrected = found(answer, {(0, 0), (1, 1), (2, 2)}, official=False)
    assert official.tau_norm is not None
    assert official.tau_norm < 0.5
    assert (corrected.tau_norm, corrected.final) == (1.0, 1.0)


def test_numbers_and_bullets_are_taken_off_lines_and_repeated_lines_count_once() -> None:
    answer = "**In order:**\n- the log\n2) the smoker\n\n2) the smoker\n(3) the test\n2024 was good"
    assert beam.lines_of(answer, official=False) == ["the log", "the smoker", "the test", "2024 was good"]
    assert beam.lines_of(answer, official=True) == answer.split("\n")


def test_events_lose_their_prefix_and_what_is_no_event_is_left_out_unless_official() -> None:
    rubric = [
        "LLM response should mention: the soft hull",
        "replacing planks",
        "LLM response should list the topics in the correct order as specified",
    ]
    assert beam.events_of(rubric, official=False) == ["the soft hull", "replacing planks"]
    assert beam.events_of(rubric, official=True) == rubric


def test_an_answer_without_lines_is_zero_and_one_event_alone_has_no_tau() -> None:
    assert beam.ordered(EVENTS, []).final == 0.0
    alone = beam.ordered(["Only topic"], ["Only topic"])
    assert (alone.tau_norm, alone.final) == (None, None)


def test_an_event_that_is_named_twice_in_its_own_words_counts_once() -> None:
    twice = beam.ordered(["A", "B", "A"], ["A", "A", "other", "other"])
    assert (twice.precision, twice.recall) == (1 / 3, 1 / 2)


@pytest.mark.parametrize(
    ("reply", "official", "corrected"),
    [("yes", True, True), ("No.", False, False), ("It happened yesterday.", True, None), ("", False, None)],
)
def test_yes_anywhere_is_a_yes_officially_only(reply: str, official: bool, corrected: bool | None) -> None:
    assert says_yes(reply, official=True) is official
    assert says_yes(reply, official=False) is corrected


@pytest.mark.parametrize(
    ("reply", "corrected"),
    [('{"score": 0.5}', 0.5), ('{"score": 2}', None), ('{"score": true}', None), ('{"score": "1"}', None)],
)
def test_a_strict_item_score_is_one_of_three_numbers(reply: str, corrected: float | None) -> None:
    assert beam.item_score(reply, official=False) == corrected


@pytest.mark.parametrize("score", ["NaN", "-Infinity", '"nan"', "1" * 400])
def test_a_score_that_is_no_finite_number_is_no_verdict(score: str) -> None:
    reply = f'{{"score": {score}}}'
    assert beam.truncated(beam.item_score(reply, official=True), reply) is None
    assert beam.item_score(reply, official=True) is None


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(
    "form",
    ['{{"score": {}}}\n{{"score": {}}}', '{{"score": {}, "reason": "a"}} Rather: {{"score": {}, "reason": "b"}}'],
)
def test_of_two_scores_the_official_reading_takes_the_first_and_the_strict_one_none(form: str, first: int) -> None:
    reply = form.format(first, 1 - first)
    assert beam.item_score(reply, official=True) == beam.truncated(float(first), reply) == first
    assert beam.item_score(reply, official=False) is None
    assert beam.item_score(form.format(first, first), official=False) == first


def test_the_refusal_bar_is_the_official_score_of_one_line_whatever_the_reply() -> None:
    question, prediction = Question("q", "In which order?"), Prediction("c", "q", "all of it", (), (), "answered")
    gold = Gold(("",), category="event_ordering", detail={"rubric": EVENTS})
    assert beam.beam_refusal(question, gold, prediction).value == pytest.approx(0.146447, abs=1e-6)
    assert beam.beam_refusal(question, Gold(("",), category="summarization"), prediction).value is None
