from __future__ import annotations

from datetime import date, datetime

import pytest

from memsys.dates import mentions, parse_time, written

SAID = date(2023, 6, 9)  # a Friday


def test_the_time_texts_of_every_data_set_are_read(subtests: pytest.Subtests) -> None:
    for text, time in [
        ("1:56 pm on 8 May, 2023", datetime(2023, 5, 8, 13, 56)),
        ("12:09 am on 13 September, 2023", datetime(2023, 9, 13, 0, 9)),
        ("2023/05/20 (Sat) 02:21", datetime(2023, 5, 20, 2, 21)),
        ("2025-12-15 (Monday)", datetime(2025, 12, 15)),
        ("2024-01-02 18:30", datetime(2024, 1, 2, 18, 30)),
        ("2023-10-01T10:00:00+00:00", datetime(2023, 10, 1, 10)),
        ("8 May 2023", datetime(2023, 5, 8)),
        ("1:56 pm on 8 May, 2023 – 2:00 pm on 9 May, 2023", datetime(2023, 5, 8, 13, 56)),
    ]:
        with subtests.test(text=text, time=time):
            assert parse_time(text) == time


@pytest.mark.parametrize(
    "text", ["", "during an election", "shares a photo: a dog", "31 June 2023", "99:99 pm on 8 May, 2023"]
)
def test_what_is_no_time_is_none(text: str) -> None:
    assert parse_time(text) is None


def first(text: str, said: date) -> str | None:
    """The first date expression, resolved."""
    return next((mention.resolved for mention in mentions(text, said)), None)


def test_a_date_expression_is_resolved_against_the_day_it_was_said(subtests: pytest.Subtests) -> None:
    for expression, resolved in [
        ("today", "9 June 2023"),
        ("yesterday", "8 June 2023"),
        ("last night", "8 June 2023"),
        ("the day before yesterday", "7 June 2023"),
        ("tomorrow", "10 June 2023"),
        ("three days ago", "6 June 2023"),
        ("in 3 days", "12 June 2023"),
        ("last week", "the week before 9 June 2023"),
        ("a week ago", "the week before 9 June 2023"),
        ("this weekend", "the weekend of 9 June 2023"),
        ("two weeks ago", "two weeks before 9 June 2023"),
        ("a few months ago", "a few months before 9 June 2023"),
        ("two months ago", "April 2023"),
        ("next month", "July 2023"),
        ("this past month", "May 2023"),
        ("last year", "2022"),
        ("5 years ago", "2018"),
        ("last summer", "summer 2022"),
        ("last Friday", "the Friday before 9 June 2023"),
        ("on Tuesday", "the Tuesday before 9 June 2023"),
        ("next Friday", "the Friday after 9 June 2023"),
        ("in August", "August 2023"),
        ("in December", "December 2022"),
        ("last August", "August 2022"),
        ("June 3rd", "3 June 2023"),
        ("the 5th of July", "5 July 2023"),
        ("December 30", "30 December 2022"),
        ("May 3, 2022", "3 May 2022"),
        ("2023-05-20", "20 May 2023"),
        ("March 2021", "March 2021"),
        ("since 2016", "2016"),
        ("the week before 9 June 2023", "the week before 9 June 2023"),
        ("The weekend before May 3, 2022", "the weekend before 3 May 2022"),
        ("two days before 9 June 2023", "7 June 2023"),
    ]:
        with subtests.test(expression=expression, resolved=resolved):
            assert first(expression, SAID) == resolved


@pytest.mark.parametrize("text", ["", "We may march on.", "99999 months ago", "in a while", "He is 20 years old."])
def test_what_is_no_date_is_not_resolved(text: str) -> None:
    assert first(text, SAID) is None


def test_a_day_that_does_not_exist_leaves_what_is_still_a_date() -> None:
    assert first("on 31 June 2023", SAID) == "June 2023"


def test_the_turn_of_the_year_is_crossed_in_both_directions() -> None:
    assert first("yesterday", date(2024, 1, 1)) == "31 December 2023"
    assert first("a month ago", date(2024, 1, 15)) == "December 2023"
    assert first("in February", date(2023, 12, 20)) == "February 2024"


def test_a_named_weekday_also_says_which_day_it_is() -> None:
    days = [mentions(text, SAID)[0].day for text in ("last Friday", "on Thursday", "next Friday", "this Sunday")]
    assert days == [date(2023, 6, 2), date(2023, 6, 8), date(2023, 6, 16), date(2023, 6, 11)]


def test_mentions_come_in_order_and_do_not_overlap() -> None:
    text = "Since 2019 we meet; the week before 3 May 2022 I fell ill, and yesterday I ran."
    found = mentions(text, SAID)
    assert [text[one.start : one.end] for one in found] == ["2019", "the week before 3 May 2022", "yesterday"]
    assert [one.relative for one in found] == [False, False, True]


def test_without_the_day_of_speaking_a_relative_date_keeps_its_words() -> None:
    (only,) = mentions("I went yesterday.", None)
    assert (only.resolved, only.day) == ("yesterday", None)
    assert mentions("I went on 3 May 2022.", None)[0].resolved == "3 May 2022"


def test_days_are_written_without_leading_zeros() -> None:
    assert written(date(2023, 5, 7)) == "7 May 2023"


def test_a_date_without_a_year_says_nothing_without_the_day_of_speaking() -> None:
    text = "On May 7, on 3 June and yesterday; 8 May 2023 was a Monday, as was June 5, 2023."
    assert [mention.relative for mention in mentions(text, SAID)] == [True, True, True, False, False]
    unknown = [mention.resolved for mention in mentions(text, None)]
    assert unknown == ["May 7", "3 June", "yesterday", "8 May 2023", "5 June 2023"]
