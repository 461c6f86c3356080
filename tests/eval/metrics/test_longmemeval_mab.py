from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_loaders.schema import Gold, Question
from eval.files.records import Prediction, Score
from eval.metrics import longmemeval_mab as mab
from eval.metrics.lexical import squad_exact_match

QUESTION = Question("q1", "Where?")
METRICS = (mab.mab_em, mab.mab_f1, mab.mab_substring_em, mab.mab_rouge_l_f, mab.mab_rouge_l_recall)


def answered(answer: str) -> Prediction:
    return Prediction("c1", "q1", answer, items=(), scores=(), outcome="answered")


def test_the_parsed_reply_ends_with_its_line() -> None:
    assert mab.parse_output("Sure.\nANSWER: Paris\nanswer: Rome") == "Paris"
    assert mab.parse_output("Paris\nbecause") == "Paris"
    assert mab.parse_output("\nParis") == ""


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.__name__)
def test_the_better_of_raw_and_parsed_reply_counts(metric: Callable[..., Score]) -> None:
    gold = Gold(("stone bridge",))
    assert metric(QUESTION, gold, answered("I thought about it.\nAnswer: stone bridge\nDone.")).value == 1
    assert metric(QUESTION, gold, answered("Answer: lamp")).value == 0


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.__name__)
def test_the_raw_reply_counts_where_parsing_loses_the_answer(metric: Callable[..., Score]) -> None:
    score = metric(QUESTION, Gold(("x", "the answer stone bridge")), answered("The answer:\nstone bridge"))
    assert score.value == 1


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.__name__)
def test_empty_and_unanswered_replies_differ(metric: Callable[..., Score]) -> None:
    assert metric(QUESTION, Gold(("the",)), answered("")).value == 0
    failed = Prediction("c1", "q1", "", items=(), scores=(), outcome="error", error="no reply")
    assert metric(QUESTION, Gold(("the",)), failed) == Score(None, why="error: no reply")


def test_a_substring_match_looks_into_words() -> None:
    assert mab.substring_match("Parisian", "Paris")
    assert not mab.substring_match("Paris", "Parisian")


RAW = {mab.mab_em: squad_exact_match, mab.mab_f1: mab.token_f1, mab.mab_substring_em: mab.substring_match}


@settings(max_examples=40)
@given(reply=st.text(min_size=1, max_size=40).filter(str.strip), gold=st.text(max_size=20))
def test_parsing_never_lowers_the_score_of_the_raw_reply(reply: str, gold: str) -> None:
    for metric, measure in RAW.items():
        value = metric(QUESTION, Gold((gold,)), answered(reply)).value
        assert value is not None
        assert float(measure(reply, gold)) <= value <= 1
