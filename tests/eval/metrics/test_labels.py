"""A judge's label counts only where it stands alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eval.metrics.labels import stated

YES_NO = ("yes", "no")
phrases = st.text(alphabet="abcdefghijklm", min_size=1, max_size=12)


@given(phrases, st.sampled_from(YES_NO))
def test_a_label_inside_a_longer_phrase_states_nothing(word: str, label: str) -> None:
    assert stated(f"{word} {label}", YES_NO) is None
    assert stated(f"{word}{label}", YES_NO) is None


@given(phrases, st.sampled_from(YES_NO))
def test_a_label_that_is_a_phrase_of_its_own_is_stated(word: str, label: str) -> None:
    for reply in (label, f"{label}.", f"{label}, {word}", f"{word}: {label}", f"{word}.\n**{label.upper()}**"):
        assert stated(reply, YES_NO) == label


def test_a_reply_that_states_both_or_neither_states_nothing(subtests: pytest.Subtests) -> None:
    for reply in ["yes, no", "No, yes it is", "yes or no", "yes? no", "", " \n"]:
        with subtests.test(reply=reply):
            assert stated(reply, YES_NO) is None


def test_a_label_in_capitals_is_no_word_of_the_prose() -> None:
    labels = ("CORRECT", "WRONG")
    assert stated("WRONG, correct is June", labels, capitals=True) == "WRONG"
    assert stated("correct", labels, capitals=True) is None
    assert stated("wrong", labels) == "WRONG"
