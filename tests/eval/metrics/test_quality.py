from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_loaders.schema import Gold, Question
from eval.files.records import Prediction, Score
from eval.metrics import quality

OPTIONS = ("He was lost.", "A dog led him \n", "The lamp went out", "It rained")
QUESTION = Question("q1", "Why?", options=OPTIONS)
GOLD = Gold(("The lamp went out",), detail={"gold_label": 3, "difficult": True, "options": OPTIONS})


def answered(answer: str) -> Prediction:
    return Prediction("c1", "q1", answer, items=(), scores=(), outcome="answered")


def test_an_option_is_read_from_a_reply_or_none_is(subtests: pytest.Subtests) -> None:
    for reply, expected in [
        ("C", 3),
        (" (c).", 3),
        ("3", 3),
        ("C. The lamp went out", 3),
        ("C) it says so", 3),
        ("(B) A dog led him", 2),
        ("I think it is (D).", 4),
        ("Reasons first.\nC. The lamp", 3),
        ("B\n\nThe text says so.", 2),
        ("He was led home.\n\n**B**", 2),
        ("A\nB", None),
        ("The answer is B.", 2),
        ("Answer: C", 3),
        ("The correct answer is **B**", 2),
        ("B, because the dog led him.", 2),
        ("B because the dog led him.", 2),
        ("I choose A", 1),
        ("I pick option D.", 4),
        ("I choose a dog", None),
        ("The answer is (A) because", 1),
        ("The answer is A because he says so", 1),
        ("the LAMP  went out.", 3),
        ("a dog led him", 2),
        ("A dog led him", 2),
        ("I would say it rained then", 4),
        ("The answer is a lamp", None),
        ("Answer: 3 years", None),
        ("3.5 metres", None),
        ("(A) or (B)", None),
        ("The answer is (A) or (B)", None),
        ("It is not (A). Answer: B", 2),
        ("Between (A) and (C), the answer is (c).", 3),
        ("It rained and the lamp went out", None),
        ("5", None),
        ("no idea", None),
        ("", None),
    ]:
        with subtests.test(reply=reply, expected=expected):
            assert quality.chosen_option(reply, OPTIONS) == expected


def test_a_label_beyond_the_options_chooses_none() -> None:
    assert quality.chosen_option("D", OPTIONS[:3]) is None


@given(st.sampled_from(range(1, 5)), st.sampled_from(["{}", "({})", "{}.", "Answer: {}", "The answer is {}."]))
def test_letters_and_numbers_mean_the_same_option(number: int, form: str) -> None:
    assert quality.chosen_option(form.format("ABCD"[number - 1]), OPTIONS) == number
    assert quality.chosen_option(form.format(number), OPTIONS) == number


@given(st.text(max_size=40))
def test_any_reply_chooses_one_of_the_options_or_none(reply: str) -> None:
    assert quality.chosen_option(reply, OPTIONS) in (None, 1, 2, 3, 4)


def test_the_metric_tells_what_was_chosen_and_how_hard_it_was() -> None:
    assert quality.quality_accuracy(QUESTION, GOLD, answered("C")) == Score(
        1.0, detail={"chosen": 3, "difficult": True}
    )
    assert quality.quality_accuracy(QUESTION, GOLD, answered("D")).value == 0
    silent = quality.quality_accuracy(QUESTION, GOLD, answered(""))
    assert (silent.value, silent.why) == (0, "no option chosen")


def test_open_and_unanswered_questions_have_no_accuracy() -> None:
    assert quality.quality_accuracy(Question("q1", "Why?"), GOLD, answered("C")).value is None
    failed = Prediction("c1", "q1", "", items=(), scores=(), outcome="error", error="no reply")
    assert quality.quality_accuracy(QUESTION, GOLD, failed) == Score(None, why="error: no reply")
