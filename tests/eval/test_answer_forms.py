"""Probes of judges: answers in another form are right, answers with one thing changed are wrong, for every shipped data set."""

from __future__ import annotations

from dataclasses import replace

import pytest

from data_loaders.schema import Case, Gold, Question
from data_loaders.source import sample
from eval.judging.answer_forms import (
    differs,
    is_refusal,
    items_of,
    of_date,
    of_list,
    of_number,
    of_speaker,
    of_yes_or_no,
    type_of,
)
from eval.judging.judge_probes import ORDER, REFUSAL, Probe, probes
from scripts.commands.data import loader
from scripts.setup.options import load_option, options

CASE = Case(
    "c1",
    ("Ines", "Ruben"),
    (),
    (
        (Question("q1", "When did Ines leave the weaving school?"), Gold(("7 May 2023",), category="temporal")),
        (Question("q2", "What did Ines bring?"), Gold(("bread, cheese and figs",), category="single")),
        (Question("q3", "Who fixed the boat?"), Gold(("Ruben",), category="single")),
        (Question("q4", "When was the wedding?"), Gold(("12 June 2023",), category="temporal")),
        (Question("q5", "Why did Ines sell it?"), Gold(("-",), answerable=False, trap="She needed money")),
        (
            Question("q6", "Which one?", options=("(a) tin", "(b) oak")),
            Gold(("(b)",), detail={"right_letters": ["(b)"]}),
        ),
        (
            Question("q7", "A novel, please?"),
            Gold(("Wants letters",), detail={"question_type": "single-session-preference"}),
        ),
    ),
)
MADE = list(probes([CASE]))


def of(question: str) -> dict[str, Probe]:
    return {probe.kind: probe for probe in MADE if probe.question.id == question}


def changes(made: object) -> dict[str, tuple[bool, str]]:
    return {kind: (right, answer) for kind, right, answer in made}  # type: ignore[attr-defined]


def test_dates_are_written_in_other_forms_and_move_by_a_day_a_month_and_a_year() -> None:
    assert changes(of_date("on 28 February, 2022.")) == {
        "the date in figures": (True, "on 2022-02-28."),
        "the date, month first": (True, "on February 28, 2022."),
        "the date, day first": (True, "on 28 February 2022."),
        "a day later": (False, "on 1 March 2022."),
        "a month later": (False, "on 28 March 2022."),
        "a year later": (False, "on 28 February 2023."),
    }
    anchored = changes(of_date("The Saturday before 19 May, 2022"))
    assert anchored["the date in figures"] == (True, "2022-05-14"), "the day that the words mean"
    assert "the date, day first" not in changes(of_date("7 May 2023")), "that is how it stands there already"
    assert changes(of_date("June 2023")) == {
        "the month in figures": (True, "2023-06"),
        "a month later": (False, "July 2023"),
        "a year later": (False, "June 2024"),
    }
    assert changes(of_date("in 1974")) == {"a year later": (False, "in 1975")}
    assert not changes(of_date("between 3 May 2023 and 5 May 2023")), "which of two dates counts is not certain"
    assert not changes(of_date("yesterday"))


def test_numbers_are_written_in_words_converted_and_counted_up_where_that_is_certain() -> None:
    assert changes(of_number("two weeks")) == {
        "the number in figures": (True, "2 weeks"),
        "in another unit": (True, "14 days"),
        "one more": (False, "3 weeks"),
    }
    assert changes(of_number("about 3 km")) == {
        "the number in words": (True, "about three km"),
        "in another unit": (True, "about 3000 metres"),
        "one more": (False, "about 4 km"),
    }
    assert changes(of_number("40 points")) == {"one more": (False, "41 points")}
    assert "in another unit" not in changes(of_number("8 years old"))
    assert changes(of_number("0 days")) == {"one more": (False, "1 days")}
    for name in ("It takes two", "Overcooked 2", "in May 2023", "2 cats and 3 dogs", "1.5 hours", "10:30"):
        assert not changes(of_number(name)), name


