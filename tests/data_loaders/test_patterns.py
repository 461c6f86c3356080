from __future__ import annotations

import pytest

from data_loaders.patterns import cleaned, holds


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("My dentist is BRUNOK.", "Brunok"),
        ("“Women’s\u00a0 clinic”", "women's clinic"),
        ("on the 3\u20134 May", "3-4 May"),
        ("Bru\u00adnok and Ki\u200breth", "brunok and kireth"),
        ("ｆｕｌｌ width", "full"),
        ("it costs 2,350.", "2,350"),
        ("in 2024, and", "2024"),
        ("(9%)", "9%"),
    ],
)
def test_signs_and_case_make_no_difference(text: str, value: str) -> None:
    assert holds(text, value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Kirethson", "Kireth"),
        ("code_5821", "5821"),
        ("12,350 USD", "350 USD"),
        ("3.2", "2"),
        ("2.5", "2"),
        ("19%", "9%"),
        ("anything", " "),
        ("anything", ""),
        ("", "Kireth"),
    ],
)
def test_part_of_a_word_or_a_number_is_no_hit(text: str, value: str) -> None:
    assert not holds(text, value)


def test_a_value_is_no_pattern() -> None:
    assert holds("a.b (c)", "a.b (c)")
    assert not holds("axb (c)", "a.b (c)")


def test_a_double_prime_is_a_quote() -> None:
    assert cleaned("6″ ′x′") == "6\" 'x'"
