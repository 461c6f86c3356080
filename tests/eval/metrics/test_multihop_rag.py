from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_loaders.schema import Gold, Question
from eval.metrics import multihop_rag
from eval.metrics.multihop_rag import FactRetrieval
from eval.records import Prediction, Score

QUESTION = Question("q1", "Who?")


def answered(answer: str) -> Prediction:
    return Prediction("c1", "q1", answer, items=(), scores=(), outcome="answered")


def test_null_questions_are_skipped_in_the_means() -> None:
    scores = multihop_rag.mean_retrieval([["fact A"], ["x"], ["x"]], [["fact A"], ["fact B"], []])
    assert scores == FactRetrieval(0.5, 0.5, 0.5, 0.5)
    with pytest.raises(ValueError, match="at least one"):
        multihop_rag.mean_retrieval([["x"]], [[]])
    with pytest.raises(ValueError, match="null questions"):
        multihop_rag.fact_retrieval(["x"], [])


def test_a_fact_that_is_found_again_adds_nothing() -> None:
    # Rank 1 brings one new fact, rank 2 none, rank 3 two: (1 + 2/3) / 3.
    scores = multihop_rag.fact_retrieval(["A", "A", "A B C"], ["A", "B", "C"])
    assert scores.map_at_10 == pytest.approx((1 + 2 / 3) / 3)


def test_a_fact_named_twice_lowers_the_average_precision() -> None:
    assert multihop_rag.fact_retrieval(["A"], ["A", "A"]).map_at_10 == 0.5


def test_hits_at_4_end_at_rank_4() -> None:
    assert multihop_rag.fact_retrieval(["x", "x", "x", "A"], ["A"]) == FactRetrieval(1, 1, 0.25, 0.25)
    assert multihop_rag.fact_retrieval(["x", "x", "x", "x", "A"], ["A"]) == FactRetrieval(0, 1, 0.2, 0.2)


def test_only_spaces_and_line_breaks_are_ignored() -> None:
    assert multihop_rag.fact_retrieval(["fa\nct A"], ["f act A"]).hits_at_4 == 1
    assert multihop_rag.fact_retrieval(["fact\tA"], ["fact A"]).hits_at_4 == 0


def test_the_printed_accuracy_is_a_third_when_all_is_wrong() -> None:
    summary = multihop_rag.summarise(["a", "b", "c"], ["x", "y", "z"])
    assert (summary.f1, summary.accuracy) == (0, pytest.approx(1 / 3))
    with pytest.raises(ValueError, match="at least one"):
        multihop_rag.summarise([], [])


def test_the_metric_extracts_the_answer_before_it_compares() -> None:
    gold = Gold(("The Verge",))
    reply = 'The answer to the question is "Wired".'
    assert multihop_rag.multihop_rag_accuracy(QUESTION, gold, answered(reply)).value == 0
    assert multihop_rag.multihop_rag_accuracy(QUESTION, gold, answered("I think the Verge")).value == 1
    assert multihop_rag.multihop_rag_accuracy(QUESTION, gold, answered(" ")).value == 0
    failed = Prediction("c1", "q1", "", items=(), scores=(), outcome="error", error="no reply")
    assert multihop_rag.multihop_rag_accuracy(QUESTION, gold, failed) == Score(None, why="error: no reply")


chunks = st.lists(st.text("ABx ", max_size=5), max_size=13)
facts = st.lists(st.sampled_from(["A", "B", "AB", "BA"]), min_size=1, max_size=5)


@given(chunks, facts)
def test_retrieval_scores_stay_between_0_and_1(retrieved: list[str], wanted: list[str]) -> None:
    scores = multihop_rag.fact_retrieval(retrieved, wanted)
    assert 0 <= scores.map_at_10 <= 1
    assert scores.hits_at_4 <= scores.hits_at_10
    assert 0 <= scores.mrr_at_10 <= scores.hits_at_10


@given(st.text(max_size=20), st.text(max_size=20))
def test_sharing_a_word_goes_both_ways(one: str, other: str) -> None:
    assert multihop_rag.shares_a_word(one, other) == multihop_rag.shares_a_word(other, one)
