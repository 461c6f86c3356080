from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memsys.tokens import count_tokens, split_tokens, truncate

FAMILY = "👩\u200d👩\u200d👧\u200d👦"
pieces = st.sampled_from(["a", " word", "é", "𓀀", "👩\u200d👧", " שלום", "\n", "<|endoftext|>", "7"])
texts = st.lists(pieces, max_size=25).map("".join) | st.text(st.characters(exclude_categories=["Cs"]), max_size=25)


@pytest.mark.parametrize(
    ("text", "o200k", "cl100k"),
    [("", 0, 0), ("antidisestablishmentarianism", 6, 6), ("2 + 2 = 4", 7, 7), ("お誕生日おめでとう", 8, 9)],
)
def test_counts_are_those_of_the_vocabulary(text: str, o200k: int, cl100k: int) -> None:
    assert (count_tokens(text), count_tokens(text, "cl100k_base")) == (o200k, cl100k)


def test_special_tokens_in_a_text_are_plain_text() -> None:
    assert count_tokens("<|endoftext|>") > 1
    assert truncate("<|endoftext|> and more", 50) == "<|endoftext|> and more"


def test_a_short_text_is_not_cut() -> None:
    assert truncate("one two three", 3) == "one two three"
    assert truncate("one two three", 2) == "one two"
    assert truncate("one two three", 0) == ""


def test_few_characters_can_be_many_tokens() -> None:
    assert len("𓀀𓀀") < 4 < count_tokens("𓀀𓀀")
    assert truncate("𓀀𓀀", 4) == "𓀀"


def test_no_character_is_halved() -> None:
    for limit in range(count_tokens(FAMILY)):
        assert FAMILY.startswith(truncate(FAMILY, limit))


@pytest.mark.slow
@given(texts, st.integers(0, 30))
def test_a_truncated_text_is_a_beginning_within_the_limit(text: str, limit: int) -> None:
    cut = truncate(text, limit)
    assert text.startswith(cut)
    assert count_tokens(cut) <= limit
    assert cut == text or limit < count_tokens(text)


def test_windows_start_a_step_apart_and_stop_when_the_text_is_covered() -> None:
    assert split_tokens("a b c d e", 2, 1) == ["a b", " b c", " c d", " d e"]
    assert split_tokens("a b c d e", 2) == ["a b", " c d", " e"]
    assert split_tokens("a b c d e", 5) == split_tokens("a b c d e", 9, 4) == ["a b c d e"]
    assert split_tokens("a b c d e", 4, 2) == ["a b c d", " c d e"]


def test_an_empty_text_has_no_windows() -> None:
    assert split_tokens("", 4) == []


@pytest.mark.slow
@given(texts, st.integers(1, 8))
def test_windows_without_overlap_join_to_the_text(text: str, size: int) -> None:
    windows = split_tokens(text, size)
    assert "".join(windows) == text
    assert all(windows)


@pytest.mark.parametrize(("size", "overlap"), [(4, 4), (4, 5), (4, -1), (0, 0)])
def test_an_impossible_overlap_is_refused(size: int, overlap: int) -> None:
    with pytest.raises(ValueError, match=f"overlap {overlap}"):
        split_tokens("a b c", size, overlap)