def test_a_name_has_at_most_three_words_and_each_begins_with_a_capital() -> None:
    answers = ("Ines", "Ines Maria Prado", "Ines Maria Prado Lima", "Ines of Prado")
    assert [type_of(answer) for answer in answers] == ["name", "name", "short", "short"]


def test_lists_speakers_and_yes_or_no_are_changed_and_sentences_are_left_alone() -> None:
    assert changes(of_list("bread, cheese and figs", "a map")) == {
        "the list in another order": (True, "figs, cheese, bread"),
        "an item of the list missing": (False, "bread, cheese"),
        "an item of the list swapped": (False, "bread, cheese, a map"),
    }
    for sentence in ("dancing together and supporting each other", "28 February, 2022", "He found her kind and left."):
        assert items_of(sentence) == [sentence]
    assert changes(of_speaker("Ruben's boat", ("Ines", "Ruben"))) == {"the other speaker": (False, "Ines's boat")}
    assert changes(of_yes_or_no("Yes.")) == {"the opposite": (False, "No")}
    assert not changes(of_yes_or_no("Yes, since June"))


def test_another_answer_is_of_the_same_type_and_shares_no_word_that_says_something() -> None:
    assert of("q1")["another question's answer"].answer == "12 June 2023", "a date for a date, though both name 2023"
    assert [type_of(each) for each in ("7 May 2023", "two", "no", "Ines", "tea, milk")] == [
        "date",
        "number",
        "yes or no",
        "name",
        "list",
    ]
    assert not differs(("the red boat",), "a boat")
    assert not differs(("7 May 2023",), "May 7, 2023")
    assert of("q6")["another option"].answer == "(a) tin"
    assert of("q5")["the tempting answer"].answer == "She needed money"
    assert {kind for kind, probe in of("q5").items() if probe.right} == {"refusal where there is no answer"}
    plain = replace(CASE, questions=((Question("q8", "Why did Ruben sell it?"), Gold(("-",), answerable=False)),))
    assert [probe.kind for probe in probes([plain])] == ["refusal where there is no answer"]


def test_a_gold_that_describes_a_reply_gives_wrong_probes_only() -> None:
    assert of("q7")
    assert not [probe for probe in of("q7").values() if probe.right]


@pytest.mark.parametrize("name", [name for name in options("dataset") if name != "msc"])
def test_every_data_set_gives_right_and_near_wrong_probes_and_no_wrong_one_is_the_gold(name: str) -> None:
    option = load_option("dataset", name)
    made = list(probes(list(loader(option["load"])(sample(option["sample"]).path))))
    kinds = {probe.kind for probe in made}
    assert {
        "as it is",
        "vague but on topic",
        "refusal",
        "empty",
        "an order to the judge",
        "hedged between two",
    } <= kinds
    assert kinds & {"another option", "another question's answer"}
    for probe in made:
        if not probe.right:
            assert probe.answer not in probe.gold.answers, probe
        elif probe.gold.answerable and probe.kind in ("inside a long sentence", "with harmless extras"):
            assert probe.gold.answers[0].rstrip(".") in probe.answer
        assert (probe.answer == REFUSAL) <= (probe.right != probe.gold.answerable)
        assert (probe.answer == ORDER) <= (not probe.right)


@pytest.mark.parametrize(
    ("answer", "refuses"),
    [
        ("", True),
        ("I do not know; the conversation does not say.", True),
        ("There is no information about that in the memories.", True),
        ("It isn’t mentioned.", True),
        ("Unknown", True),
        ("She said no.", False),
        ("It is not mentioned directly, but it was probably Lisbon.", False),
        ("The Unknown Soldier's tomb? No: the museum next to it.", False),
    ],
)
def test_a_refusal_says_that_it_does_not_know_and_nothing_else(answer: str, refuses: bool) -> None:
    assert is_refusal(answer) is refuses
