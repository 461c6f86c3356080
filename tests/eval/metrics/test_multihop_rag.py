from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from eval.metrics import multihop_rag


def test_the_metric_extracts_the_answer_before_it_compares() -> None:
    assert not multihop_rag.is_right('The answer to the question is "Wired".', "The Verge")
    assert multihop_rag.is_right("I think the Verge", "The Verge")


@given(st.text(max_size=20), st.text(max_size=20))
def test_sharing_a_word_goes_both_ways(one: str, other: str) -> None:
    assert multihop_rag.is_right(one, other) == multihop_rag.is_right(other, one)
