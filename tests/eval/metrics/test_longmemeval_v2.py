"""LongMemEval-V2's scorers, on examples worked by hand from the release's rule; the release's own functions gave the same values.

200,000 random replies under 15 scorers and options had no other outcome than qa_eval_metrics.py at be15ea6 gives them.
"""

from __future__ import annotations

import pytest

from data_loaders.schema import Gold, Question
from eval.files.records import Prediction, Score
from eval.metrics.longmemeval_v2 import boxed, longmemeval_v2_match, normalised, official, parse

SET = "norm_phrase_set_match|lower=true|normalize_hyphen=true|strip_punct=true|separators=,;|require_non_empty=true"
ORDERED = "norm_phrase_set_match_ordered|lower=true|strip_punct=true|separators=;|require_non_empty=true"
CHOICE = "mc_choice_match|strip_chars=.|require_non_empty=true"
CHOICES = "mc_choice_set_match|require_non_empty=true"

BOXED = [
    ("I think so: \\boxed{B}.", "B"),
    ("\\boxed{A} or rather \\boxed{ C }", "C"),
    ("\\boxed{a {nested} one} here", "a {nested} one"),
    ("\\boxed{never closed", "never closed"),
    ("\\boxed{}", "\\boxed{}"),
    ("  no box at all ", "no box at all"),
]
RIGHT_OR_NOT = [
    (SET, "Rope and tackle; boots, and COATS", "Coats, Boots, Rope and tackle", True),
    (SET, "Coats, Boots", "Coats, Boots, Rope and tackle", False),
    (SET, "The assigned to column, or some other", "Assigned-to", True),
    (SET, "Reassigned to", "Assigned-to", False),
    (SET, "", "Coats", False),
    (SET, "unknown", "unknown", False),
    ("norm_phrase_set_match|lower=false", "coats", "Coats", False),
    ('norm_phrase_set_match|separators=["/"]', "a b, c", "a, b/c", True),
    ("norm_phrase_set_match|separators=", "coats boots", "Coats, boots", True),
    ("norm_phrase_set_match|require_non_empty=false", "", ";", True),
    (ORDERED, "First the Catalogue, then Shown in the shop, then Keep", "Catalogue; Shown in the shop; Keep", True),
    (ORDERED, "Keep, Catalogue, Shown in the shop", "Catalogue; Shown in the shop; Keep", False),
    (ORDERED, "Keep", "Keep; Keep", False),
    (CHOICE, "Option B.", "b", True),
    (CHOICE, "(B)", "B", False),
    (CHOICE, "B, the field is disabled", "B", False),
    (CHOICE, "the choice", "the", True),
    (CHOICES, "C and A", "A, C", True),
    (CHOICES, "Answers: A, C", "A, C", True),
    (CHOICES, "A and the C", "A, C", False),
    (CHOICES, "", "A", False),
]


def test_the_answer_is_what_the_last_box_holds(subtests: pytest.Subtests) -> None:
    for reply, answer in BOXED:
        with subtests.test(reply=reply):
            assert boxed(reply) == answer


def test_answers_are_right_by_the_rule_of_their_question(subtests: pytest.Subtests) -> None:
    for spec, answer, gold, right in RIGHT_OR_NOT:
        with subtests.test(spec=spec, answer=answer, gold=gold):
            assert official(spec, answer, gold) is right


def test_each_step_of_the_normal_form_can_be_left_out() -> None:
    assert normalised("My_Open-Incidents, (now)!") == "my open incidents now"
    assert normalised("My_Open-Incidents", lower=False) == "My Open Incidents"
    assert normalised("My_Open-Incidents", normalize_hyphen=False) == "my_openincidents"
    assert normalised("a.b;c", strip_punct=False) == "a.b c"


def test_options_are_parsed_and_a_malformed_one_is_refused() -> None:
    assert parse(SET)[1] == {
        **dict.fromkeys(("lower", "normalize_hyphen", "strip_punct", "require_non_empty"), True),
        "separators": [",", ";"],
    }
    for spec in ("mc_choice_match|lower", "mc_choice_match|a=1|a=2", "mc_choice_match|=1"):
        with pytest.raises(ValueError, match="expected options such as"):
            parse(spec)


def scored(spec: str, answer: str) -> Score:
    gold = Gold(("Coats",), detail={"eval_function": spec})
    return longmemeval_v2_match(Question("q", "Which?"), gold, Prediction("c", "q", answer, (), (), "answered"))


def test_an_unknown_scorer_or_option_and_a_judged_question_are_not_scored_and_say_why() -> None:
    assert scored(SET, "\\boxed{the coats}") == Score(1.0)
    assert scored("soft_match", "x") == Score(None, "eval_function: no rule is known for 'soft_match'")
    assert scored("norm_phrase_set_match|stem=true", "x") == Score(None, "eval_function: no option 'stem' is known")
    assert scored("llm_abstention_checker", "x") == Score(None, "graded by a judge")
    assert scored("llm_abstention_checker", "\\boxed{UNKNOWN}") == Score(0.0)
