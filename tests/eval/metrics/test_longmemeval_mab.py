from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_loaders.schema import Gold, Question
from eval.files.records import Prediction, Score
from eval.judging.score import Metric
from eval.metrics import longmemeval_mab as mab
from scripts.assembly.steps import metrics

QUESTION = Question("q1", "Where?")
METRICS = metrics(["mab_em", "mab_f1", "mab_substring_em", "mab_rouge_l_f", "mab_rouge_l_recall"])


def answered(answer: str) -> Prediction:
    return Prediction("c1", "q1", answer, items=(), scores=(), outcome="answered")


def test_the_parsed_reply_ends_with_its_line() -> None:
    assert mab.parse_output("Sure.\nANSWER: Paris\nanswer: Rome") == "Paris"
    assert mab.parse_output("Paris\nbecause") == "Paris"
    assert mab.parse_output("\nParis") == ""


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_the_better_of_raw_and_parsed_reply_counts(metric: Metric) -> None:
    gold = Gold(("stone bridge",))
    assert metric.score(QUESTION, gold, answered("I thought about it.\nAnswer: stone bridge\nDone.")).value == 1
    assert metric.score(QUESTION, gold, answered("Answer: lamp")).value == 0


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_the_raw_reply_counts_where_parsing_loses_the_answer(metric: Metric) -> None:
    score = metric.score(QUESTION, Gold(("x", "the answer stone bridge")), answered("The answer:\nstone bridge"))
    assert score.value == 1


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_empty_and_unanswered_replies_differ(metric: Metric) -> None:
    assert metric.score(QUESTION, Gold(("the",)), answered("")).value == 0
    failed = Prediction("c1", "q1", "", items=(), scores=(), outcome="error", error="no reply")
    assert metric.score(QUESTION, Gold(("the",)), failed) == Score(None, why="error: no reply")


def test_a_substring_match_looks_into_words() -> None:
    assert mab.substring_match("Parisian", "Paris")
    assert not mab.substring_match("Paris", "Parisian")


@settings(max_examples=40)
@given(reply=st.text(min_size=1, max_size=40).filter(str.strip), gold=st.text(max_size=20))
def test_parsing_never_lowers_the_score_of_the_raw_reply(reply: str, gold: str) -> None:
    for metric, measure in zip(METRICS, mab.MEASURES.values(), strict=True):
        value = metric.score(QUESTION, Gold((gold,)), answered(reply)).value
        assert value is not None
        assert float(measure(reply, gold)) <= value <= 1
