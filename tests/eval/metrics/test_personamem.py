"""PersonaMem's official rule on recorded replies, and what the corrected rule reads otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from data_loaders.personamem import longest_share
from data_loaders.schema import Gold, Question
from eval.files.records import Prediction, Score
from eval.metrics import personamem

RECORDED: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "golden" / "personamem_metrics.json").read_text(encoding="utf-8")
)
OPTIONS = ("a short walk", "a painting class", "a concert", "a painting class")
QUESTION = Question("q1", "What shall I do?", options=OPTIONS)
GOLD = Gold(("(b)", "a painting class"), detail={"letter": "(b)", "right_letters": ("(b)", "(d)"), "longest": 0.5})


def answered(answer: str) -> Prediction:
    return Prediction("c1", "q1", answer, items=(), scores=(), outcome="answered")


def official(answer: str) -> float | None:
    return personamem.personamem_accuracy(QUESTION, GOLD, answered(answer)).value


def corrected(answer: str) -> float | None:
    return personamem.personamem_choice(QUESTION, GOLD, answered(answer)).value


def test_a_reply_is_right_and_is_cut_as_in_the_official_script(subtests: pytest.Subtests) -> None:
    assert RECORDED["extract_answer"]
    for case in RECORDED["extract_answer"]:
        with subtests.test(case["response"]):
            found = personamem.extract_answer(case["response"], case["correct_answer"])
            assert found == (case["score"], case["predicted_answer"])


def test_accuracy_is_the_share_of_right_replies() -> None:
    scores = []
    for case in RECORDED["extract_answer"]:
        gold = Gold((case["correct_answer"],), detail={"letter": case["correct_answer"]})
        scores.append(personamem.personamem_accuracy(QUESTION, gold, answered(case["response"])).value)
    assert scores == [float(case["score"]) for case in RECORDED["extract_answer"]]


def test_the_article_is_no_label_by_the_corrected_rule() -> None:
    letter_a = Gold(("(a)",), detail={"letter": "(a)", "right_letters": ("(a)",), "longest": 0.0})
    said = answered("I have a feeling")
    assert personamem.personamem_accuracy(QUESTION, letter_a, said).value == 1.0
    assert personamem.personamem_choice(QUESTION, letter_a, said) == Score(0.0, why="no option chosen")
    assert (official("<final_answer> b) a painting class"), corrected("<final_answer> b) a painting class")) == (0, 1)


def test_the_second_letter_of_a_repeated_option_is_right_by_the_corrected_rule_only() -> None:
    assert (official("(d)"), corrected("(d)")) == (0.0, 1.0)
    assert (official("(c)"), corrected("(c)")) == (0.0, 0.0)


def test_what_is_said_before_the_last_marker_counts_by_the_official_rule_only() -> None:
    assert (official("I pick (b) <final_answer> the third"), corrected("I pick (b) <final_answer> (c)")) == (1.0, 0.0)


def test_an_option_is_read_from_a_reply_or_none_is(subtests: pytest.Subtests) -> None:
    for reply, position in [
        ("C", 2),
        ("<final_answer>(c)</final_answer> thanks", 2),
        ("c. because it is loud", 2),
        ("The answer is C.", 2),
        ("<final_answer> (a) <final_answer> (c)", 2),
        ("(c) <final_answer>", 2),
        ("a concert", 2),
        ("(a) or (c)", None),
        ("<final_answer> (c), not (d)", None),
        ("a walk", None),
        ("none of them", None),
        ("", None),
    ]:
        with subtests.test(reply=reply):
            assert personamem.chosen(reply, OPTIONS) == position


def test_the_longest_option_scores_the_same_whatever_is_said_and_options_of_equal_length_share() -> None:
    assert [personamem.personamem_longest(QUESTION, GOLD, answered(said)).value for said in ("(b)", "(a)", "")] == [
        0.5
    ] * 3
    assert [longest_share(OPTIONS, right) for right in range(4)] == [0.0, 0.5, 0.0, 0.5]
    assert [longest_share(OPTIONS, right, shortest=True) for right in range(4)] == [0.0, 0.0, 1.0, 0.0]


def test_a_failed_call_is_no_wrong_answer_and_is_not_dropped() -> None:
    failed = Prediction("c1", "q1", "", items=(), scores=(), outcome="error", error="no reply")
    for metric in (personamem.personamem_accuracy, personamem.personamem_choice):
        assert metric(QUESTION, GOLD, failed) == Score(None, why="error: no reply")


LETTERS_V2 = [
    ("So it is b. Final Answer: B", "B"),
    ("final answer:\n c", "C"),
    ("Answer: I think (b)", "I"),
    ("the answer is\n\\boxed{c}", "C"),
    ("\\boxed{B}, no: $\\boxed{A}$", "A"),
    ("Final Answer: D, as \\boxed{A} says", "A"),
    ("It must be D.", "D"),
    ("Final Answer: [B]", ""),
    ("**Final Answer:** B", ""),
    ("(b)", ""),
]
"""What `extract_final_answer` of the release gives; it gave the same as ours on 300,000 random replies."""


def test_the_letter_of_version_2_is_found_as_in_the_official_script(subtests: pytest.Subtests) -> None:
    for reply, letter in LETTERS_V2:
        with subtests.test(reply):
            assert personamem.letter_v2(reply) == letter


def test_version_2_takes_either_letter_of_a_repeated_option_and_no_letter_is_wrong() -> None:
    def scored(answer: str) -> Score:
        return personamem.personamem_v2_accuracy(QUESTION, GOLD, answered(answer))

    assert [scored(f"Final Answer: {letter}").value for letter in "ABCD"] == [0.0, 1.0, 0.0, 1.0]
    assert scored("a painting class") == Score(0.0, why="no letter found")
