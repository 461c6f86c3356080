from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from data_loaders.schema import Gold, Question
from eval.files.records import Prediction, Score
from eval.metrics import multihop_rag

QUESTION = Question("q1", "Who?")


def answered(answer: str) -> Prediction:
    return Prediction("c1", "q1", answer, items=(), scores=(), outcome="answered")


def test_the_metric_extracts_the_answer_before_it_compares() -> None:
    gold = Gold(("The Verge",))
    reply = 'The answer to the question is "Wired".'
    assert multihop_rag.multihop_rag_accuracy(QUESTION, gold, answered(reply)).value == 0
    assert multihop_rag.multihop_rag_accuracy(QUESTION, gold, answered("I think the Verge")).value == 1
    assert multihop_rag.multihop_rag_accuracy(QUESTION, gold, answered(" ")).value == 0
    failed = Prediction("c1", "q1", "", items=(), scores=(), outcome="error", error="no reply")
    assert multihop_rag.multihop_rag_accuracy(QUESTION, gold, failed) == Score(None, why="error: no reply")


@given(st.text(max_size=20), st.text(max_size=20))
def test_sharing_a_word_goes_both_ways(one: str, other: str) -> None:
    assert multihop_rag.shares_a_word(one, other) == multihop_rag.shares_a_word(other, one)
